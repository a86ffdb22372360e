// The table of all builds: sortable by heading, filtered by words and choosers, with selectable columns.


const FILTERS = [["model", "Model"], ["precision", "Precision"], ["target", "EP and device"], ["status", "Status"]];

function buildTable() {
  const axes = furtherAxes();
  const state = { sort: "", down: false, words: [], chosen: {}, columns: new Set(usualColumns()) };
  const table = el("table", { class: "builds" });
  const count = el("p", { class: "count", role: "status" });
  let lines = new Map();
  const filter = () => applyFilter(state, lines, count);
  const redraw = () => { lines = drawTable(table, state, sort); filter(); };
  const sort = (id) => {
    const better = columnsById.get(id)?.better;
    state.down = state.sort === id ? !state.down : better === "high";
    state.sort = id;
    sortLines(table, state, lines);
  };
  const search = el("input", { type: "search", placeholder: "bert npu failed", on: { input: () => { state.words = wordsOf(search.value); filter(); } } });
  const choosers = [...FILTERS, ...axes.map((axis) => [`axis:${axis}`, axis])].map(([id, label]) => filterChooser(id, label, state, filter)).filter(Boolean);
  const clear = el("button", { type: "button", text: "Clear", on: { click: () => {
    search.value = "";
    choosers.forEach((one) => { one.querySelector("select").value = ""; });
    state.words = []; state.chosen = {}; filter();
  } } });
  redraw();
  return section("table", "All builds",
    el("div", { class: "controls" }, el("label", { class: "chooser" }, el("span", { text: "Find" }), search), ...choosers, clear),
    columnChooser(state, redraw), count, scroller("All builds", table));
}

function usualColumns() {
  return COLUMNS.filter((one) => one.usual && (one.lasting || rows.some((row) => one.value(row) !== null))).map((one) => one.id);
}

