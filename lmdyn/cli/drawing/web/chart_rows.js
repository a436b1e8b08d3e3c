"use strict";
// What a chart draws: numbers as texts and places, and the lines that the rows of observers make.
const chartRows = (() => {
  const unique = (values) => [...new Set(values)];
  const known = (value) => value !== null && value !== undefined;

  // ------------------------------------------------------------------ numbers

  const shortCount = (n) => {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
      if (Math.abs(n) >= size) return `${+(n / size).toPrecision(3)}${unit}`;
    return `${+n.toPrecision(3)}`;
  };
  const shortValue = (v) => {
    if (v === 0) return "0";
    const size = Math.abs(v);
    return size < 1e-4 || size >= 1e5 ? v.toExponential(2).replace(/\.?0+e/, "e") : `${+v.toPrecision(4)}`;
  };
  const niceTicks = (low, high, n) => {
    let ticks = [];
    for (let more = n; ticks.length < 3 && more < n + 6; more++) {
      const raw = (high - low) / Math.max(more, 1);
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
      ticks = [];
      for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(+(i * step).toPrecision(12));
    }
    return ticks;
  };
  // logarithmic from the first positive value on, linear below it: step 0 is shown
  const scaleOf = (kind, values, from, to) => {
    const low = Math.min(...values), high = Math.max(...values);
    const first = Math.min(...values.filter((v) => v > 0));
    const bend = (v) => (kind === "log" && Number.isFinite(first) ? (v <= first ? (0.4 * v) / first : 0.4 + Math.log10(v / first)) : v);
    const [a, b] = [bend(low), bend(high)];
    const place = (v) => (b === a ? (from + to) / 2 : from + ((bend(v) - a) / (b - a)) * (to - from));
    let ticks;
    if (high === low) ticks = [low];
    else if (kind === "log" && Number.isFinite(first)) {
      ticks = low <= 0 ? [0] : [];
      for (let p = Math.floor(Math.log10(first)); 10 ** p <= high; p++) if (10 ** p >= first) ticks.push(10 ** p);
      if (ticks.length < 3) ticks = unique([...ticks, first, high]);
    } else ticks = niceTicks(low, high, Math.max(2, Math.floor((to - from) / 80)));
    const shown = [];
    for (const tick of ticks) if (!shown.length || place(tick) - place(shown.at(-1)) > 34) shown.push(tick);
    return { place, ticks: shown };
  };

  // ------------------------------------------------------------------ data

  const key = (line, data) => data.columns.map((name) => line.of[name]).join("\u0001");

  // One line for each quantity, site, group and run, with what tells lines apart by column.
  const read = (sources) => {
    const lines = [];
    const quantities = {};
    const columns = [];
    const numeric = new Set();
    const notes = [];
    let observer = "";
    for (const { data: id, run, condition } of sources) {
      const element = document.getElementById(id);
      if (!element) continue; // a run whose observer recorded no scalars
      const data = JSON.parse(element.textContent);
      observer = data.observer;
      for (const [name, about] of Object.entries(data.quantities)) quantities[name] ??= about;
      for (const name of data.columns.slice(1)) if (!columns.includes(name)) columns.push(name);
      data.numeric.forEach((name) => numeric.add(name));
      if (data.left) notes.push(run ? `${run}: ${data.left}` : data.left);
      data.lines.forEach((codes, i) => {
        const of = {};
        data.columns.forEach((name, c) => (of[name] = data.levels[c][codes[c]]));
        lines.push({ of, run, condition, steps: data.steps, tokens: data.tokens, values: data.values[i] });
      });
    }
    for (const line of lines) for (const name of columns) line.of[name] ??= "";
    const names = unique(lines.map((line) => line.of.quantity));
    const companion = (name) => {
      const base = name.replace(/_(error|low|high)$/, "");
      return base !== name && names.includes(base);
    };
    const offered = Object.keys(quantities);
    names.sort((a, b) => offered.indexOf(a) - offered.indexOf(b));
    const ordered = [...names.filter((n) => !companion(n) && n !== "learning_rate"), ...names.filter((n) => n === "learning_rate"), ...names.filter(companion)];
    const hasTokens = lines.some((line) => line.tokens && line.tokens.some((t) => known(t) && t > 0));
    const data = { observer, lines, quantities, columns, numeric, names: ordered, notes, hasTokens };
    data.index = new Map(lines.map((line) => [`${line.run}\u0002${line.of.quantity}\u0002${key(line, data)}`, line]));
    return data;
  };

  // low and high of a line, where the observer recorded an error or both ends
  const intervals = (line, data) => {
    const found = (end) => data.index.get(`${line.run}\u0002${line.of.quantity}_${end}\u0002${key(line, data)}`);
    const [low, high, error] = [found("low"), found("high"), found("error")];
    if (low && high) return { low: low.values, high: high.values, what: "interval as recorded (low, high)" };
    if (!error) return null;
    const moved = (sign) => line.values.map((v, i) => (known(v) && known(error.values[i]) ? v + sign * error.values[i] : null));
    return { low: moved(-1), high: moved(1), what: "± the recorded error" };
  };

  // lines of several runs of one condition as their mean, and its band from the least to the greatest
  const averaged = (lines, data) => {
    const groups = new Map();
    for (const line of lines) {
      const name = `${line.condition}\u0002${key(line, data)}`;
      groups.set(name, [...(groups.get(name) ?? []), line]);
    }
    return [...groups.values()].map((group) => {
      if (group.length === 1) return { ...group[0], run: group[0].condition, n: 1 };
      const at = group.map((line) => new Map(line.steps.map((step, i) => [step, line.values[i]])));
      const steps = group[0].steps.filter((step) => at.every((values) => known(values.get(step))));
      if (!steps.length) return { ...group[0], run: group[0].condition, n: 1 };
      const all = steps.map((step) => at.map((values) => values.get(step)));
      const tokens = group[0].tokens && steps.map((step) => group[0].tokens[group[0].steps.indexOf(step)]);
      return {
        of: group[0].of, run: group[0].condition, condition: group[0].condition, steps, tokens, n: group.length,
        values: all.map((v) => v.reduce((a, b) => a + b, 0) / v.length),
        band: { low: all.map((v) => Math.min(...v)), high: all.map((v) => Math.max(...v)), what: `${group.length} runs, from the least to the greatest` },
      };
    });
  };

  return { unique, known, shortCount, shortValue, niceTicks, scaleOf, read, intervals, averaged };
})();
