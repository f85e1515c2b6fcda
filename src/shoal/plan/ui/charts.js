// Small SVG charts. Everything that is text goes in as text, never as markup.
"use strict";
(function (root) {
  const NS = "http://www.w3.org/2000/svg";
  const COLORS = ["#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#be123c"];

  function add(parent, name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }
  function canvas(host, width, height, label) {
    host.replaceChildren();
    const svg = add(host, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    return svg;
  }
  // One bar of parts against limits drawn as lines: parts [name, value], limits [name, value].
  function fill(host, parts, limits, format) {
    const width = 380, most = Math.max(...limits.map((l) => l[1]), parts.reduce((s, p) => s + p[1], 0));
    const svg = canvas(host, width, 96, "memory");
    let at = 0;
    parts.forEach(([name, value], n) => {
      const w = value / most * width;
      add(svg, "rect", { x: at, y: 26, width: Math.max(w, 0.5), height: 30, fill: COLORS[n] });
      add(svg, "rect", { x: n * 175, y: 74, width: 10, height: 10, fill: COLORS[n] });
      add(svg, "text", { x: n * 175 + 15, y: 84 }, `${name} ${format(value)}`);
      at += w;
    });
    limits.forEach(([name, value]) => {
      const x = Math.min(value / most * width, width - 1);
      add(svg, "line", { x1: x, x2: x, y1: 18, y2: 62, stroke: "currentColor", "stroke-width": 2 });
      add(svg, "text", { x: Math.max(x, 60), y: 13, "text-anchor": "end" }, name);
    });
  }
  // Lines: series [{name, points: [[x, y], …]}], a mark [x, y] or null; logarithmic axes if `log`.
  function lines(host, series, options) {
    const width = options.width || 560, height = 240, left = 52, bottom = 34, top = 10, right = 10;
    const points = series.flatMap((s) => s.points).filter(([x, y]) => !options.log || (x > 0 && y > 0));
    if (!points.length) { host.replaceChildren(); return; }
    const scale = options.log ? Math.log : (v) => v;
    const range = (values, floor) => {
      let low = floor !== undefined ? floor : Math.min(...values), high = Math.max(...values);
      if (options.log && high / low < 1.5) { low /= 1.5; high *= 1.5; }
      return [low, high > low ? high : low + 1];
    };
    const [x0, x1] = range(points.map((p) => p[0]));
    const [y0, y1] = range(points.map((p) => p[1]), options.log ? undefined : 0);
    const px = (x) => left + (scale(x) - scale(x0)) / (scale(x1) - scale(x0)) * (width - left - right);
    const py = (y) => height - bottom - (scale(y) - scale(y0)) / (scale(y1) - scale(y0)) * (height - top - bottom);
    const svg = canvas(host, width, height, options.title);
    for (let i = 0; i <= 4; i++) {
      const fx = options.log ? x0 * (x1 / x0) ** (i / 4) : x0 + (x1 - x0) * i / 4;
      const fy = options.log ? y0 * (y1 / y0) ** (i / 4) : y0 + (y1 - y0) * i / 4;
      add(svg, "line", { x1: left, x2: width - right, y1: py(fy), y2: py(fy), class: "line" });
      add(svg, "text", { x: px(fx), y: height - bottom + 14, "text-anchor": i === 4 ? "end" : "middle" }, options.x(fx));
      add(svg, "text", { x: left - 5, y: py(fy) + 4, "text-anchor": "end" }, options.y(fy));
    }
    add(svg, "text", { x: (width + left) / 2, y: height - 4, "text-anchor": "middle" }, options.xName);
    series.forEach((one, n) => {
      const path = one.points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" ");
      add(svg, "polyline", { points: path, fill: "none", stroke: COLORS[n % COLORS.length], "stroke-width": 2 });
    });
    if (options.mark) add(svg, "circle", { cx: px(options.mark[0]), cy: py(options.mark[1]), r: 5, fill: COLORS[1] });
    if (series.length > 1) {
      const legend = document.createElement("p");
      legend.className = "note";
      series.forEach((one, n) => {
        const key = document.createElement("span");
        key.style.color = COLORS[n % COLORS.length];
        key.textContent = `● ${one.name}  `;
        legend.append(key);
      });
      host.append(legend);
    }
  }
  root.charts = { fill, lines };
})(window);