function wordsOf(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function filterValue(row, id) {
  if (id.startsWith("axis:")) return row.values[id.slice(5)] || NONE;
  return id === "target" ? target(row) : row[id] || NONE;
}

function filterChooser(id, label, state, filter) {
  const values = distinct((row) => filterValue(row, id));
  if (values.length < 2) return null;
  const options = values.map((value) => [value, value]);
  return chooser(label, [["", "all"], ...options], "", (value) => { state.chosen[id] = value; filter(); });
}

function columnChooser(state, redraw) {
  const box = (one) => {
    const input = el("input", { type: "checkbox", checked: state.columns.has(one.id), disabled: Boolean(one.lasting), value: one.id,
      on: { change: () => { input.checked ? state.columns.add(one.id) : state.columns.delete(one.id); redraw(); } } });
    return el("label", {}, input, " ", one.label);
  };
  const groups = [...new Set(COLUMNS.map((one) => one.group))];
  const boxes = el("div", { class: "boxes" }, ...groups.map((group) =>
    el("fieldset", {}, el("legend", { text: group }), ...COLUMNS.filter((one) => one.group === group).map(box))));
  const preset = (text, ids) => el("button", { type: "button", text, on: { click: () => {
    state.columns = new Set(ids());
    boxes.querySelectorAll("input").forEach((input) => { input.checked = state.columns.has(input.value); });
    redraw();
  } } });
  return el("details", { class: "columns" }, el("summary", { text: "Columns" }),
    el("div", { class: "controls" }, preset("Default", usualColumns), preset("All", () => COLUMNS.map((one) => one.id))), boxes);
}

function drawTable(table, state, sort) {
  const columns = COLUMNS.filter((one) => state.columns.has(one.id));
  const lines = new Map(rows.map((row) => [row, tableLine(row, columns)]));
  const headings = columns.map((one) => el("th", { scope: "col", "data-column": one.id, class: isNumeric(one) ? "number" : null },
    el("button", { type: "button", title: one.label === fullLabel(one) ? null : fullLabel(one), on: { click: () => sort(one.id) } }, ...headingText(one))));
  table.replaceChildren(
    el("caption", { class: "unseen", text: "All builds. A heading is a button that sorts by its column." }),
    el("thead", {}, el("tr", {}, ...headings)), el("tbody"));
  sortLines(table, state, lines);
  labelled(table);
  return lines;
}

/** The arrow is on the side away from the numbers, so that the heading aligns with them. */
function headingText(one) {
  const arrow = el("span", { class: "arrow", "aria-hidden": "true" });
  return isNumeric(one) ? [arrow, one.label] : [one.label, arrow];
}

function tableLine(row, columns) {
  const line = el("tr", { class: [row.dominated_by ? "dominated" : "", (row.winner_of || []).length ? "winner" : ""].join(" ").trim() || null });
  line.append(...columns.map((one) => tableCell(row, one)));
  return line;
}

function tableCell(row, one) {
  if (one.id === "name") {
    const link = withTooltip(el("a", { href: addressOf(row) }, path(row.name)), () => aboutRow(row));
    return el("th", { scope: "row", class: row.name.length < SHORT ? "short" : null }, (row.winner_of || []).length > 0 && glyph("\u2605 "), link);
  }
  if (one.id === "status") return el("td", {}, withTooltip(statusMark(row.status), () => aboutRow(row)));
  const value = one.value(row);
  const kind = isNumeric(one) ? "number" : null;
  if (value === null) {
    return withTooltip(el("td", { class: `${kind || ""} none` }, glyph(NONE), unseen(isThere(row) ? "none" : row.status)), () => [[whyMissing(row, one.part)]]);
  }
  const missed = one.held && one.held(row) === false;
  return el("td", { class: [kind, missed ? "missed" : ""].filter(Boolean).join(" ") || null }, textCell(one, row, value), ...(one.text === milliseconds && isEmulated(row) ? emulatedMark() : []), missed && glyph(" \u25BC"), missed && unseen(" misses its bound"));
}

function textCell(one, row, value) {
  if (isNumeric(one)) return textOf(one, row);
  return one.id === "dominated" || one.id === "trial" ? linkTo(value) : el("span", { class: "words" }, own(textOf(one, row)));
}

/** Missing values come last in either direction. */
function sortLines(table, state, lines) {
  const body = table.querySelector("tbody");
  body.replaceChildren(...sorted(state).map((row) => lines.get(row)));
  for (const heading of table.querySelectorAll("thead th")) {
    const isSorted = heading.getAttribute("data-column") === state.sort;
    if (isSorted) heading.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  }
}

function sorted(state) {
  const by = columnsById.get(state.sort);
  if (!by) return rows;
  const values = new Map(rows.map((row) => [row, by.value(row)]));
  const sign = state.down ? -1 : 1;
  return [...rows].sort((one, other) => compared(values.get(one), values.get(other), sign));
}

const inOrder = new Intl.Collator("en", { numeric: true });

function compared(one, other, sign) {
  if (one === null || other === null) return Number(one === null) - Number(other === null);
  return sign * (typeof one === "number" ? one - other || 0 : inOrder.compare(one, other));
}

function applyFilter(state, lines, count) {
  let shown = 0;
  for (const [row, line] of lines) {
    const fits = Object.entries(state.chosen).every(([id, value]) => value === "" || filterValue(row, id) === value)
      && state.words.every((word) => haystack(row).includes(word));
    if (line.hidden === fits) line.hidden = !fits;
    shown += Number(fits);
  }
  const text = shown === rows.length ? counted(rows.length, "build") : `${whole(shown)} of ${counted(rows.length, "build")}`;
  if (count.textContent !== text) count.textContent = text;
}

const haystacks = new WeakMap();

/** The text of a row that words are searched in, including hidden columns. */
function haystack(row) {
  const known = haystacks.get(row);
  if (known !== undefined) return known;
  const text = COLUMNS.map((one) => textOf(one, row)).join("\n").toLowerCase();
  haystacks.set(row, text);
  return text;
}
