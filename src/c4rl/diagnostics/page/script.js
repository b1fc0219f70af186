"use strict";
// Draws every figure of the page from the numbers in #plots. No library and no request.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  for (const plot of plots) for (const s of plot.series) s.x = plot.xs[s.x];
  const SVG = "http://www.w3.org/2000/svg", COLOURS = 8, SHOWN = 8, AT_ONCE = 4;
  // lines differ in grey too; past the eighth, dashes move on by one
  const DASHES = ["none", "7 3", "2 2", "7 2 2 2", "12 4", "4 2", "12 3 2 3", "7 2 2 2 2 2"];
  const dash = i => DASHES[(i + Math.floor(i / COLOURS)) % DASHES.length];
  const make = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  };
  const short = v => {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return v.toExponential(2);
    if (size >= 1000) return Math.round(v).toLocaleString("en");
    return String(Number(v.toPrecision(4)));
  };
  const niceTicks = (low, high, count) => {
    const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw * .7);
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
    return out;
  };
  const logTicks = (low, high) => {
    const out = [], wide = Math.log10(high / low) > 6 ? 3 : 1;
    for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e += wide) out.push(10 ** e);
    if (out.length < 2) return niceTicks(low, high, 4).filter(v => v > 0);
    return out;
  };
  const scale = (values, log, from, to, zero) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
    if (low > high) { low = log ? 1 : 0; high = log ? 10 : 1; }
    if (zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
    if (low === high) { const by = log ? 0 : Math.abs(low) * .1 || 1; low -= by; high += by; if (log) { low /= 2; high *= 2; } }
    const f = log ? Math.log10 : v => v, a = f(low), b = f(high);
    const at = v => v === null || (log && v <= 0) ? null : from + (f(v) - a) / (b - a) * (to - from);
    const room = to < from ? 35 : Math.max(35, 7 * short(high).length + 8);  // upwards, and for the words of a horizontal axis
    at.ticks = log ? logTicks(low, high) : niceTicks(low, high, Math.max(2, .7 * Math.abs(to - from) / room));
    return at;
  };

  function setUp(figure) {
    const plot = plots[Number(figure.dataset.plot)];
    const on = plot.series.map((_, i) => i < SHOWN);
    const colour = i => `var(--c${(plot.series[i].colour ?? i) % COLOURS})`;
    let cursor = -1;
    const readout = figure.querySelector(".readout"), legend = figure.querySelector(".legend");
    const svg = make("svg", {tabindex: 0, role: "img", "aria-label": plot.label});
    readout.before(svg);
    const xs = [...new Set(plot.series.flatMap(s => s.x))].sort((a, b) => a - b);
    let x, y;

    function draw() {
      const width = Math.max(260, svg.clientWidth || figure.clientWidth - 24), height = Math.round(Math.min(320, Math.max(200, width * .5)));
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      svg.style.height = height + "px";
      svg.replaceChildren();
      const left = 56, right = width - 10, top = 8, bottom = height - 38;
      const shown = plot.series.filter((_, i) => on[i]);
      const margin = plot.kind === "bars" ? (right - left) / xs.length / 2 : 4;
      x = scale(xs.concat(plot.marks.map(m => m.x)), plot.log_x, left + margin, right - margin);
      y = scale(shown.flatMap(s => s.y.concat(s.low || [], s.high || [])), plot.log_y, bottom, top, plot.kind === "bars");
      for (const v of y.ticks) {
        const at = y(v);
        make("line", {class: "grid", x1: left, x2: right, y1: at, y2: at}, svg);
        make("text", {x: left - 6, y: at + 4, "text-anchor": "end"}, svg).textContent = short(v);
      }
      let last = -Infinity;
      for (const v of plot.kind === "bars" ? xs : x.ticks) {
        const at = x(v), word = plot.names ? plot.names[v] || "" : short(v);
        if (at - last < 7 * word.length + 8) continue;
        last = at;
        const half = 3.5 * word.length, inside = Math.min(at, width - half - 2);  // the last word must not leave the plot
        make("text", {x: inside, y: bottom + 16, "text-anchor": "middle"}, svg).textContent = word;
      }
      make("text", {x: (left + right) / 2, y: height - 6, "text-anchor": "middle"}, svg).textContent = plot.x_label;
      for (const m of plot.marks) {
        const at = x(m.x);
        make("line", {class: "mark", x1: at, x2: at, y1: top, y2: bottom}, svg);
        const near = at > width * .6;
        make("text", {x: at + (near ? -5 : 5), y: top + 10, "text-anchor": near ? "end" : "start"}, svg).textContent = m.text;
      }
      const many = plot.series.reduce((sum, s) => sum + s.x.length, 0) > 300;
      plot.series.forEach((s, i) => {
        if (!on[i]) return;
        const points = s.x.map((v, j) => [x(v), y(s.y[j])]);
        const path = list => list.reduce((d, [a, b], j) => b === null || a === null ? d : d + `${d && list[j - 1][1] !== null ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`, "");
        if (plot.kind === "bars") {
          const each = Math.max(2, (right - left) / Math.max(xs.length, 1) * .7 / plot.series.length), zero = y(0);
          points.forEach(([a, b]) => b !== null && make("rect", {x: a - each * plot.series.length / 2 + each * i, width: each, y: Math.min(b, zero), height: Math.max(1, Math.abs(b - zero)), fill: colour(i)}, svg));
          if (s.low) s.x.forEach((v, j) => {
            const a = x(v), low = y(s.low[j]), high = y(s.high[j]);
            if (low !== null && high !== null) make("line", {x1: a, x2: a, y1: low, y2: high, class: "whisker"}, svg);
          });
          return;
        }
        if (plot.kind === "points") {
          points.forEach(([a, b]) => b !== null && make("circle", {cx: a.toFixed(1), cy: b.toFixed(1), r: many ? 2 : 3.5, fill: colour(i), "fill-opacity": .75}, svg));
        } else {
          if (s.low) {
            const up = s.x.map((v, j) => [x(v), y(s.high[j])]), down = s.x.map((v, j) => [x(v), y(s.low[j])]).reverse();
            const d = path(up.concat(down).filter(p => p[1] !== null));
            if (d) make("path", {d: d + "Z", fill: colour(i), "fill-opacity": .15}, svg);
          }
          make("path", {d: path(points), fill: "none", stroke: colour(i), "stroke-width": 2, "stroke-dasharray": dash(s.colour ?? i), class: "curve"}, svg);
          if (points.length < 3) points.forEach(([a, b]) => b !== null && make("circle", {cx: a, cy: b, r: 4, fill: colour(i)}, svg));
        }
      });
      if (cursor >= 0) point(cursor);
    }
    function point(index) {
      cursor = Math.max(0, Math.min(xs.length - 1, index));
      svg.querySelectorAll(".cursor, .dot").forEach(n => n.remove());
      const v = xs[cursor], at = x(v);
      if (at === null) return;
      const {height} = svg.viewBox.baseVal;
      make("line", {class: "cursor", x1: at, x2: at, y1: 8, y2: height - 38}, svg);
      const found = [];
      plot.series.forEach((s, i) => {
        const j = s.x.indexOf(v);
        if (!on[i] || j < 0 || s.y[j] === null || y(s.y[j]) === null) return;
        make("circle", {class: "dot", cx: at, cy: y(s.y[j]), r: 4, fill: colour(i)}, svg);
        found.push([s, j]);
      });
      found.sort((a, b) => b[0].y[b[1]] - a[0].y[a[1]]);
      readout.replaceChildren();
      const head = document.createElement("b");
      head.textContent = `${plot.x_label} ${plot.names ? plot.names[v] : short(v)}: `;
      readout.append(head, found.slice(0, 10).map(([s, j]) => `${s.name} ${short(s.y[j])}` + (s.low && s.low[j] !== null ? ` [${short(s.low[j])}, ${short(s.high[j])}]` : "")).join("; ") || "no value", found.length > 10 ? `; and ${found.length - 10} more` : "");
    }
    const follow = event => {
      const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      let best = 0, distance = Infinity;
      xs.forEach((v, i) => { const d = Math.abs((x(v) ?? 1e9) - at); if (d < distance) { distance = d; best = i; } });
      point(best);
    };
    if (plot.kind !== "points") {
      svg.addEventListener("pointermove", follow);
      svg.addEventListener("pointerdown", follow);
      svg.addEventListener("keydown", event => {
        const to = {ArrowRight: cursor + 1, ArrowLeft: cursor - 1, Home: 0, End: xs.length - 1}[event.key];
        if (to === undefined) return;
        event.preventDefault();
        point(to);
      });
    } else svg.setAttribute("tabindex", -1);
    if (plot.kind === "lines" || plot.series.length > 1) plot.series.forEach((s, i) => {
      const button = document.createElement("button"), swatch = make("svg", {viewBox: "0 0 28 4", "aria-hidden": true}, button);
      make("path", {d: "M0 2L28 2", stroke: colour(i), "stroke-width": plot.kind === "lines" ? 2 : 4, "stroke-dasharray": plot.kind === "lines" ? dash(s.colour ?? i) : "none"}, swatch);
      button.append(s.name);
      button.setAttribute("aria-pressed", on[i]);
      button.addEventListener("click", () => { on[i] = !on[i]; button.setAttribute("aria-pressed", on[i]); draw(); });
      legend.append(button);
    });
    draw();
    let drawn = svg.clientWidth;
    new ResizeObserver(() => requestAnimationFrame(() => { if (svg.clientWidth !== drawn) { drawn = svg.clientWidth; draw(); } })).observe(figure);
  }

  // a page of many figures opens at once: those out of sight are drawn when they come near
  const waiting = new Set(document.querySelectorAll("figure[data-plot]"));
  const show = figure => { if (waiting.delete(figure)) { near.unobserve(figure); setUp(figure); } };
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) show(entry.target);
  }, {rootMargin: "600px"});
  [...waiting].forEach((figure, i) => i < AT_ONCE ? show(figure) : near.observe(figure));
  addEventListener("beforeprint", () => waiting.forEach(show));

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
