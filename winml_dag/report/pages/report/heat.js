// The heat map: a row per model, a column per target and precision. A cell shows its number, or why it has none.

const STEPS = 6;
const LABEL_OF_STATUS = "Status";


function heatMap() {
  const measures = ["p50", "size", "cosine", "accuracy", "drop", "partitions", "cpu-nodes", "seconds"]
    .map((id) => columnsById.get(id)).filter((one) => rows.some((row) => one.value(row) !== null));
  const state = { measure: firstMeasure(measures), within: true };
  const table = el("table", { class: "heat" });
  const legend = el("div", { class: "legend" });
  const draw = () => {
    drawHeat(table, state);
    legend.replaceChildren(...heatLegend(state));
  };
  const options = [...measures.map((one) => [one.id, fullLabel(one)]), ["status", LABEL_OF_STATUS]];
  draw();
  return section("heat", "Heat map",
    el("div", { class: "controls" },
      chooser("Show", options, state.measure, (value) => { state.measure = value; draw(); }),
      chooser("Colors compare", [["row", "builds of one row"], ["all", "all builds"]], "row",
        (value) => { state.within = value === "row"; draw(); })),
    legend, scroller("Heat map", table));
}

/** The measure that the first goal minimizes, if there is one. */
function firstMeasure(measures) {
  const wanted = { latency: "p50", size: "size" }[((report.goals || [])[0]?.minimize)];
  return measures.find((one) => one.id === wanted)?.id || measures[0]?.id || "status";
}

function drawHeat(table, state) {
  const targets = distinct(target);
  const precisions = new Map(targets.map((one) => [one, [...new Set(rows.filter((row) => target(row) === one).map((row) => row.precision))]]));
  const columns = targets.flatMap((one) => precisions.get(one).map((precision) => heatKey(one, precision)));
  const lines = heatRows();
  const scales = heatScales(lines, state);
  table.replaceChildren(
    el("caption", { class: "unseen", text: `${state.measure === "status" ? LABEL_OF_STATUS : fullLabel(columnsById.get(state.measure))} by model, target and precision. Arrow keys move between cells.` }),
    el("thead", {},
      el("tr", {}, el("th", { rowspan: "2", scope: "col", text: "Model" }),
        ...targets.map((one) => el("th", { colspan: precisions.get(one).length, scope: "colgroup", class: "group" }, own(one)))),
      el("tr", {}, ...targets.flatMap((one) => precisions.get(one).map((precision, place) =>
        el("th", { scope: "col", class: place === 0 ? "group" : null }, own(precision || NONE)))))),
    el("tbody", {}, ...lines.map((line) => el("tr", {}, el("th", { scope: "row", class: line.label.length < SHORT / 2 ? "short" : null }, own(line.label)),
      ...columns.map((key) => heatCell(key, line.cells.get(key), state.measure, scales.get(line)))))));
  const links = [...table.querySelectorAll("tbody a")];
  roving(table, links, (from, key) => neighbour(links, from, key));
}

function heatKey(where, precision) {
  return JSON.stringify([where, precision]);
}

/** A line per model; if builds differ in more than precision and target, also per value of those axes. */
function heatRows() {
  const place = (row) => JSON.stringify([row.model, target(row), row.precision]);
  const axes = furtherAxes().filter((axis) => {
    const seen = new Map();
    return rows.some((row) => !row.trial_of && differs(seen, place(row), row.values[axis]));
  });
  const lines = new Map();
  for (const row of rows) {
    const label = [row.model, ...axes.map((axis) => row.values[axis]).filter(Boolean)].join(" \u00B7 ");
    const line = lines.get(label) || { label, cells: new Map() };
    lines.set(label, line);
    const key = heatKey(target(row), row.precision);
    line.cells.set(key, [...(line.cells.get(key) || []), row]);
  }
  return [...lines.values()];
}

function differs(seen, key, value) {
  if (!seen.has(key)) seen.set(key, value);
  return seen.get(key) !== value;
}

/** Of several builds in one cell, winners come first, then existing builds, and trials last. */
function foremost(several) {
  return [...several].sort((one, other) => rank(one) - rank(other))[0];
}

function rank(row) {
  return (row.winner_of || []).length ? 0 : (isThere(row) ? 1 : 2) + (row.trial_of ? 2 : 0);
}

function heatScales(lines, state) {
  const measure = columnsById.get(state.measure);
  const shown = (line) => [...line.cells.values()].map(foremost);
  const scale = (some) => {
    const values = measure && measure.better ? some.filter((row) => !saysNothing(measure, row)).map(measure.value).filter((value) => value !== null && Number.isFinite(value)) : [];
    return { low: Math.min(...values), high: Math.max(...values) };
  };
  const common = scale(lines.flatMap(shown));
  return new Map(lines.map((line) => [line, state.within ? scale(shown(line)) : common]));
}

