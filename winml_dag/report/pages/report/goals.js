// The goals, the build that wins each, and why the others do not.

/** @returns {HTMLElement | null} */
function goals() {
  const all = report.goals || [];
  if (all.length === 0) return null;
  const table = el("table", { class: "goals" }, el("caption", { class: "unseen", text: "Winners" }),
    el("thead", {}, el("tr", {}, ...["For", "Wanted", "Winner", "Its figures", "Put into"].map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, ...all.map(goalLine)));
  return section("goals", "Goals", scroller("Winners", table),
    el("details", {}, el("summary", { text: "All candidates, and what ruled them out" }), ...all.map(candidates)));
}

/** @param {any} goal */
function goalLine(goal) {
  const winner = (goal.candidates || []).find((/** @type {any} */ one) => one.cell === goal.winner);
  return el("tr", {}, el("th", { scope: "row" }, own(groupOf(goal))), el("td", { class: "text" }, own(wanted(goal))),
    goal.winner ? el("td", { class: goal.winner.length < SHORT ? "short" : null }, glyph("\u2605 "), linkTo(goal.winner)) : el("td", { class: goal.pending ? "text" : "missed text" }, glyph(goal.pending ? "\u2026 " : "\u2717 "), goal.pending ? "not yet: " : "none: ", own(goal.why || (goal.pending ? "some builds have no result" : "no build meets the bounds"))),
    el("td", { class: "text", text: winner ? figuresOf(winner) : NONE }), el("td", {}, goal.folder ? el("code", {}, path(goal.folder)) : NONE, goal.winner && goal.why && el("div", { class: "small" }, own(goal.why))));
}

/** @param {any} goal */
function groupOf(goal) {
  return Object.values(goal.group || {}).join(" on ") || "all";
}

/** @param {any} goal */
function wanted(goal) {
  const bounds = Object.entries(goal.subject_to || {}).map(([measure, bound]) => `${measure} ${bound}`);
  return `least ${goal.minimize}${bounds.length ? ` with ${bounds.join(", ")}` : ""}`;
}

/** @param {any} candidate */
function figuresOf(candidate) {
  return Object.entries(candidate.values || {}).map(([measure, value]) => `${measure} ${measureText(measure, value)}`).join(", ");
}

/** Sizes of candidates may differ only slightly, so they get more digits. @param {string} measure @param {any} value */
function measureText(measure, value) {
  const told = number(value);
  if (told === null) return "not measured";
  if (measure === "latency") return milliseconds(told);
  if (measure === "size" || measure === "peak_memory") return size(told, 3);
  return measure.startsWith("cosine") ? cosine(told) : digits(told, 4);
}

/** @param {any} goal */
function candidates(goal) {
  const measures = [...new Set((goal.candidates || []).flatMap((/** @type {any} */ one) => Object.keys(one.values || {})))];
  const line = (/** @type {any} */ one) => el("tr", { class: one.cell === goal.winner ? "winner" : null }, el("th", { scope: "row" }, linkTo(one.cell)),
    ...measures.map((measure) => el("td", { class: "number", text: measureText(measure, (one.values || {})[measure]) })),
    el("td", { class: "text" }, verdictOn(one, goal)));
  return el("div", { class: "candidates" }, el("h3", {}, own(groupOf(goal))), scroller(`Candidates for ${groupOf(goal)}`,
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Build" }),
      ...measures.map((measure) => el("th", { scope: "col", class: "number", text: measure })), el("th", { scope: "col", text: "Verdict" }))),
    el("tbody", {}, ...(goal.candidates || []).map(line)))), ...searched(goal.search));
}

/** What the mixed precision search has tried, and which nodes it keeps. @param {any} search @returns {HTMLElement[]} */
function searched(search) {
  if (!search) return [];
  const tried = Object.entries(search.tried || {}).map(([count, holds]) => `${count} ${holds ? "\u2713" : "\u2717"}`).join(", ");
  return [
    definitions([
      ["Search", search.why && own(search.why)], ["Began with", search.cell && linkTo(search.cell)],
      ["Nodes tried", tried && [tried, ` of ${whole(search.ranked || 0)} in ${search.kept}; \u2713: the bounds hold`]],
      ["Fewest that do", search.fewest === undefined ? null : [whole(search.fewest), search.trial ? ": " : "", search.trial && linkTo(search.trial)]],
    ], "facts wide"),
    ...(search.nodes ? [el("details", {}, el("summary", { text: `${counted(search.nodes.length, "node")} kept in ${search.kept}` }),
      el("ul", { class: "plain" }, ...search.nodes.map((/** @type {string} */ name) => el("li", {}, path(name)))))] : []),
  ];
}

/** @param {any} candidate @param {any} goal @returns {HTMLElement} */
function verdictOn(candidate, goal) {
  if (candidate.cell === goal.winner) return el("strong", {}, glyph("\u2605 "), "winner");
  if (candidate.why) return el("span", {}, "ruled out: ", own(candidate.why));
  const best = (goal.candidates || []).find((/** @type {any} */ one) => one.cell === goal.winner);
  const [ours, least] = [candidate, best].map((one) => number(one?.values?.[goal.minimize]));
  if (!goal.winner || ours === null || least === null) return el("span", { text: "meets the bounds" });
  const texts = [ours, least].map((value) => measureText(goal.minimize, value));
  if (texts[0] === texts[1]) return el("span", { text: `equal to the winner: ${texts[0]}` });
  const word = { size: "larger", latency: "slower", peak_memory: "larger" }[/** @type {string} */ (goal.minimize)] || "more";
  return el("span", { text: `${word} than the winner: ${texts[0]} against ${texts[1]}` });
}

/** @param {Row} row @returns {HTMLElement[]} */
function goalsOfCell(row) {
  const concerned = (report.goals || []).flatMap((/** @type {any} */ goal) =>
    (goal.candidates || []).filter((/** @type {any} */ one) => one.cell === row.name).map((/** @type {any} */ one) => ({ goal, one })));
  if (concerned.length === 0) return [];
  return [part("Goals", el("ul", {}, ...concerned.map((/** @type {any} */ { goal, one }) =>
    el("li", {}, own(`${groupOf(goal)}, ${wanted(goal)}`), ": ", verdictOn(one, goal), figuresOf(one) ? ` (${figuresOf(one)})` : ""))))];
}
