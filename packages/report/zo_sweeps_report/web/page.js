/* The parts of a page that need a script: the theme switch, sortable tables, and the chart of training curves. */
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const element = (tag, values = {}, text = "") => {
    const made = Object.assign(document.createElement(tag), values);
    if (text) made.textContent = text; // never as HTML: labels and ids are data
    return made;
  };
  document.querySelectorAll(".interactive").forEach((one) => (one.hidden = false));

  /* Theme. A page without storage (a sandboxed frame) keeps the system's. */
  const root = document.documentElement, KEY = "zo-sweeps-theme";
  const themed = [];
  const setTheme = (name) => {
    if (name) root.dataset.theme = name;
    else delete root.dataset.theme;
    themed.forEach((redraw) => redraw());
  };
  let stored = "";
  try { stored = localStorage.getItem(KEY) || ""; } catch { /* not allowed here */ }
  $("theme").value = stored;
  setTheme($("theme").value);
  $("theme").addEventListener("change", () => {
    try { localStorage.setItem(KEY, $("theme").value); } catch { /* not allowed here */ }
    setTheme($("theme").value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme($("theme").value));

  /* Tables: a button in each heading; a click sorts, another one reverses, a third restores the order. */
  const value = (cell) => {
    if (cell === undefined) return null;
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim();
    return text === "" ? null : Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  };
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
  const sortable = (table) => {
    const body = table.tBodies[0], order = [...body.rows], headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      if (heading.tagName !== "TH") return;
      const button = element("button", { type: "button" });
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const state = NEXT[heading.getAttribute("aria-sort")];
        headings.forEach((one) => one.tagName === "TH" && one.setAttribute("aria-sort", "none"));
        heading.setAttribute("aria-sort", state);
        const sign = state === "descending" ? -1 : 1, rows = [...order];
        if (state !== "none") rows.sort((a, b) => {
          const [one, two] = [value(a.cells[column]), value(b.cells[column])];
          return one === null || two === null ? compare(one, two) : sign * compare(one, two); // empty cells stay last
        });
        body.append(...rows);
      });
    });
  };
  document.querySelectorAll("table.sortable").forEach(sortable);

  /* Paired differences: every row minus the one that is chosen, from the pairs of all rows. */
  const against = $("against"), forests = [...document.querySelectorAll(".differences")].map((section) =>
    [section.querySelector("table"), JSON.parse(section.querySelector("script").textContent)]);
  const signed = (number, digits) => `${Number(number.toFixed(digits)) === 0 ? "" : number < 0 ? "−" : "+"}${Math.abs(number).toFixed(digits)}`;
  const forest = (table, { rows, digits, pairs }) => {
    const chosen = rows.indexOf(against.value), body = table.tBodies[0], [pattern] = body.rows;
    if (chosen < 0) return; // it is no row of this table
    const turn = (end) => (end === null ? null : -end);
    const mine = pairs.flatMap(([row, other, n, mean, low, high, clear, ours, theirs]) => other === chosen ? [{ row, n, mean, low, high, clear, words: ours }]
      : row === chosen ? [{ row: other, n, mean: turn(mean), low: turn(high), high: turn(low), clear, words: theirs }] : []).sort((a, b) => a.row - b.row);
    const ends = [0, ...mine.flatMap((one) => [one.low, one.mean, one.high]).filter((end) => end !== null)], least = Math.min(...ends);
    const at = (number) => 4 + (192 * (number - least)) / (Math.max(...ends) - least || 1);
    table.tHead.rows[0].cells[0].textContent = `row − ${against.value}`;
    body.replaceChildren(...mine.map(({ row, n, mean, low, high, clear, words }) => {
      const made = pattern.cloneNode(true), [zero, line] = made.querySelectorAll("path"), interval = low === null ? "" : `[${signed(low, digits)}, ${signed(high, digits)}]`;
      made.className = clear ? "clear" : "";
      zero.setAttribute("d", `M${at(0)} 0V20`);
      line.setAttribute("d", low === null ? "" : `M${at(low)} 10H${at(high)}`);
      made.querySelector("circle").setAttribute("cx", at(mean));
      made.querySelector("b").textContent = signed(mean, digits);
      const texts = [rows[row], null, null, interval, n, words];
      [...made.cells].forEach((cell, i) => { if (texts[i] !== null) cell.textContent = texts[i]; });
      return made;
    }));
  };
  if (against) {
    [...new Set(forests.flatMap(([, { rows }]) => rows))].forEach((label) => against.append(element("option", { value: label }, label)));
    against.value = forests[0][1].against;
    against.addEventListener("change", () => forests.forEach(([table, data]) => forest(table, data)));
  }

  /* Curves. */
  const source = $("curve-data");
  if (!source || typeof uPlot === "undefined") return;
  const data = JSON.parse(source.textContent);
  const fallback = document.querySelectorAll("#curves .fallback");
  fallback.forEach((one) => (one.hidden = true)); // drawn again in print, where the chart is not
  const plot = $("curve-plot"), dot = element("div", { className: "dot", hidden: true }), tip = element("div", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  const pickers = { y: $("curve-y"), x: $("curve-x"), column: $("curve-column") };
  data.y.forEach((one) => pickers.y.append(element("option", { value: one.key }, one.label)));
  data.x.forEach((one) => pickers.x.append(element("option", { value: one.key }, one.label)));
  data.columns.forEach((label, i) => pickers.column.append(element("option", { value: i }, label)));
  pickers.column.parentElement.hidden = data.columns.length < 2;
  const WHOLE = [...Array(16).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power)); // there are no halves of steps
  const COLORS = 8, DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]], BORDERS = ["solid", "dashed", "dotted", "double"];
  const probe = element("span", { hidden: true });
  document.body.append(probe);
  const color = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const boxes = data.rows.map((row, i) => {
    const box = element("input", { type: "checkbox", checked: row.shown, id: `curve-row-${i}` });
    const label = element("label", { htmlFor: box.id }), swatch = element("span", { className: "swatch" });
    swatch.style.borderTopColor = `var(--series-${i % COLORS})`;
    swatch.style.borderTopStyle = BORDERS[Math.floor(i / COLORS) % BORDERS.length];
    label.append(box, swatch, element("span", {}, row.label));
    $("curve-rows").append(label);
    box.addEventListener("change", draw);
    return box;
  });
  document.querySelectorAll("[data-pick]").forEach((button) =>
    button.addEventListener("click", () => {
      boxes.forEach((box) => (box.checked = button.dataset.pick === "all"));
      draw();
    }));

  const clean = (number) => Number(number.toPrecision(5)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  const of = (run, y, x) => {
    const [steps, seconds, values] = run.curves[y] || [[], [], []];
    const xs = x === "step" ? steps : x === "seconds" ? seconds : steps.map((step) => step * run.forwards);
    const kept = xs.map((_, i) => i).filter((i) => values[i] !== null);
    return { xs: kept.map((i) => xs[i]), ys: kept.map((i) => values[i]), steps: kept.map((i) => steps[i]) };
  };
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const spread = (values) => Math.sqrt(values.reduce((a, b) => a + (b - mean(values)) ** 2, 0) / (values.length - 1));

  /* The lines that are drawn: every run of a chosen row, and where there are several, their mean at their common steps. */
  const lines = () => {
    const made = [], [y, x, column] = [pickers.y.value, pickers.x.value, Number(pickers.column.value)];
    data.rows.forEach((row, i) => {
      const part = row.parts.find((one) => one.column === column);
      if (!boxes[i].checked || !part) return;
      const style = { row: row.label, setting: part.setting, color: `--series-${i % COLORS}`, dash: DASHES[Math.floor(i / COLORS) % DASHES.length] };
      const runs = part.runs.map((run) => ({ ...style, ...of(run, y, x), name: `seed ${run.seed}`, id: run.id, thin: part.runs.length > 1 })).filter((run) => run.xs.length);
      made.push(...runs);
      if (runs.length < 2) return;
      const common = runs[0].steps.filter((step) => runs.every((run) => run.steps.includes(step)));
      const at = common.map((step) => runs.map((run) => run.steps.indexOf(step)));
      const values = at.map((places) => places.map((place, k) => runs[k].ys[place]));
      made.push({ ...style, name: `mean of ${runs.length} seeds`, id: "", thin: false, steps: common, ys: values.map(mean), spreads: values.map(spread),
        xs: at.map((places) => mean(places.map((place, k) => runs[k].xs[place]))) });
    });
    return made;
  };

  let chart = null, shown = [], at = null;
  const place = (line, i) => [chart.valToPos(line.xs[i], "x"), chart.valToPos(line.ys[i], "y")];
  const tell = (point) => {
    at = point;
    tip.hidden = dot.hidden = !point;
    if (!point) return;
    const line = shown[point.line], i = point.i, labels = { x: pickers.x.selectedOptions[0].text, y: pickers.y.selectedOptions[0].text };
    const deviation = line.spreads && Number.isFinite(line.spreads[i]) ? ` ± ${clean(line.spreads[i])}` : "";
    tip.replaceChildren(element("b", {}, line.row), element("span", {}, [line.name, line.id && `trial ${line.id}`, line.setting].filter(Boolean).join(" · ")),
      element("span", {}, `${labels.y}: ${clean(line.ys[i])}${deviation}`), element("span", {}, `${labels.x}: ${clean(line.xs[i])}`));
    const [left, top] = place(line, i), over = chart.over;
    dot.style.left = `${left}px`;
    dot.style.top = `${top}px`;
    dot.style.borderColor = `var(${line.color})`;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${left + 14 + width > over.clientWidth ? Math.max(-over.offsetLeft, left - 14 - width) : left + 14}px`;
    tip.style.top = `${Math.max(0, Math.min(top - height / 2, over.clientHeight - height))}px`;
  };
  const nearest = (left, top) => {
    let best = null, least = Infinity;
    shown.forEach((line, k) => line.xs.forEach((_, i) => {
      const [x, y] = place(line, i), distance = (x - left) ** 2 + (y - top) ** 2;
      if (distance < least) [best, least] = [{ line: k, i }, distance];
    }));
    return best;
  };
  function draw() {
    if (chart) chart.destroy();
    at = null;
    shown = lines();
    const dark = (name) => color(name), font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const axis = (label) => ({ label, stroke: dark("--quiet"), font, labelFont: font, labelGap: 6, grid: { stroke: dark("--line"), width: 1 }, ticks: { stroke: dark("--line"), width: 1 },
      values: (_, splits) => splits.map((one) => (one === null ? "" : clean(one))) });
    const joined = shown.length ? uPlot.join(shown.map((line) => [line.xs, line.ys])) : [[]];
    const series = shown.map((line) => {
      const stroke = dark(line.color);
      return { stroke, width: line.thin ? 1 : 2.4, dash: line.dash, alpha: line.thin ? 0.45 : 1, spanGaps: true, points: { show: !line.thin && line.xs.length <= 25, size: 6, fill: stroke, stroke } };
    });
    const width = plot.clientWidth, height = Math.max(280, Math.min(440, Math.round(width * 0.6)));
    chart = new uPlot({
      width, height, legend: { show: false }, padding: [10, 14, 0, 0],
      scales: { x: { time: false }, y: { range: (u, low, high) => (low === null ? [0, 1] : uPlot.rangeNum(low, high, 0.08, true)) } },
      cursor: { points: { show: false }, y: false, x: false, drag: { x: true, y: false, setScale: true } },
      series: [{}, ...series],
      axes: [{ ...axis(pickers.x.selectedOptions[0].text), space: 60, size: 38, ...(pickers.x.value === "seconds" ? {} : { incrs: WHOLE }) }, { ...axis(pickers.y.selectedOptions[0].text), size: 58 }],
      hooks: { setCursor: [(u) => tell(u.cursor.left >= 0 ? nearest(u.cursor.left, u.cursor.top) : null)],
        setScale: [(u, key) => { if (key === "x" && shown.length) $("curve-reset").hidden = u.scales.x.min <= u.data[0][0] && u.scales.x.max >= u.data[0][u.data[0].length - 1]; }] },
    }, joined, plot);
    chart.over.append(dot, tip);
    tip.hidden = dot.hidden = true;
    chart.root.querySelector("canvas").setAttribute("aria-hidden", "true");
  }
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") tell(null);
    if (!move || !shown.length) return;
    event.preventDefault();
    const line = at ? (at.line + move[0] + shown.length) % shown.length : shown.length - 1;
    const last = shown[line].xs.length - 1;
    tell({ line, i: at ? Math.max(0, Math.min(last, at.i + move[1])) : 0 });
  });
  $("curve-reset").addEventListener("click", draw);
  Object.values(pickers).forEach((one) => one.addEventListener("change", draw));
  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth !== width) {
      width = plot.clientWidth;
      draw();
    }
  }).observe(plot);
  themed.push(draw);
})();