/** Latencies of an emulator cannot be compared with those of a device. */
function saysNothing(measure, row) {
  return measure.part === "latency" && isEmulated(row);
}

/** The rank of a value on the scale, from 0 to STEPS - 1. */
function step(value, scale, measure) {
  const isRatio = (measure.part === "latency" || measure.part === "size") && scale.low > 0;
  const at = isRatio ? Math.log : (one) => one;
  if (scale.high === scale.low) return 3;
  const share = (at(value) - at(scale.low)) / (at(scale.high) - at(scale.low));
  const good = measure.better === "low" ? 1 - share : share;
  return Math.max(0, Math.min(STEPS - 1, Math.floor(good * STEPS)));
}

function heatCell(key, several, id, scale) {
  if (!several) return withTooltip(el("td", { class: "absent" }, glyph("\u00B7"), unseen("not in the sweep")), () => [["Not in the sweep."]]);
  const row = foremost(several);
  const measure = columnsById.get(id);
  const value = measure && id !== "status" ? measure.value(row) : null;
  const cell = el("td", { class: heatClass(row, value, measure, scale), "data-label": JSON.parse(key).join(" ") },
    el("a", { href: addressOf(row) }, ...heatText(row, value, measure),
      trialMark(row) !== "" && el("small", { text: ` ${trialMark(row)}` }), several.length > 1 && el("small", { text: ` +${several.length - 1}` })));
  const why = isThere(row) && value === null && measure && id !== "status" ? [[whyMissing(row, measure.part)]] : [];
  const others = several.length > 1 ? [[`Also here: ${several.filter((one) => one !== row).map((one) => one.name).slice(0, 8).join(", ")}`]] : [];
  withTooltip(cell.firstChild, () => [...aboutRow(row), ...why, ...others]);
  return cell;
}

function heatClass(row, value, measure, scale) {
  const kind = STATUSES[row.status].kind;
  if (!isThere(row)) return `hatched ${kind}`;
  if (!measure || measure.id === "status") return `state ${kind}`;
  if (value === null || saysNothing(measure, row)) return "hatched off";
  return Number.isFinite(value) && scale ? `step-${step(value, scale, measure)}` : "step-3";
}

function heatText(row, value, measure) {
  if (!isThere(row) || !measure || measure.id === "status") return [statusMark(row.status)];
  const winner = row.winner_of && row.winner_of.length ? [glyph("\u2605 "), unseen("winner ")] : [];
  if (value === null) return [...winner, "not measured"];
  const missed = missesBound(row) ? [glyph(" \u25BC"), unseen(" misses its bound")] : [];
  return [...winner, textOf(measure, row), ...(saysNothing(measure, row) ? emulatedMark() : []), ...missed];
}

function neighbour(links, from, key) {
  if (key === "ArrowRight") return from + 1;
  if (key === "ArrowLeft") return from - 1;
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const here = links[from].closest("td");
  const column = here.cellIndex;
  for (let line = sibling(here.parentElement, key); line; line = sibling(line, key)) {
    const link = line.cells[column].querySelector("a");
    if (link) return links.indexOf(link);
  }
  return null;
}

function sibling(line, key) {
  return key === "ArrowDown" ? line.nextElementSibling : line.previousElementSibling;
}

function heatLegend(state) {
  const measure = columnsById.get(state.measure);
  const swatches = el("span", { class: "swatches", "aria-hidden": "true" }, ...Array.from({ length: STEPS }, (_, place) => el("i", { class: `step-${place}` })));
  const entry = (kind, sign, text) =>
    el("span", { class: "entry" }, el("i", { class: kind, "aria-hidden": "true", text: sign }), text);
  const scale = measure && measure.better && state.measure !== "status"
    ? [el("span", { class: "entry" }, "worse", swatches, `better${measure.better === "low" ? " (less)" : " (more)"}`)] : [];
  return [
    ...scale,
    entry("hatched off", "", "nothing to compare: the tooltip says why"),
    ...(measure && rows.some((row) => saysNothing(measure, row)) ? [entry("sign", "?", "on an emulator, which says nothing about the device")] : []),
    ...(rows.some((row) => (row.winner_of || []).length) ? [entry("sign", "\u2605", "winner of a goal")] : []),
    ...(rows.some(missesBound) ? [entry("sign", "\u25BC", "misses its bound")] : []),
    ...(heatRows().some((line) => [...line.cells.values()].some((several) => several.length > 1)) ? [entry("sign", "+1", "more builds there, such as trials")] : []),
  ];
}
