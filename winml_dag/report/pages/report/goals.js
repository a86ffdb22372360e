// The goals, the build that wins each, and why the others do not.

function goals() {
  const all = report.goals || [];
  if (all.length === 0) return null;
  const table = el("table", { class: "goals" }, el("caption", { class: "unseen", text: "Winners" }),
    el("thead", {}, el("tr", {}, ...["For", "Wanted", "Winner", "Results", "Folder"].map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, ...all.map(goalLine)));
  return section("goals", "Goals", scroller("Winners", table),
    el("details", {}, el("summary", { text: "All candidates, and why they were rejected" }), ...all.map(candidates)));
}

function goalLine(goal) {
  const winner = (goal.candidates || []).find((one) => one.cell === goal.winner);
  return el("tr", {}, el("th", { scope: "row" }, own(groupOf(goal))), el("td", { class: "text" }, own(wanted(goal))),
    goal.winner ? el("td", { class: goal.winner.length < SHORT ? "short" : null }, glyph("\u2605 "), linkTo(goal.winner)) : el("td", { class: goal.pending ? "text" : "missed text" }, glyph(goal.pending ? "\u2026 " : "\u2717 "), goal.pending ? "not yet: " : "none: ", own(goal.why || (goal.pending ? "some builds have no result" : "no build meets the bounds"))),
    el("td", { class: "text", text: winner ? figuresOf(winner) : NONE }), el("td", {}, goal.folder ? el("code", {}, path(goal.folder)) : NONE, goal.winner && goal.why && el("div", { class: "small" }, own(goal.why))));
}

function groupOf(goal) {
  return Object.values(goal.group || {}).join(" on ") || "all";
}

function wanted(goal) {
  const bounds = Object.entries(goal.subject_to || {}).map(([measure, bound]) => `${measure} ${bound}`);
  return `smallest ${goal.minimize}${bounds.length ? ` with ${bounds.join(", ")}` : ""}`;
}

function figuresOf(candidate) {
  return Object.entries(candidate.values || {}).map(([measure, value]) => `${measure} ${measureText(measure, value)}`).join(", ");
}

/** Sizes of candidates may differ only slightly, so they get more digits. */
function measureText(measure, value) {
  const told = number(value);
  if (told === null) return "not measured";
  if (measure === "latency") return milliseconds(told);
  if (measure === "size" || measure === "peak_memory") return size(told, 3);
  return measure.startsWith("cosine") ? cosine(told) : digits(told, 4);
}

function candidates(goal) {
  const measures = [...new Set((goal.candidates || []).flatMap((one) => Object.keys(one.values || {})))];
  const line = (one) => el("tr", { class: one.cell === goal.winner ? "winner" : null }, el("th", { scope: "row" }, linkTo(one.cell)),
    ...measures.map((measure) => el("td", { class: "number", text: measureText(measure, (one.values || {})[measure]) })),
    el("td", { class: "text" }, verdictOn(one, goal)));
  return el("div", { class: "candidates" }, el("h3", {}, own(groupOf(goal))), scroller(`Candidates for ${groupOf(goal)}`,
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Build" }),
      ...measures.map((measure) => el("th", { scope: "col", class: "number", text: measure })), el("th", { scope: "col", text: "Verdict" }))),
    el("tbody", {}, ...(goal.candidates || []).map(line)))), ...searched(goal.search));
}

/** What the mixed precision search has tried, and which nodes it keeps. */
function searched(search) {
  if (!search) return [];
  const tried = Object.entries(search.tried || {}).map(([count, holds]) => `${count} ${holds ? "\u2713" : "\u2717"}`).join(", ");
  return [
    definitions([
      ["Search", search.why && own(search.why)], ["Started from", search.cell && linkTo(search.cell)],
      ["Nodes tried", tried && [tried, ` of ${whole(search.ranked || 0)} in ${search.kept}; \u2713: the bounds hold`]],
      ["Fewest nodes that are enough", search.fewest === undefined ? null : [whole(search.fewest), search.trial ? ": " : "", search.trial && linkTo(search.trial)]],
    ], "facts wide"),
    ...(search.nodes ? [el("details", {}, el("summary", { text: `${counted(search.nodes.length, "node")} kept in ${search.kept}` }),
      el("ul", { class: "plain" }, ...search.nodes.map((name) => el("li", {}, path(name)))))] : []),
  ];
}

function verdictOn(candidate, goal) {
  if (candidate.cell === goal.winner) return el("strong", {}, glyph("\u2605 "), "winner");
  if (candidate.why) return el("span", {}, "ruled out: ", own(candidate.why));
  const best = (goal.candidates || []).find((one) => one.cell === goal.winner);
  const [ours, least] = [candidate, best].map((one) => number(one?.values?.[goal.minimize]));
  if (!goal.winner || ours === null || least === null) return el("span", { text: "meets the bounds" });
  const texts = [ours, least].map((value) => measureText(goal.minimize, value));
  if (texts[0] === texts[1]) return el("span", { text: `equal to the winner: ${texts[0]}` });
  const word = { size: "larger", latency: "slower", peak_memory: "larger" }[goal.minimize] || "more";
  return el("span", { text: `${word} than the winner: ${texts[0]} against ${texts[1]}` });
}

function goalsOfCell(row) {
  const concerned = (report.goals || []).flatMap((goal) =>
    (goal.candidates || []).filter((one) => one.cell === row.name).map((one) => ({ goal, one })));
  if (concerned.length === 0) return [];
  return [part("Goals", el("ul", {}, ...concerned.map(({ goal, one }) =>
    el("li", {}, own(`${groupOf(goal)}, ${wanted(goal)}`), ": ", verdictOn(one, goal), figuresOf(one) ? ` (${figuresOf(one)})` : ""))))];
}
