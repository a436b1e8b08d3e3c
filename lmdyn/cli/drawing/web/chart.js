"use strict";
// The chart of a report: lines over training, drawn from the rows that observers wrote (chart_rows.js). It loads nothing.
(() => {
  const holder = document.createElement("div");
  holder.innerHTML = "<svg></svg>";
  const NS = holder.firstChild.namespaceURI; // not spelled out: a page names no address at all
  const MOST_LINES = 8; // of a panel: as many as there are colours
  const MOST_PANELS = 24;
  const THEMES = {
    light: {
      ink: "#24292f", faint: "#57606a", grid: "#e4e7eb", paper: "#ffffff",
      lines: ["#0072b2", "#d55e00", "#00875f", "#b0508c", "#8a6d00", "#2b95cf", "#5b4bb5", "#5f6b76"],
    },
    dark: {
      ink: "#e6e9ed", faint: "#a3abb5", grid: "#363d47", paper: "#171b21",
      lines: ["#56b4e9", "#ff8f4d", "#2fcf9f", "#ea9bcb", "#e6c229", "#8fd0ff", "#b5a8ff", "#b9c2cc"],
    },
  };
  const DASHES = ["", "", "", "", "7 3", "7 3", "7 3", "7 3"]; // lines differ without colour too

  const make = (name, attributes = {}, text = null) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    return node;
  };
  const draw = (parent, name, attributes = {}, text = null) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  };
  const { unique, known, ends, shortCount, shortValue, span, niceTicks, scaleOf, read, intervals, averaged } = chartRows;

  // ------------------------------------------------------------------ the chart

  class Chart {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.runs = unique(this.data.lines.map((line) => line.run));
      this.conditions = unique(this.data.lines.map((line) => line.condition));
      this.state = { quantity: this.data.names[0], filters: Object.create(null), panels: "auto", x: "step", scale: this.spacing(), runs: this.conditions.length < this.runs.length ? "mean" : "single", y: "shared", band: true };
      this.active = null; // names of lines that are drawn, with their colours
      this.build();
      this.render();
      new ResizeObserver(() => this.plot.clientWidth !== this.width && this.render()).observe(this.plot);
      document.addEventListener("themechange", () => this.render());
    }

    // observations that lie closer at first are drawn logarithmically, as figures draw them
    spacing() {
      const steps = unique(this.data.lines.flatMap((line) => line.steps));
      const [, high] = ends(steps);
      return steps.filter((step) => step < high / 10).length > Math.max(3, steps.length / 3) ? "log" : "linear";
    }

    build() {
      const { root } = this;
      root.textContent = "";
      this.controls = make("div", { class: "controls" });
      this.heading = make("p", { class: "axis" });
      this.plot = make("div", { class: "plot", tabindex: "0", role: "group" });
      this.tip = make("div", { class: "tip", hidden: "" });
      this.legend = make("div", { class: "legend", role: "group", "aria-label": "lines" });
      this.spoken = make("p", { class: "spoken", role: "status" });
      this.note = make("p", { class: "note" });
      const buttons = make("div", { class: "downloads" });
      for (const [kind, save] of [["PNG", () => this.png()], ["SVG", () => this.svg()], ["CSV", () => this.csv()]]) {
        const button = make("button", { type: "button", "aria-label": `Download this chart as ${kind}` }, kind);
        button.addEventListener("click", save);
        buttons.append(button);
      }
      root.append(this.controls, this.heading, this.plot, this.legend, this.spoken, this.note, buttons);
      this.plot.addEventListener("pointermove", (event) => this.hover(event));
      this.plot.addEventListener("pointerleave", () => this.point(null));
      this.plot.addEventListener("blur", () => this.point(null));
      this.plot.addEventListener("keydown", (event) => this.walk(event));
    }

    choice(name, label, options, value, change) {
      if (options.length < 2) return;
      const box = make("label", {}, label);
      const select = make("select", { name });
      for (const [code, text] of options) {
        const option = make("option", { value: code }, text);
        option.selected = code === value;
        select.append(option);
      }
      select.addEventListener("change", () => {
        change(select.value);
        this.render();
        [...this.controls.querySelectorAll("select")].find((each) => each.name === name)?.focus();
      });
      box.append(select);
      this.controls.append(box);
    }

    // which lines are chosen; on the way, the choices that there are
    chosen() {
      const { data, state } = this;
      let lines = data.lines.filter((line) => line.of.quantity === state.quantity);
      const offered = [];
      for (const column of data.columns) {
        const levels = unique(lines.map((line) => line.of[column]));
        const named = levels.filter((level) => level !== "");
        if (data.numeric.has(column)) named.sort((a, b) => Number(a) - Number(b));
        if (levels.length < 2) continue;
        const options = [];
        if (levels.includes("")) options.push(["=", column === "site" ? "no site" : "over everything"]);
        if (named.length > 1 || !levels.includes("")) options.push(["*", "each"]);
        options.push(...named.map((level) => [`=${level}`, level]));
        let filter = state.filters[column];
        if (!options.some(([code]) => code === filter)) filter = column === "site" && named.length > 1 ? "*" : options[0][0];
        offered.push([column, options, filter]);
        lines = lines.filter((line) => (filter === "*" ? line.of[column] !== "" : line.of[column] === filter.slice(1)));
      }
      return { lines, offered };
    }

    label(column, level) {
      return this.data.numeric.has(column) && level !== "" ? `${column}=${level}` : level;
    }

    // lines in panels, each with the name that tells it from the others there
    arrange() {
      const { data, state } = this;
      const { lines: found, offered } = this.chosen();
      let lines = found;
      if (this.runs.length > 1) {
        if (state.runs === "mean") lines = averaged(lines, data);
        else if (state.runs.startsWith("=")) lines = lines.filter((line) => line.run === state.runs.slice(1));
      }
      const value = (line, dimension) => (dimension === "run" ? line.run : this.label(dimension.slice(3), line.of[dimension.slice(3)]));
      const dimensions = [...data.columns.map((column) => `of_${column}`), "run"].filter((d) => unique(lines.map((line) => value(line, d))).length > 1);
      const per = (dimension) => {
        const count = new Map();
        for (const line of lines) count.set(value(line, dimension), (count.get(value(line, dimension)) ?? 0) + 1);
        return { panels: count.size, lines: ends([...count.values()])[1] };
      };
      let by = dimensions.includes(state.panels) ? state.panels : "";
      if (state.panels === "auto" && lines.length > MOST_LINES) {
        const fitting = dimensions.filter((d) => per(d).lines <= MOST_LINES).sort((a, b) => per(a).panels - per(b).panels);
        by = fitting[0] ?? [...dimensions].sort((a, b) => per(a).lines - per(b).lines)[0] ?? "";
      }
      const rest = dimensions.filter((d) => d !== by);
      const panels = new Map();
      for (const line of lines) {
        const name = rest.map((d) => value(line, d)).filter((part) => part !== "").join(" · ");
        const title = by ? value(line, by) : "";
        if (!panels.has(title)) panels.set(title, []);
        const band = state.band ? line.band ?? intervals(line, data) : null;
        panels.get(title).push({ ...line, name: name || (line.run ?? "") || state.quantity, band });
      }
      const names = unique(lines.length ? [...panels.values()].flat().map((line) => line.name) : []);
      const signature = names.join("\u0001");
      if (this.signature !== signature) {
        this.signature = signature;
        this.active = new Map(names.slice(0, MOST_LINES).map((name, slot) => [name, slot]));
      }
      const number = (title) => (title ? Number(title.slice(by.length - 2)) : -Infinity); // behind `column=`
      const all = [...panels.entries()].sort(([a], [b]) => (by.startsWith("of_") && data.numeric.has(by.slice(3)) && a !== b ? number(a) - number(b) : 0));
      return { offered, dimensions, by, names, panels: all.slice(0, MOST_PANELS), left: all.length - Math.min(all.length, MOST_PANELS) };
    }

    render() {
      const { data, state } = this;
      const shown = (this.shown = this.arrange());
      this.controls.textContent = "";
      this.choice("quantity", "Quantity", data.names.map((n) => [n, n]), state.quantity, (v) => (state.quantity = v));
      for (const [column, options, filter] of shown.offered) this.choice(`of_${column}`, column.slice(0, 1).toUpperCase() + column.slice(1), options, filter, (v) => (state.filters[column] = v));
      if (this.runs.length > 1) {
        const options = [["single", "each"], ...this.runs.map((run) => [`=${run}`, run])];
        if (this.conditions.length < this.runs.length) options.unshift(["mean", "mean and range over seeds"]);
        this.choice("runs", "Runs", options, state.runs, (v) => (state.runs = v));
      }
      const dimensions = unique([...shown.dimensions, ...(data.columns.includes(state.panels.slice(3)) ? [state.panels] : [])]);
      if (shown.dimensions.length) this.choice("panels", "Panels", [["auto", "automatic"], ["", "one"], ...dimensions.map((d) => [d, `one for each ${d.replace(/^of_/, "")}`])], state.panels, (v) => (state.panels = v));
      if (shown.panels.length > 1) this.choice("y", "Value axis", [["shared", "the same"], ["own", "each its own"]], state.y, (v) => (state.y = v));
      if (data.hasTokens) this.choice("x", "Over", [["step", "updates"], ["tokens", "tokens"]], state.x, (v) => (state.x = v));
      this.choice("scale", "Spacing", [["linear", "linear"], ["log", "logarithmic"]], state.scale, (v) => (state.scale = v));
      const banded = state.band ? shown.panels.flatMap(([, lines]) => lines).find((line) => line.band) : null;
      if (banded || !state.band) this.choice("band", "Band", [["on", "shown"], ["off", "hidden"]], state.band ? "on" : "off", (v) => (state.band = v === "on"));
      this.heading.textContent = this.axisLabel();
      this.drawLegend();
      this.width = this.plot.clientWidth;
      this.plot.textContent = "";
      this.scene = this.picture(Math.max(this.width, 240), document.documentElement.dataset.shown === "dark" ? "dark" : "light");
      this.plot.append(this.scene.svg, this.tip);
      this.plot.setAttribute("aria-label", `${data.observer}: ${this.axisLabel()}, ${[...this.active.keys()].join(", ")}. Arrow keys read the values of a step.`);
      const notes = [];
      if (banded) notes.push(`Band: ${banded.band.what}.`);
      if (shown.names.length > this.active.size && shown.names.length > MOST_LINES) notes.push(`${this.active.size} of ${shown.names.length} lines are shown: choose them below the chart.`);
      if (shown.left) notes.push(`${shown.left} more panels are not shown: choose a value above.`);
      this.note.textContent = [...notes, ...data.notes].join(" ");
      this.at = null;
    }

    axisLabel() {
      const about = this.data.quantities[this.state.quantity];
      const label = about?.label ?? this.state.quantity.replaceAll("_", " ");
      return about?.better ? `${label}, ${about.better} is better ${about.better === "higher" ? "↑" : "↓"}` : label;
    }

    drawLegend() {
      this.legend.textContent = "";
      const theme = THEMES[document.documentElement.dataset.shown === "dark" ? "dark" : "light"];
      if (this.shown.names.length < 2) return;
      for (const name of this.shown.names) {
        const slot = this.active.get(name);
        const button = make("button", { type: "button", "aria-pressed": String(slot !== undefined) });
        const swatch = document.createElementNS(NS, "svg");
        swatch.setAttribute("width", 22);
        swatch.setAttribute("height", 8);
        swatch.setAttribute("aria-hidden", "true");
        draw(swatch, "line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 3, stroke: slot === undefined ? theme.grid : theme.lines[slot], "stroke-dasharray": DASHES[slot ?? 0] });
        button.append(swatch, make("span", {}, name));
        button.addEventListener("click", () => {
          this.toggle(name);
          [...this.legend.children].find((each) => each.textContent === name)?.focus();
        });
        this.legend.append(button);
      }
    }

    toggle(name) {
      if (this.active.has(name)) this.active.delete(name);
      else {
        if (this.active.size >= MOST_LINES) this.active.delete(this.active.keys().next().value);
        const taken = new Set(this.active.values());
        this.active.set(name, THEMES.light.lines.findIndex((_, slot) => !taken.has(slot)));
      }
      this.render();
    }

    // the x of each point of a line; null where tokens are not known
    places(line) {
      return this.state.x === "tokens" ? line.steps.map((_, i) => line.tokens?.[i] ?? null) : line.steps;
    }

    // an SVG of all panels; with a title and a legend of its own where it is saved
    picture(width, themeName, saved = false) {
      const { shown, state } = this;
      const theme = THEMES[themeName];
      const several = shown.panels.length > 1;
      const columns = several ? Math.max(1, Math.min(shown.panels.length, 4, Math.floor(width / 250))) : 1;
      const rows = Math.max(1, Math.ceil(shown.panels.length / columns));
      const height = several ? 200 : Math.min(340, Math.max(240, width * 0.5));
      const head = saved ? 26 : 0;
      const entries = saved && shown.names.length > 1 ? [...this.active.entries()] : [];
      const perRow = Math.max(1, Math.floor(width / 230));
      const total = head + rows * height + Math.ceil(entries.length / perRow) * 20 + (saved ? 6 : 0);
      const svg = document.createElementNS(NS, "svg");
      const set = { width, height: total, viewBox: `0 0 ${width} ${total}`, "font-family": "system-ui, sans-serif", "font-size": 12, role: "img", "aria-label": this.axisLabel() };
      for (const [k, v] of Object.entries(set)) svg.setAttribute(k, v);
      if (saved) {
        draw(svg, "rect", { width, height: total, fill: theme.paper });
        draw(svg, "text", { x: 8, y: 18, fill: theme.ink, "font-size": 14 }, this.axisLabel());
      }
      const visible = (lines) => lines.filter((line) => this.active.has(line.name));
      const values = (lines) => visible(lines).flatMap((line) => [...line.values, ...(line.band ? [...line.band.low, ...line.band.high] : [])]).filter(known);
      const everything = shown.panels.flatMap(([, lines]) => lines);
      const at = unique(everything.flatMap((line) => this.places(line)).filter(known));
      const range = span(values(everything));
      const scenes = shown.panels.map(([title, lines], i) => {
        const cell = width / columns;
        const x0 = (i % columns) * cell + 54, x1 = ((i % columns) + 1) * cell - 14;
        const top = head + Math.floor(i / columns) * height + (several ? 24 : 10), bottom = head + (Math.floor(i / columns) + 1) * height - 38;
        const group = draw(svg, "g", { "data-panel": title });
        if (several) draw(group, "text", { x: x0, y: top - 8, fill: theme.ink, "font-weight": 600 }, title.length * 6.6 > x1 - x0 ? `${title.slice(0, Math.floor((x1 - x0) / 6.6) - 1)}…` : title);
        const [low, high] = state.y === "own" ? span(values(lines)) : range;
        const y = (v) => bottom - ((v / 2 - low / 2) / (high / 2 - low / 2)) * (bottom - top);
        for (const tick of niceTicks(low, high, Math.max(2, Math.floor((bottom - top) / 44)))) {
          draw(group, "line", { x1: x0, x2: x1, y1: y(tick), y2: y(tick), stroke: theme.grid });
          draw(group, "text", { x: x0 - 6, y: y(tick) + 4, "text-anchor": "end", fill: theme.faint }, shortValue(tick));
        }
        const { place, ticks } = at.length ? scaleOf(state.scale, at, x0 + 4, x1 - 4) : { place: () => x0, ticks: [] };
        draw(group, "line", { x1: x0, x2: x1, y1: bottom, y2: bottom, stroke: theme.faint });
        for (const tick of ticks) {
          draw(group, "line", { x1: place(tick), x2: place(tick), y1: bottom, y2: bottom + 4, stroke: theme.faint });
          draw(group, "text", { x: place(tick), y: bottom + 16, "text-anchor": "middle", fill: theme.faint }, shortCount(tick));
        }
        if (i >= (rows - 1) * columns || i + columns >= shown.panels.length) draw(group, "text", { x: (x0 + x1) / 2, y: bottom + 32, "text-anchor": "middle", fill: theme.faint }, state.x === "tokens" ? "tokens" : "training step (updates)");
        const drawn = visible(lines);
        for (const line of drawn) this.drawLine(group, line, place, y, theme);
        if (!drawn.some((line) => line.values.some(known))) draw(group, "text", { x: (x0 + x1) / 2, y: (top + bottom) / 2, "text-anchor": "middle", fill: theme.faint }, lines.length ? "no line is chosen, or none has values" : "no values");
        return { title, lines: drawn, x0, x1, top, bottom, place, y, group };
      });
      entries.forEach(([name, slot], i) => {
        const x = 8 + (i % perRow) * (width / perRow), y = head + rows * height + 12 + Math.floor(i / perRow) * 20;
        draw(svg, "line", { x1: x, x2: x + 22, y1: y - 4, y2: y - 4, stroke: theme.lines[slot], "stroke-width": 3, "stroke-dasharray": DASHES[slot] });
        draw(svg, "text", { x: x + 28, y, fill: theme.ink }, name);
      });
      return { svg, scenes, theme };
    }

    drawLine(group, line, place, y, theme) {
      const slot = this.active.get(line.name);
      const points = this.places(line).map((x, i) => [x, line.values[i], i]).filter(([x, v]) => known(x) && known(v));
      const path = (list) => list.map(([x, v], i) => `${i ? "L" : "M"}${place(x).toFixed(1)} ${y(v).toFixed(1)}`).join("");
      if (line.band) {
        const ends = points.filter(([, , i]) => known(line.band.low[i]) && known(line.band.high[i]));
        const above = ends.map(([x, , i]) => [x, line.band.high[i]]), below = ends.map(([x, , i]) => [x, line.band.low[i]]).reverse();
        if (ends.length > 1) draw(group, "path", { d: `${path([...above, ...below])}Z`, fill: theme.lines[slot], "fill-opacity": 0.18, class: "band" });
        else if (ends.length) draw(group, "path", { d: path([...above, ...below]), stroke: theme.lines[slot], class: "band" });
      }
      draw(group, "path", { d: path(points), fill: "none", stroke: theme.lines[slot], "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": DASHES[slot], class: "line", "data-name": line.name });
      if (points.length <= 30) for (const [x, v] of points) draw(group, "circle", { cx: place(x).toFixed(1), cy: y(v).toFixed(1), r: points.length > 1 ? 2.2 : 4, fill: theme.lines[slot] });
    }

    // ---------------------------------------------------------------- reading values

    hover(event) {
      const box = this.scene.svg.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const scene = this.scene.scenes.find((s) => x >= s.x0 - 54 && x <= s.x1 + 14 && y >= s.top - 24 && y <= s.bottom + 38);
      if (!scene) return this.point(null);
      let best = null;
      for (const line of scene.lines)
        this.places(line).forEach((at, i) => {
          if (known(at) && known(line.values[i]) && (best === null || Math.abs(scene.place(at) - x) < best.far)) best = { far: Math.abs(scene.place(at) - x), at };
        });
      return this.point(best && best.at, scene);
    }

    walk(event) {
      const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") this.point(null);
      if (move === undefined) return;
      event.preventDefault();
      const scene = this.pointed ?? this.scene.scenes[0];
      const all = unique(this.scene.scenes.flatMap((s) => s.lines.flatMap((line) => this.places(line)))).filter(known).sort((a, b) => a - b);
      if (!all.length) return;
      const i = this.at === null ? (move > 0 ? -1 : all.length) : all.indexOf(this.at);
      this.point(all[Math.min(Math.max(i + move, 0), all.length - 1)], scene, true);
    }

    point(at, scene = null, speak = false) {
      this.at = at;
      this.pointed = scene;
      this.scene.svg.querySelectorAll(".guide").forEach((node) => node.remove());
      this.tip.hidden = at === null;
      if (at === null) return;
      for (const { lines, place, y, top, bottom, group } of this.scene.scenes) {
        draw(group, "line", { class: "guide", x1: place(at), x2: place(at), y1: top, y2: bottom, stroke: this.scene.theme.faint, "stroke-dasharray": "2 3" });
        for (const line of lines) {
          const i = this.places(line).indexOf(at);
          if (i >= 0 && known(line.values[i])) draw(group, "circle", { class: "guide", cx: place(at), cy: y(line.values[i]), r: 4, fill: this.scene.theme.lines[this.active.get(line.name)] });
        }
      }
      const readings = [];
      let when = "";
      for (const line of scene.lines) {
        const i = this.places(line).indexOf(at);
        if (i < 0) continue;
        const tokens = line.tokens?.[i];
        when ||= `step ${line.steps[i].toLocaleString("en")}${known(tokens) ? `, ${shortCount(tokens)} tokens` : ""}`;
        if (known(line.values[i])) readings.push({ line, value: line.values[i], band: line.band && known(line.band.low[i]) ? ` [${shortValue(line.band.low[i])}, ${shortValue(line.band.high[i])}]` : "" });
      }
      readings.sort((a, b) => b.value - a.value);
      this.tip.textContent = "";
      this.tip.append(make("strong", {}, scene.title ? `${scene.title}, ${when}` : when));
      for (const { line, value, band } of readings) {
        const row = make("div");
        const dot = make("i");
        dot.style.background = this.scene.theme.lines[this.active.get(line.name)];
        row.append(dot, make("span", {}, line.name), make("b", {}, `${shortValue(value)}${band}`));
        this.tip.append(row);
      }
      const x = scene.place(at), room = this.plot.clientWidth, own = this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(0, x + 12 + own > room ? x - 12 - own : x + 12)}px`;
      this.tip.style.top = `${scene.top}px`;
      if (speak) this.spoken.textContent = `${when}: ${readings.map(({ line, value }) => `${line.name} ${shortValue(value)}`).join("; ")}`;
    }

    // ---------------------------------------------------------------- downloads: from memory, nothing is fetched

    file(content, type, suffix) {
      const link = make("a", { download: `${this.data.observer}_${this.state.quantity}.${suffix}`.replace(/[^\w.-]+/g, "_") });
      link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    source() {
      return new XMLSerializer().serializeToString(this.picture(900, "light", true).svg);
    }

    svg() {
      this.file(this.source(), "image/svg+xml", "svg");
    }

    png() {
      const image = new Image();
      image.onload = () => {
        const canvas = make("canvas", { width: image.width * 2, height: image.height * 2 });
        const context = canvas.getContext("2d");
        context.scale(2, 2);
        context.drawImage(image, 0, 0);
        canvas.toBlob((blob) => this.file(blob, "image/png", "png"), "image/png");
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(this.source())}`;
    }

    csv() {
      const cell = (v) => (known(v) ? (/[",\n\r]/.test(`${v}`) ? `"${`${v}`.replaceAll('"', '""')}"` : `${v}`) : "");
      const rows = [["run", "step", "tokens", "quantity", ...this.data.columns, "value", "low", "high"]];
      for (const { lines } of this.scene.scenes)
        for (const line of lines)
          line.values.forEach((v, i) => {
            if (known(v)) rows.push([line.run, line.steps[i], line.tokens?.[i], line.of.quantity, ...this.data.columns.map((c) => line.of[c]), v, line.band?.low[i], line.band?.high[i]]);
          });
      this.file(`${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`, "text/csv", "csv");
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
    const near = new IntersectionObserver((entries) => entries.filter((e) => e.isIntersecting).forEach((e) => begin(e.target)), { rootMargin: "600px" });
    waiting.forEach((root) => near.observe(root));
    window.addEventListener("beforeprint", () => [...waiting].forEach(begin));
  });
})();
