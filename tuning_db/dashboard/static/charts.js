// Draws charts with Plotly, which is fetched, or unpacked in a page that was exported, only when one comes into sight: the page is read
// before that.
(() => {
  "use strict";
  let loading = null;
  const fetched = () => new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = document.body.dataset.plotly;
    script.addEventListener("load", done);
    script.addEventListener("error", failed);
    document.head.append(script);
  });
  async function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed.textContent), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script); // runs at once
    packed.remove();
  }
  const plotly = () => {
    const packed = document.getElementById("plotly");
    loading ??= (packed ? unpacked(packed) : fetched()).then(() => window.Plotly);
    return loading;
  };

  // Colours are named as CSS variables, so that one chart fits light and dark.
  function coloured(value, style) {
    if (typeof value === "string") return value.replace(/var\((--[a-z0-9-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one, style)]));
    }
    return value;
  }

  function layout(own, height) {
    const axis = { gridcolor: "var(--line)", zerolinecolor: "var(--line)", linecolor: "var(--line)", tickfont: { color: "var(--muted)" }, automargin: true, fixedrange: true };
    const titled = (one) => ({ ...axis, ...one, title: { ...one?.title, font: { size: 12, color: "var(--muted)" } } });
    const axes = Object.fromEntries(Object.keys(own).filter((key) => /^[xy]axis\d*$/.test(key)).map((key) => [key, titled(own[key])]));
    return {
      font: { family: "system-ui, sans-serif", size: 12, color: "var(--text)" }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 52, r: 12, t: 8, b: 44 }, height, autosize: true, dragmode: false, hovermode: "closest",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: "var(--text)" } },
      hoverlabel: { bgcolor: "var(--card)", bordercolor: "var(--line)", font: { color: "var(--text)" } },
      xaxis: axis, yaxis: axis, ...own, ...axes,
    };
  }

  async function draw(place) {
    const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    const library = await plotly();
    const style = getComputedStyle(document.documentElement);
    const shown = coloured({ traces: figure.traces, layout: layout(figure.layout, Number(place.dataset.height)) }, style);
    await library.react(place, shown.traces, shown.layout, { displayModeBar: false, responsive: true });
    place.dataset.drawn = "yes";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target).catch(() => { entry.target.dataset.drawn = "no"; });
    }
  }, { rootMargin: "200px" });

  const find = () => {
    for (const place of document.querySelectorAll(".plot:not([data-drawn]):not([data-seen])")) { place.dataset.seen = "yes"; seen.observe(place); }
  };
  document.addEventListener("fuseplan:shown", find);
  document.addEventListener("fuseplan:theme", () => { for (const place of document.querySelectorAll(".plot[data-drawn=yes]")) draw(place); });
  // After the first paint, and after what matters more.
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(find)));
})();
