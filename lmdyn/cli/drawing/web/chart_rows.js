"use strict";
// What a chart draws: numbers as texts and places, and the lines that the rows of observers make.
const chartRows = (() => {
  const unique = (values) => [...new Set(values)];
  const known = (value) => value !== null && value !== undefined;
  // a loop: as arguments of Math.min, very many values do not fit on the stack
  const ends = (values) => values.reduce(([low, high], v) => [v < low ? v : low, v > high ? v : high], [Infinity, -Infinity]);

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
  // with a margin; what differs by rounding only is one value, about which ticks could not be counted
  const span = (values) => {
    let [low, high] = values.length ? ends(values) : [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (!(high - low > Math.max(1e-9 * size, 1e-299))) {
      const room = size > 1e-299 ? size * 0.1 : 0.1;
      [low, high] = [low - room, high + room];
    }
    const margin = (high / 2 - low / 2) * 0.08; // halves: a difference may be more than the greatest number
    return [Math.max(low - margin, -Number.MAX_VALUE), Math.min(high + margin, Number.MAX_VALUE)];
  };
  const niceTicks = (low, high, n) => {
    let ticks = [];
    for (let more = n; ticks.length < 3 && more < n + 6; more++) {
      const raw = high / Math.max(more, 1) - low / Math.max(more, 1);
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
      ticks = [];
      for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && Number.isFinite(i * step); i++) ticks.push(+(i * step).toPrecision(12));
    }
    return ticks;
  };
  // logarithmic from the first positive value on, linear below it: step 0 is shown
  const scaleOf = (kind, values, from, to) => {
    const [low, high] = ends(values);
    const [first] = ends(values.filter((v) => v > 0));
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

  const key = (line, data) => JSON.stringify(data.columns.map((name) => line.of[name]));

  // One line for each quantity, site, group and run, with what tells lines apart by column.
  const read = (sources) => {
    const lines = [];
    const quantities = Object.create(null); // a name may be that of something that objects have, as `constructor`
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
        const of = Object.create(null);
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
    data.sizes = new Map(); // how many runs a condition has
    for (const { run, condition } of sources) if (run) data.sizes.set(condition, (data.sizes.get(condition) ?? 0) + 1);
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

  // lines of several runs of one condition as their mean, and its band from the least to the greatest; a single run, and
  // runs without a common step, under their own names
  const averaged = (lines, data) => {
    const groups = new Map();
    for (const line of lines) {
      const name = `${line.condition}\u0002${key(line, data)}`;
      groups.set(name, [...(groups.get(name) ?? []), line]);
    }
    return [...groups.values()].flatMap((group) => {
      if (group.length === 1) return group;
      const at = group.map((line) => new Map(line.steps.map((step, i) => [step, line.values[i]])));
      const steps = group[0].steps.filter((step) => at.every((values) => known(values.get(step))));
      if (!steps.length) return group;
      const all = steps.map((step) => at.map((values) => values.get(step)));
      const mean = (v) => v.reduce((a, b) => a + b / v.length, 0);
      const seen = group.map((line) => new Map(line.steps.map((step, i) => [step, line.tokens?.[i]])));
      const tokens = steps.map((step) => seen.map((one) => one.get(step))).map((of) => (of.every(known) ? Math.round(mean(of)) : null));
      const { condition } = group[0];
      const run = group.length < data.sizes.get(condition) ? `${condition}, here of ${group.length}` : condition;
      return {
        of: group[0].of, run, condition, steps, tokens, n: group.length,
        values: all.map(mean),
        band: { low: all.map((v) => ends(v)[0]), high: all.map((v) => ends(v)[1]), what: `${group.length} runs, from the least to the greatest` },
      };
    });
  };

  return { unique, known, ends, shortCount, shortValue, span, niceTicks, scaleOf, read, intervals, averaged };
})();
