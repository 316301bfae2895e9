// What every page has: filters that apply when they change, light or dark, copying, live parts, and the sections of an export.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not kept, then */ } };
  if (["light", "dark"].includes(kept("fuseplan-theme"))) root.dataset.theme = kept("fuseplan-theme");

  function theme() {
    const button = document.querySelector("[data-theme-toggle]");
    if (!button) return;
    const dark = () => getComputedStyle(root).colorScheme.trim() === "dark";
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Show in ${dark() ? "light" : "dark"} colours`); };
    button.hidden = false;
    say();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      keep("fuseplan-theme", root.dataset.theme);
      say();
      document.dispatchEvent(new CustomEvent("fuseplan:theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      say();
      document.dispatchEvent(new CustomEvent("fuseplan:theme"));
    });
  }

  // Fields that hold nothing stay out of the address.
  function filters() {
    for (const form of document.querySelectorAll("form[data-filters], form[data-search]")) {
      form.addEventListener("submit", (event) => {
        if (form.dataset.handled) return;
        event.preventDefault();
        const values = [...new FormData(form)].filter(([, value]) => value !== "");
        const query = new URLSearchParams(values).toString();
        location.assign(location.pathname + (query ? `?${query}` : ""));
      });
    }
    const form = document.querySelector("form[data-filters]");
    if (!form) return;
    form.classList.add("scripted");
    for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => form.requestSubmit());
    // A page from the history comes back with what was chosen last in it, which is not what it shows.
    addEventListener("pageshow", () => form.reset());
  }

  function copying() {
    document.addEventListener("click", async (event) => {
      const button = event.target.closest("[data-copy]");
      if (!button) return;
      const source = button.dataset.copy.startsWith("#") ? document.querySelector(button.dataset.copy) : null;
      try { await navigator.clipboard.writeText(source ? source.textContent : button.dataset.copy); } catch { return; }
      const before = button.textContent;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  }

  // Parts that are fetched anew while a page is open. One that cannot be fetched stays as it is.
  function live() {
    if (location.protocol === "file:") return;
    for (const part of document.querySelectorAll("[id][data-refresh]")) {
      const wait = Math.max(1, Number(part.dataset.refresh) || 5) * 1000;
      const again = async () => {
        if (!document.hidden) {
          try {
            const answer = await fetch(location.href, { cache: "no-store" });
            const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.id);
            if (fresh && fresh.innerHTML !== part.innerHTML && !part.contains(document.activeElement)) {
              part.replaceChildren(...fresh.childNodes);
              document.dispatchEvent(new CustomEvent("fuseplan:shown"));
            }
            if (fresh && !fresh.hasAttribute("data-refresh")) return;
          } catch { /* the server may be gone: what is shown is still true of then */ }
        }
        setTimeout(again, wait);
      };
      setTimeout(again, wait);
    }
  }

  // In an exported file each page is a section, and the fragment says which one is shown.
  function sections() {
    const views = [...document.querySelectorAll("section.view")];
    if (!views.length) return;
    document.body.classList.add("sections");
    const show = (moved) => {
      const name = decodeURIComponent(location.hash.slice(1)) || views[0].id;
      const view = document.getElementById(name)?.closest("section.view") || views[0];
      for (const one of views) one.hidden = one !== view;
      for (const link of document.querySelectorAll("header.top nav a")) {
        if (link.hash === `#${view.id}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
      }
      document.title = `${view.dataset.title} · fuseplan`;
      if (moved) { scrollTo(0, 0); document.getElementById("main").focus({ preventScroll: true }); }
      document.dispatchEvent(new CustomEvent("fuseplan:shown"));
    };
    addEventListener("hashchange", () => show(true));
    show(false);
  }

  document.addEventListener("DOMContentLoaded", () => { theme(); filters(); copying(); live(); sections(); });
})();
