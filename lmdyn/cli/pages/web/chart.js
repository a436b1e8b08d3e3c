"use strict";
// The charts of a report: curves over training from the rows that observers wrote, drawn by uPlot. Nothing is loaded.
(() => {
  const COLOURS = {
    light: ["#0072b2", "#d55e00", "#00875f", "#b0508c", "#8a6d00", "#2b95cf", "#5b4bb5", "#5f6b76"],
    dark: ["#56b4e9", "#ff8f4d", "#2fcf9f", "#ea9bcb", "#e6c229", "#8fd0ff", "#b5a8ff", "#b9c2cc"],
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const MOST_LINES = 8; // shown at first: as many as there are colours
  const LARGEST = 1e300; // drawn: differences of larger numbers are infinite
  const unique = (values) => [...new Set(values)];
  const known = (value) => value !== null && value !== undefined;
  const clipped = (v) => (known(v) ? Math.max(-LARGEST, Math.min(LARGEST, v)) : null);
  // a loop: as arguments of Math.min, very many values do not fit on the stack
  const ends = (values) => values.reduce(([a, b], v) => [v < a ? v : a, v > b ? v : b], [Infinity, -Infinity]);
  const mean = (v) => (v.every(known) ? v.reduce((sum, one) => sum + one / v.length, 0) : null);
  const shortValue = (v, digits = 4) => {
    const size = Math.abs(v);
    return v !== 0 && (size < 1e-4 || size >= 1e5) ? v.toExponential(2).replace(/\.?0+e/, "e") : `${+v.toPrecision(digits)}`;
  };
  const make = (name, attributes = {}, text = "") => {
    const node = Object.assign(document.createElement(name), { textContent: text });
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  // ------------------------------------------------------------------ data

  const ofGroup = (line) => [...line.of.values()].some((level) => level !== "");
  const identity = (line, quantity) => JSON.stringify([line.run, quantity, ...line.of.values()]);

  // One line for each quantity, site, group and run, with what tells lines apart by column.
  const read = (sources) => {
    const data = {
      lines: [], quantities: new Map(), columns: [], numeric: new Set(), notes: [], observer: "", words: new Map(), begin: {},
    };
    const elements = sources.map(({ data: id, ...of }) => [document.getElementById(id), of]);
    const there = elements.filter(([element]) => element); // others recorded no scalars
    const parts = there.map(([element, of]) => ({ ...JSON.parse(element.textContent), ...of }));
    data.columns = unique(parts.flatMap((part) => part.columns.slice(1)));
    for (const { run, condition, independent, steps, tokens, words_seen, ...part } of parts) {
      data.unit = [part.unit, undefined].includes(data.unit) ? part.unit : "updates, or words";
      data.observer = part.observer;
      if (part.begin.quantity) data.begin = part.begin;
      part.columns.slice(1).forEach((name, c) => {
        const levels = data.words.get(name)?.levels ?? new Map();
        part.levels[c + 1].forEach((level, i) => levels.set(level, part.words[name].levels[i]));
        data.words.set(name, { words: part.words[name].words, levels });
      });
      part.numeric.forEach((name) => data.numeric.add(name));
      if (part.left) data.notes.push(run ? `${run}: ${part.left}` : part.left);
      for (const [name, about] of Object.entries(part.quantities))
        if (!data.quantities.has(name)) data.quantities.set(name, about);
      part.lines.forEach((codes, i) => {
        const levels = new Map(part.columns.map((name, c) => [name, part.levels[c][codes[c]]]));
        const of = new Map(data.columns.map((name) => [name, levels.get(name) ?? ""]));
        const quantity = part.levels[0][codes[0]];
        data.lines.push({ of, quantity, run, condition, independent, steps, tokens, words: words_seen, values: part.values[i] });
      });
    }
    const companion = (name) => /_(error|low|high)$/.test(name) && data.quantities.has(name.replace(/_[a-z]+$/, ""));
    data.names = [...data.quantities.keys()].sort((a, b) => companion(a) - companion(b));
    data.sizes = new Map(); // how many runs a condition has
    for (const { condition } of sources) data.sizes.set(condition, (data.sizes.get(condition) ?? 0) + 1);
    data.index = new Map(data.lines.map((line) => [identity(line, line.quantity), line]));
    return data;
  };

  // the number, within what its quantity can be
  const within = (v, line, data) => {
    const [least, greatest] = data.quantities.get(line.quantity).ends;
    return Math.max(least ?? -Infinity, Math.min(greatest ?? Infinity, v));
  };

  // low and high of a line, where the observer recorded an error or both ends
  const recordedBand = (line, data) => {
    const end = (name) => data.index.get(identity(line, `${line.quantity}_${name}`))?.values;
    const [low, high, error] = [end("low"), end("high"), end("error")];
    if (low && high) return { low, high, what: "interval as recorded (low, high)" };
    if (!error) return null;
    const moved = (sign) =>
      line.values.map((v, i) => (known(v) && known(error[i]) ? within(v + sign * error[i], line, data) : null));
    return { low: moved(-1), high: moved(1), what: "± the recorded error" };
  };

  // lines that differ in one column, such as the heads of a layer, as their mean
  const averagedOver = (lines, column) => {
    const groups = new Map();
    for (const line of lines) {
      const key = JSON.stringify([line.run, ...[...line.of].filter(([name]) => name !== column)]);
      groups.set(key, [...(groups.get(key) ?? []), line]);
    }
    const blank = (of) => new Map([...of].map(([name, level]) => [name, name === column ? "" : level]));
    return [...groups.values()].map((group) => ({
      ...group[0], of: blank(group[0].of), values: group[0].steps.map((_, i) => mean(group.map((line) => line.values[i]))),
    }));
  };

  // ticks of a logarithmic axis, which begins at 0
  const decades = (low, high) => {
    const found = low <= 0 ? [0] : [];
    for (let power = 10 ** Math.floor(Math.log10(Math.max(low, 1))); power <= high; power *= 10)
      for (let tick = power; tick < 10 * power && tick <= high; tick += power) if (tick >= low) found.push(tick);
    return found;
  };

  // whether one line hides another: equal within a hundredth of what they range over
  const coincide = (a, b) => {
    const at = new Map(b.steps.map((step, i) => [step, b.values[i]]));
    const both = a.steps.map((step, i) => [a.values[i], at.get(step)]).filter((pair) => pair.every(known));
    const [low, high] = ends(both.flat());
    return both.length > 0 && both.every(([v, w]) => Math.abs(v - w) <= (high - low) * 0.01);
  };

  // quantiles of Student's t at 97.5 %, by degrees of freedom from 2
  const T = [4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086];

  // half the width of the 95 % interval of a mean; of two values, half of their distance
  const halfWidth = (values) => {
    const [n, middle] = [values.length, mean(values)];
    if (n === 2) return Math.abs(values[0] - middle);
    const variance = values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (n - 1);
    return (T[n - 3] ?? 1.96 + 2.5 / (n - 1)) * Math.sqrt(variance / n);
  };

  // lines of several runs of one condition as their mean: each run is a thin line, and the band is the interval of the
  // mean, but of two runs what lies between them, since Student's t would make it 12.7 errors wide. A single run, and
  // runs without a common step, have their own names.
  const averaged = (lines, data) => {
    const groups = new Map();
    for (const line of lines) {
      const key = JSON.stringify([line.condition, ...line.of.values()]);
      groups.set(key, [...(groups.get(key) ?? []), line]);
    }
    return [...groups.values()].flatMap((group) => {
      const at = group.map((line) => new Map(line.steps.map((step, i) => [step, line.values[i]])));
      const steps = group[0].steps.filter((step) => at.every((values) => known(values.get(step))));
      if (group.length === 1 || !steps.length) return group;
      const all = steps.map((step) => at.map((values) => values.get(step)));
      const amounts = (name) => {
        const counted = group.map((line) => new Map(line.steps.map((step, i) => [step, line[name]?.[i]])));
        return steps.map((step) => mean(counted.map((of) => of.get(step))));
      };
      const half = all.map(halfWidth);
      const what = group.length === 2 ? "between the two runs; an interval needs three" : `95 % interval of the mean of ${group.length} runs (Student's t)`;
      const moved = (sign) => all.map((v, i) => within(mean(v) + sign * half[i], group[0], data));
      const band = group.every((line) => line.independent) ? { low: moved(-1), high: moved(1), what } : null;
      const each = group.map((_, i) => all.map((v) => v[i]));
      const { condition } = group[0];
      const run = group.length < data.sizes.get(condition) ? `${condition}, here of ${group.length}` : condition;
      return { ...group[0], run, steps, tokens: amounts("tokens"), words: amounts("words"), values: all.map(mean), band, each };
    });
  };

  // ------------------------------------------------------------------ the chart

  class Chart {
    constructor(root, data) {
      const begin = data.quantities.has(data.begin.quantity) ? data.begin : { quantity: data.names[0], filters: {} };
      Object.assign(this, { root, data, filters: new Map(Object.entries(begin.filters)) });
      const runs = unique(data.lines.map((line) => line.run));
      const steps = unique(data.lines.flatMap((line) => line.steps));
      const early = steps.filter((step) => step < ends(steps)[1] / 10).length; // close together at first
      this.state = {
        quantity: begin.quantity, x: "step", scale: early > Math.max(3, steps.length / 3) ? "log" : "linear",
        runs: unique(data.lines.map((line) => line.condition)).length < runs.length ? "mean" : "each",
      };
      this.runs = runs;
      const part = (name, attributes) => this.root.appendChild(make(name, attributes));
      root.textContent = "";
      this.heading = part("p", { class: "axis" });
      this.plot = part("div", { class: "plot", role: "img" });
      this.note = part("p", { class: "note" });
      const choices = part("details", { class: "choices" });
      this.controls = make("div", { class: "controls" });
      choices.append(make("summary", {}, "Choose what is drawn"), this.controls);
      this.render();
      new ResizeObserver(() => this.drawn?.setSize(this.size())).observe(this.plot);
      window.addEventListener("beforeprint", () => this.draw(false));
      window.addEventListener("afterprint", () => this.draw());
      dark.addEventListener("change", () => this.draw());
    }

    choice(name, label, options, value, change) {
      if (options.length < 2) return;
      const select = make("select", { name });
      select.append(...options.map(([code, text, title = ""]) => make("option", { value: code, title }, text)));
      select.value = value;
      select.addEventListener("change", () => {
        change(select.value);
        this.render();
        [...this.controls.querySelectorAll("select")].find((one) => one.name === name)?.focus();
      });
      const box = make("label", {}, label);
      box.append(select);
      this.controls.append(box);
    }

    level(column, level) {
      const { words, levels } = this.data.words.get(column);
      return this.data.numeric.has(column) ? `${words} ${level}` : levels.get(level) ?? level;
    }

    // the lines that are chosen, while the choices that there are become controls
    chosen() {
      const { data, state } = this;
      const set = (name) => (value) => (state[name] = value);
      this.controls.textContent = "";
      this.choice("quantity", "quantity", data.names.map((name) => [name, data.quantities.get(name).words, name]), state.quantity, set("quantity"));
      let lines = data.lines.filter((line) => line.quantity === state.quantity);
      const whole = (line) => line.quantity === state.quantity && !ofGroup(line);
      let several = false;
      for (const column of data.columns) {
        const levels = unique(lines.map((line) => line.of.get(column)));
        if (levels.length < 2) continue;
        const named = levels.filter((level) => level !== "");
        if (data.numeric.has(column)) named.sort((a, b) => a - b);
        const { words } = data.words.get(column);
        const options = levels.includes("") ? [["=", column === "site" ? "no layer" : "over everything"]] : [];
        if (data.numeric.has(column) && named.length > 1) options.push(["mean", "mean over all"]);
        if (named.length > 1) options.push(["*", "each"]);
        options.push(...named.map((level) => [`=${level}`, this.level(column, level), level]));
        let filter = this.filters.get(column);
        if (!options.some(([code]) => code === filter))
          filter = column === "site" && named.length > 1 ? "*" : options[0][0];
        this.choice(`of_${column}`, words, options, filter, (value) => this.filters.set(column, value));
        several ||= filter === "*";
        if (filter === "mean") lines = averagedOver(lines.filter((line) => line.of.get(column) !== ""), column);
        else lines = lines.filter((line) => (filter === "*" ? line.of.get(column) : `=${line.of.get(column)}` === filter));
      }
      if (several) lines.push(...data.lines.filter(whole));
      if (this.runs.length > 1) {
        const options = [["each", "each"], ...this.runs.map((run) => [`=${run}`, run])];
        if (new Set(data.lines.map((line) => line.condition)).size < this.runs.length)
          options.unshift(["mean", "mean over seeds"]);
        this.choice("runs", "runs", options, state.runs, set("runs"));
        if (state.runs.startsWith("=")) lines = lines.filter((line) => `=${line.run}` === state.runs);
      }
      const over = ["tokens", "words"].filter((name) => data.lines.some((line) => line[name]?.some((n) => n > 0)));
      const amounts = over.filter((name) => name !== data.unit).map((name) => [name, name]);
      if (amounts.length) this.choice("x", "over", [["step", data.unit], ...amounts], state.x, set("x"));
      this.choice("scale", "spacing", [["linear", "linear"], ["log", "logarithmic"]], state.scale, set("scale"));
      return state.runs === "mean" ? averaged(lines, data) : lines;
    }

    render() {
      const { data, state } = this;
      const lines = this.chosen();
      const { words, meaning, better } = data.quantities.get(state.quantity);
      const telling = data.columns.filter((column) => unique(lines.filter(ofGroup).map((line) => line.of.get(column))).length > 1);
      const several = unique(lines.map((line) => line.run)).length > 1;
      this.lines = lines.map((line) => {
        const columns = telling.filter((column) => line.of.get(column) !== "");
        const parts = unique(columns.map((column) => this.level(column, line.of.get(column))).filter((word) => word));
        const name = [...parts, ...(several ? [line.run] : [])].join(" · ") || line.run || (telling.length ? "over everything" : words);
        const raw = columns.map((column) => `${column}=${line.of.get(column)}`).join(", ");
        return { ...line, name, raw, band: line.band ?? recordedBand(line, data) };
      });
      const alike = (line) => this.lines.filter((one) => one.name === line.name).length > 1;
      for (const [line, same] of this.lines.map((one) => [one, alike(one)])) if (same) line.name = `${line.name} (${line.raw})`;
      if (this.lines.length > MOST_LINES) { // those that change most are shown, with the highest at the end first
        const moved = (line) => !ofGroup(line) * 1e9 + ends(line.values.filter(known)).reduce((low, high) => high - low);
        const last = (line) => line.values.findLast(known) ?? -Infinity;
        const most = [...this.lines].sort((a, b) => moved(b) - moved(a));
        this.lines = [...most.slice(0, MOST_LINES).sort((a, b) => last(b) - last(a)), ...most.slice(MOST_LINES)];
      }
      for (const line of this.lines.slice(MOST_LINES)) line.hidden = true;
      this.heading.textContent = better ? `${words}, ${better} is better` : words;
      this.heading.title = `${state.quantity}: ${meaning}`;
      this.draw();
    }

    size() {
      return { width: Math.max(this.plot.clientWidth, 200), height: 260 };
    }

    draw(inDark = dark.matches) {
      const colours = inDark ? COLOURS.dark : COLOURS.light;
      const [ink, grid] = inDark ? ["#a3abb5", "#363d47"] : ["#57606a", "#d8dee4"];
      const amount = this.state.x; // step, tokens or words
      const series = [{ label: amount, value: (_, x) => (known(x) ? x.toLocaleString("en") : "") }];
      const bands = [];
      const reading = (line) => (plot, v, _, at) => {
        const [high, low] = line.band ? [1, 2].map((k) => plot.data[line.series + k][at]) : [];
        return known(v) ? `${shortValue(v)}${known(low) ? ` [${shortValue(low)}, ${shortValue(high)}]` : ""}` : "";
      };
      const tables = this.lines.map((line, i) => {
        const x = amount === "step" ? line.steps : line[amount] ?? [];
        const rows = x.map((_, at) => at).filter((at) => known(x[at])).sort((a, b) => x[a] - x[b]);
        const columns = [line.values, ...(line.band ? [line.band.high, line.band.low] : []), ...(line.each ?? [])];
        const colour = colours[i % MOST_LINES];
        const show = !line.hidden;
        const over = this.lines.slice(0, i).some((one) => !one.hidden && coincide(one, line));
        const dash = over ? [6, 6] : i % MOST_LINES < 4 ? undefined : [7, 3]; // lines differ without colour too
        line.series = series.length;
        const label = make("span", { title: line.raw }, line.name);
        series.push({ label, stroke: colour, width: 2, dash, spanGaps: true, show, points: { fill: colour }, value: reading(line) });
        const along = { class: "along", points: { show: false }, spanGaps: true, show }; // not in the legend
        if (line.band) {
          bands.push({ series: [series.length, series.length + 1], fill: `${colour}${this.lines.length > 4 ? "16" : "30"}` });
          for (const _ of "hl") series.push({ ...along, stroke: "transparent" });
        }
        for (const _ of line.each ?? []) series.push({ ...along, stroke: `${colour}90`, width: 0.7 });
        line.along = series.length;
        return [rows.map((at) => x[at]), ...columns.map((column) => rows.map((at) => clipped(column[at])))];
      });
      const joined = tables.length ? uPlot.join(tables) : [[]];
      const positive = joined[0].filter((x) => x > 0);
      const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
      const count = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
      const numbers = (format) => (_, ticks) => ticks.map((tick) => (known(tick) ? format(tick) : ""));
      const markers = {
        dash: (_, i) => (series[i].dash ? "dashed" : "solid"), fill: (_, i) => (series[i].dash ? "transparent" : series[i].stroke),
      };
      const spacing = this.state.scale === "log" && positive.length ? { distr: 4, asinh: positive[0] } : { distr: 1 };
      this.drawn?.destroy();
      this.plot.textContent = "";
      this.plot.setAttribute("aria-label", `${this.data.observer}: ${this.heading.textContent}`);
      this.drawn = new uPlot({
        ...this.size(), series, bands, legend: { markers }, cursor: { drag: { x: true, y: false }, y: false },
        scales: { x: { time: false, range: (_, low, high) => this.within(low, high), ...spacing }, y: { range: (_, low, high) => this.range(low, high) } },
        axes: [
          { ...axis, ...(spacing.distr === 4 ? { splits: (_, __, low, high) => decades(low, high) } : {}), values: numbers((tick) => count.format(tick)), label: amount === "step" ? `training step (${this.data.unit})` : amount },
          { ...axis, values: numbers((tick) => shortValue(tick, 10)), size: 64 },
        ],
        hooks: { setSeries: [(plot, i, { show }) => this.toggled(plot, i, show)] },
      }, joined, this.plot);
      const bandOf = this.lines.find((line) => line.band);
      const notes = bandOf ? [`Band: ${bandOf.band.what}.`] : [];
      if (this.lines.some((line) => line.each)) notes.push("Thin lines: each run.");
      if (this.lines.length > MOST_LINES) notes.push(`${MOST_LINES} of ${this.lines.length} lines are shown at first.`);
      this.note.textContent = [...notes, ...this.data.notes].join(" ");
    }

    // from the first to the last step; around a single one
    within(low, high) {
      return known(low) && low < high ? [low, high] : [(low ?? 0) - 1, (high ?? 0) + 1];
    }

    // with a margin; what differs by rounding only is one value, about which ticks could not be counted
    range(low, high) {
      if (!known(low)) return [0, 1];
      const size = Math.max(Math.abs(low), Math.abs(high));
      const margin = high - low > Math.max(1e-9 * size, 1e-290) ? (high - low) * 0.06 : 0.1 * size || 0.1;
      return [low - margin, high + margin];
    }

    // a line is shown or hidden with its band and its runs
    toggled(plot, i, show) {
      const line = this.lines.find((one) => one.series === i);
      if (!line || show === undefined) return;
      line.hidden = !show;
      for (let k = i + 1; k < line.along; k += 1) plot.setSeries(k, { show });
    }
  }

  // a chart is made when it comes near the window, or when the page is printed
  document.addEventListener("DOMContentLoaded", () => {
    const waiting = new Set(document.querySelectorAll("[data-chart]"));
    const begin = (root) => {
      if (!waiting.delete(root)) return;
      try {
        const data = read(JSON.parse(root.dataset.chart));
        if (data.lines.length) root.chart = new Chart(root, data);
        else root.textContent = "There are no scalars to draw.";
      } catch (error) {
        root.textContent = `The chart could not be drawn: ${error}`;
        console.error(error);
      }
    };
    const seen = (entries) => entries.filter((one) => one.isIntersecting).forEach((one) => begin(one.target));
    const near = new IntersectionObserver(seen, { rootMargin: "600px" });
    waiting.forEach((root) => near.observe(root));
    window.addEventListener("beforeprint", () => [...waiting].forEach(begin));
  });
})();
