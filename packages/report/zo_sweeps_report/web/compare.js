/* Two rows of any sweeps side by side. The statistics are those of zo_sweeps/tables/stats.py. */
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const element = (tag, text = "", values = {}) => {
    const made = Object.assign(document.createElement(tag), values);
    if (text) made.textContent = text; // never as HTML: labels are data
    return made;
  };
  const data = JSON.parse($("rows-data").textContent);
  document.querySelectorAll(".fallback").forEach((one) => (one.hidden = true));
  const rows = data.sweeps.flatMap((sweep) => sweep.rows.map((row) => ({ ...row, sweep })));
  const pickers = [$("row-a"), $("row-b")];
  pickers.forEach((picker) => {
    let index = 0;
    data.sweeps.forEach((sweep) => {
      const group = element("optgroup", "", { label: `${sweep.title} (${sweep.grid}, ${sweep.date})` });
      sweep.rows.forEach((row) => group.append(element("option", row.label, { value: index++ })));
      if (sweep.rows.length) picker.append(group);
    });
  });

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const fixed = (number, digits) => number.toFixed(digits).replace("-", "−");
  const signed = (number, digits) => {
    const text = fixed(number, digits);
    return Number(number.toFixed(digits)) === 0 ? fixed(0, digits) : number > 0 ? `+${text}` : text;
  };
  /* P(|X − m/2| ≥ |one − m/2|) of X ~ Binomial(m, 1/2). */
  const mcnemar = (one, other) => {
    const m = one + other;
    let term = -m * Math.LN2, tail = Math.exp(term);
    for (let k = 1; k <= Math.min(one, other); k++) {
      term += Math.log((m - k + 1) / k);
      tail += Math.exp(term);
    }
    return Math.min(1, 2 * tail);
  };
  const shares = (runs) => [...runs[0]].map((_, i) => runs.filter((run) => run[i] === "1").length * 1e6 / runs.length);
  const examples = (a, b) => {
    for (const { rows: digest } of a.right) {
      const [ours, theirs] = [a, b].map((cell) => cell.right.filter((run) => run.rows === digest).map((run) => run.right));
      if (!theirs.length) continue;
      const one = shares(ours), other = shares(theirs);
      const [more, less] = [one.filter((share, i) => share > other[i]).length, one.filter((share, i) => share < other[i]).length];
      const p = mcnemar(more, less);
      return `${more} : ${less} of ${one.length}, p = ${p < 0.001 ? p.toExponential(1) : p.toPrecision(2)}`;
    }
    return "";
  };
  const difference = (a, b) => {
    const seeds = Object.keys(a.seeds).filter((seed) => seed in b.seeds), digits = Math.max(a.digits, b.digits);
    if (!seeds.length) return [signed(mean(Object.values(a.seeds)) - mean(Object.values(b.seeds)), digits), "no common seed"];
    const pairs = seeds.map((seed) => a.seeds[seed] - b.seeds[seed]), middle = mean(pairs);
    const spread = Math.sqrt(pairs.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (pairs.length - 1));
    const flat = pairs.length < 2 || Math.max(...pairs) - Math.min(...pairs) <= 1e-9 * Math.max(...pairs.map(Math.abs));
    const half = flat ? 0 : data.t[Math.min(pairs.length - 1, data.t.length) - 1] * spread / Math.sqrt(pairs.length);
    const interval = flat ? "" : `[${signed(middle - half, digits)}, ${signed(middle + half, digits)}] `;
    return [signed(middle, digits), `${interval}seed${seeds.length > 1 ? "s" : ""} ${seeds.join(", ")}`];
  };
  const cell = (main, below = "") => {
    const made = element("td");
    made.append(element("b", main));
    if (below) made.append(element("span", below));
    return made;
  };
  const show = () => {
    const [a, b] = pickers.map((picker) => rows[Number(picker.value)]), target = $("compared");
    target.replaceChildren();
    if (!a || !b) return target.append(element("p", "No row of any sweep has a result."));
    const table = element("table"), head = element("thead"), body = element("tbody"), line = element("tr");
    ["Measure", `A: ${a.label}`, `B: ${b.label}`, "A − B", "Examples"].forEach((text) => line.append(element("th", text, { scope: "col" })));
    head.append(line);
    table.append(head, body);
    a.cells.forEach((one) => {
      const other = b.cells.find((each) => each.key === one.key);
      if (!other) return;
      const row = element("tr");
      row.append(element("th", `${one.measure[0].toUpperCase()}${one.measure.slice(1)}, ${one.column} (${one.unit})`, { scope: "row" }),
        cell(one.text), cell(other.text), cell(...difference(one, other)), cell(one.right.length && other.right.length ? examples(one, other) || "other rows" : "–"));
      body.append(row);
    });
    const wide = element("div", "", { className: "wide", tabIndex: 0 });
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", "Differences");
    wide.append(table);
    target.append(body.rows.length ? wide : element("p", "These rows have no measure and column in common."));
    [["A", a], ["B", b]].forEach(([letter, row]) => {
      const from = element("p", `${letter}: `, { className: "small" });
      from.append(element("a", row.sweep.title, { href: row.sweep.href }), ` (${row.sweep.grid}, ${row.sweep.date})${row.sweep.caveats.map((text) => `; ${text}`).join("")}`);
      target.append(from);
    });
  };
  /* The address names the two rows, so that a comparison can be linked to; without, the pair with the most in common. */
  const common = (a, b) => a.cells.filter((one) => b.cells.some((other) => other.key === one.key)).length;
  const chosen = () => {
    const named = location.hash.slice(1).split("&").map((id) => rows.findIndex((row) => row.id === decodeURIComponent(id)));
    if (named.length === 2 && !named.includes(-1)) return named;
    let best = [0, Math.min(1, rows.length - 1)], most = 0;
    rows.forEach((a, i) => rows.forEach((b, j) => {
      if (i < j && common(a, b) > most) [best, most] = [[i, j], common(a, b)];
    }));
    return best;
  };
  const choose = () => {
    chosen().forEach((index, i) => (pickers[i].value = index));
    show();
  };
  pickers.forEach((picker) => picker.addEventListener("change", () => {
    history.replaceState(null, "", `#${pickers.map((each) => encodeURIComponent(rows[Number(each.value)].id)).join("&")}`);
    show();
  }));
  addEventListener("hashchange", choose);
  choose();
})();
