// The table of programs: all rows sorted and searched here, and only those made that are in sight. It sorts, searches and
// writes numbers as table.py and formats.py do; without it the server's links and forms do the same.
(() => {
  "use strict";
  const NONE = "–", SPARE = 12, DOUBLINGS = 1.5;

  const grouped = (value, digits) => value.toFixed(digits).replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
  const FORMATS = {
    us: (v) => Math.abs(v) < 1e3 ? `${v.toFixed(1)} µs` : Math.abs(v) < 1e6 ? `${grouped(v / 1e3, 2)} ms` : `${grouped(v / 1e6, 2)} s`,
    times: (v) => v >= 1e6 ? "> 999,999×" : v >= 1000 ? `${grouped(v, 0)}×` : v > 0 && v < 0.01 ? `${v.toFixed(4)}×` : `${v.toFixed(2)}×`,
    percent: (v) => v >= 100 ? "> 9,999 %" : `${grouped(v * 100, v !== 0 && Math.abs(v) < 0.001 ? 2 : 1)} %`,
    count: (v) => grouped(v, 0),
    bytes: (v) => {
      if (Math.abs(v) < 1024) return `${grouped(v, 0)} B`;
      let [unit, size] = [0, v];
      while (Math.abs(size) >= 1024 && unit < 4) { size /= 1024; unit += 1; }
      return `${grouped(size, 1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
    },
    seconds: (v) => {
      if (Math.abs(v) >= 3.6e9) return v > 0 ? "> 999,999 h" : "< -999,999 h";
      const [, scale, unit, digits] = [[1e-3, 1e6, "µs", 0], [1, 1e3, "ms", 0], [120, 1, "s", 1], [7200.5, 1 / 60, "min", 0], [Infinity, 1 / 3600, "h", 1]]
        .find(([limit]) => Math.abs(v) < limit);
      return `${grouped(v * scale, digits)} ${unit}`;
    },
    when: (v) => v.slice(0, 16).replace("T", " "),
  };

  const held = (cell) => cell !== null && cell !== "";
  const sortKey = (cell) => typeof cell === "number" ? cell : String(cell).toLowerCase().replace(/[0-9]+/g, (digits) => digits.padStart(20, "0"));
  const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;

  function ordered(rows, place, descending) {
    const [full, empty] = [[], []];
    for (const row of rows) (held(row[place]) ? full : empty).push(row);
    const keys = new Map(full.map((row) => [row, sortKey(row[place])]));
    const sign = descending ? -1 : 1;
    full.sort((a, b) => sign * compare(keys.get(a), keys.get(b)));
    return full.concat(empty);
  }

  function element(name, attributes = {}, ...children) {
    const svg = ["svg", "rect"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const onBar = (ratio) => 50 + 50 * Math.min(1, Math.max(-1, (ratio > 0 ? Math.log2(ratio) : -DOUBLINGS) / DOUBLINGS));

  function bar(ratio, noise, verdict) {
    if (ratio === null) return "";
    const [end, band] = [onBar(ratio), onBar(1 + (noise ?? 0)) - 50];
    return element("svg", { class: `bar ${verdict ?? "none"}`, viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      element("rect", { class: "band", x: (50 - band).toFixed(2), y: 0, width: (2 * band).toFixed(2), height: 10 }),
      element("rect", { class: "fill", x: Math.min(50, end).toFixed(2), y: 2, width: Math.abs(end - 50).toFixed(2), height: 6 }),
      element("rect", { class: "one", x: 49.6, y: 0, width: 0.8, height: 10 }));
  }

  class Table {
    constructor(box) {
      this.box = box;
      this.body = box.querySelector("tbody");
      this.form = document.querySelector("form[data-search]");
      this.field = this.form.elements.q;
      this.exported = !box.dataset.url;
      this.heads = [...box.querySelectorAll("th[data-column]")];
      this.places = new Map(this.heads.map((head, place) => [head.dataset.column, place]));
      this.searchedPlaces = box.dataset.searched.split(" ").map(Number);
      this.state = { sort: box.dataset.sort, order: box.dataset.order, q: this.field.value };
      this.active = 0;
      this.sections = new Set([...document.querySelectorAll("section.view")].map((view) => view.id));
    }

    async start() {
      const inside = document.querySelector("script[data-rows]");
      const found = inside ? JSON.parse(inside.textContent) : await (await fetch(this.box.dataset.url)).json();
      this.columns = found.columns;
      this.rows = found.rows;
      this.texts = this.rows.map((row) => this.searchedPlaces.map((place) => row[place] ?? "").join("\n").toLowerCase());
      this.height = this.body.rows[0]?.offsetHeight || 31;
      document.querySelector("[data-pager]")?.remove();
      this.listen();
      this.apply(false);
      this.box.dataset.ready = "yes";
    }

    listen() {
      this.form.dataset.handled = "yes";
      let waiting = 0;
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.field.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => { this.state.q = this.field.value; this.apply(true, false); }, 60);
      });
      this.box.querySelector("thead").addEventListener("click", (event) => this.clicked(event));
      this.box.querySelector("thead").addEventListener("keydown", (event) => { if (event.key === " ") this.clicked(event); });
      this.box.addEventListener("scroll", () => { this.drawing ??= requestAnimationFrame(() => { this.drawing = null; this.draw(); }); });
      this.box.addEventListener("keydown", (event) => this.moved(event));
      this.body.addEventListener("focusin", (event) => { this.activate(Number(event.target.closest("tr").dataset.place), false); });
      addEventListener("popstate", () => this.remembered());
      addEventListener("resize", () => this.draw());
      document.addEventListener("fuseplan:shown", () => this.draw());
      for (const link of document.querySelectorAll("[data-download]")) {
        if (this.exported) link.addEventListener("click", (event) => { event.preventDefault(); this.save(link.dataset.download); });
      }
    }

    clicked(event) {
      const link = event.target.closest("[data-sort-by]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const sort = link.dataset.sortBy;
      const numeric = link.closest("th").classList.contains("right");
      this.state.order = sort === this.state.sort ? (this.state.order === "down" ? "up" : "down") : numeric ? "down" : "up";
      this.state.sort = sort;
      this.apply(true, true);
    }

    remembered() {
      if (this.exported) return;
      const asked = new URLSearchParams(location.search);
      this.state = { sort: asked.get("sort") || this.box.dataset.sort, order: asked.get("order") || this.box.dataset.order, q: asked.get("q") || "" };
      this.field.value = this.state.q;
      this.apply(false);
    }

    // The address says what is shown; a new order is a step in the history, a letter typed is none.
    write(step) {
      if (this.exported) return;
      const asked = new URLSearchParams(location.search);
      asked.delete("page");
      for (const [name, value] of Object.entries(this.state)) { if (value) asked.set(name, value); else asked.delete(name); }
      asked.sort();
      history[step ? "pushState" : "replaceState"](null, "", `${location.pathname}?${asked}`);
    }

    apply(write, step = false) {
      const words = this.state.q.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = (_, place) => words.every((word) => this.texts[place].includes(word));
      const chosen = words.length ? this.rows.filter(fits) : this.rows;
      this.shown = ordered(chosen, this.places.get(this.state.sort), this.state.order === "down");
      if (write) this.write(step);
      this.active = 0;
      this.box.scrollTop = 0;
      this.head();
      this.draw(true);
    }

    head() {
      for (const head of this.heads) {
        if (head.dataset.column === this.state.sort) head.setAttribute("aria-sort", this.state.order === "down" ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      }
      this.box.querySelector("table").setAttribute("aria-rowcount", this.shown.length + 1);
      document.querySelector("[data-count]").textContent = `${FORMATS.count(this.shown.length)} of ${FORMATS.count(this.rows.length)}`;
      if (this.exported) return;
      for (const link of document.querySelectorAll("[data-download]")) {
        const url = new URL(link.href);
        for (const [name, value] of Object.entries(this.state)) { if (value) url.searchParams.set(name, value); else url.searchParams.delete(name); }
        link.href = url.href;
      }
    }

    // Rows in sight and a few more; what lies above and below is two rows of the height that they would take.
    draw(anew = false) {
      const first = Math.max(0, Math.floor(this.box.scrollTop / this.height) - SPARE);
      const last = Math.min(this.shown.length, first + Math.ceil((this.box.clientHeight || 600) / this.height) + 2 * SPARE);
      if (!anew && first === this.first && last === this.last) return;
      const focused = this.body.contains(document.activeElement);
      [this.first, this.last] = [first, last];
      const made = [this.space(first)];
      for (let place = first; place < last; place += 1) made.push(this.row(place));
      made.push(this.space(this.shown.length - last));
      this.body.replaceChildren(...made);
      if (focused) this.target(this.active)?.focus({ preventScroll: true });
    }

    space(rows) {
      const cell = element("td", { colspan: this.columns.length });
      cell.style.height = `${rows * this.height}px`;
      const made = element("tr", { class: "space", "aria-hidden": "true" }, cell);
      made.hidden = rows === 0;
      return made;
    }

    row(place) {
      const row = this.shown[place];
      const made = element("tr", { "aria-rowindex": place + 2, "data-place": place });
      if (place === this.active) made.className = "active";
      this.columns.forEach((column, index) => made.append(this.cell(column, row[index], row, place)));
      return made;
    }

    cell(column, value, row, place) {
      const badge = (word) => element("span", { class: `badge ${word.split(" ")[0]}` }, word);
      if (column.kind === "link") {
        const key = row[Number(this.box.dataset.key)];
        const href = this.exported ? (this.sections.has(`program-${key}`) ? `#program-${key}` : "") : this.box.dataset.link.replace("KEY", key);
        const focusable = { tabindex: place === this.active ? 0 : -1 };
        const inner = href ? element("a", { href, ...focusable }, value) : element("span", focusable, value);
        return element("th", { scope: "row", class: "name pin", title: value }, element("bdi", {}, inner));
      }
      if (column.kind === "verdict") return element("td", {}, value ? badge(value) : NONE);
      if (column.kind === "standing") return element("td", {}, badge(value));
      if (column.kind === "text") return element("td", {}, element("bdi", {}, value ?? NONE));
      const text = value === null ? NONE : FORMATS[column.kind](value);
      if (column.id === "speedup") {
        const noise = row[this.places.get("noise")], verdict = row[this.places.get("verdict")];
        return element("td", { class: "right speedup" }, bar(value, noise, verdict), element("span", {}, text));
      }
      return element("td", column.kind === "when" ? {} : { class: "right" }, text);
    }

    target(place) {
      return this.body.querySelector(`tr[data-place="${place}"] th [tabindex]`);
    }

    activate(place, focus) {
      const before = this.target(this.active);
      before?.setAttribute("tabindex", -1);
      before?.closest("tr").classList.remove("active");
      this.active = place;
      if (focus) {
        const [top, head] = [place * this.height, this.box.querySelector("thead").offsetHeight];
        if (top < this.box.scrollTop) this.box.scrollTop = top;
        else if (top + this.height > this.box.scrollTop + this.box.clientHeight - head) this.box.scrollTop = top + this.height + head - this.box.clientHeight;
        this.draw();
      }
      const target = this.target(place);
      target?.setAttribute("tabindex", 0);
      target?.closest("tr").classList.add("active");
      if (focus) target?.focus({ preventScroll: true });
    }

    moved(event) {
      if (event.target.closest("thead") || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, Math.floor(this.box.clientHeight / this.height) - 2);
      const started = this.body.contains(document.activeElement);
      const to = {
        ArrowDown: started ? this.active + 1 : this.active, ArrowUp: this.active - 1, PageDown: this.active + page, PageUp: this.active - page,
        Home: 0, End: this.shown.length - 1,
      }[event.key];
      if (to === undefined || !this.shown.length) return;
      event.preventDefault();
      this.activate(Math.min(this.shown.length - 1, Math.max(0, to)), true);
    }

    save(ending) {
      const text = ending === "csv" ? this.csv() : JSON.stringify({ columns: this.columns, rows: this.shown });
      const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: ending === "csv" ? "text/csv" : "application/json" })), download: `programs.${ending}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    csv() {
      const safe = (cell) => typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell ?? "";
      const quoted = (cell) => /[",\r\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell);
      const lines = [this.columns.map((column) => column.id), ...this.shown.map((row) => row.map(safe))];
      return lines.map((line) => `${line.map(quoted).join(",")}\r\n`).join("");
    }
  }

  addEventListener("DOMContentLoaded", () => {
    const box = document.querySelector("[data-table]");
    if (box) new Table(box).start().catch(() => { box.dataset.ready = "no"; });
  });
})();
