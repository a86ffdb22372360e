// What has become worse or better since another report, regressions first.

const FEW = 5;

function comparison() {
  const told = report.comparison;
  if (!told) return null;
  const worse = told.rows.filter((one) => one.is_regression);
  const better = told.rows.filter((one) => one.is_improvement);
  const others = told.rows.filter((one) => !one.is_regression && !one.is_improvement && one.fate !== "in both");
  const unsure = told.rows.filter((one) => !one.is_regression && !one.is_improvement && (one.changes || []).some(isUnsure));
  const same = told.rows.length - worse.length - better.length - others.length;
  return section("comparison", "Since the other report",
    el("p", {}, "Against ", own(told.then), told.then_made_at ? ` of ${moment(told.then_made_at)}` : "", ". Allowed: ",
      own((told.bounds || []).map((bound) => `${bound.measure} ${bound.text}`).join(", ") || "anything"), "."),
    ...(told.notices || []).map((text) => el("p", { class: "notice" }, own(text))),
    changeTable("Worse", "bad", worse), changeTable("Better", "good", better), changeTable("Unsure", "warn", unsure), ...fates(others), ...notCompared(told.rows),
    same > 0 && el("p", { class: "changes", text: `${counted(same, "build")} ${same === 1 ? "is" : "are"} as before, within what is allowed.` }));
}

/** Outside its bound, but with another explanation. */
function isUnsure(change) {
  return change.verdict === "within bound" && Boolean(change.why) && Boolean(number(change.worse));
}

/** Each reason once per measure. */
function notCompared(all) {
  const counts = new Map();
  for (const change of all.flatMap((one) => one.changes || []).filter((one) => one.verdict === "not compared")) {
    const reason = `${change.label}: ${change.why || "not in both"}`;
    counts.set(reason, (counts.get(reason) || 0) + 1);
  }
  if (counts.size === 0) return [];
  return [el("div", { class: "changes" }, el("h3", { text: "Not compared" }), el("ul", {}, ...[...counts].map(([reason, count]) =>
    el("li", {}, own(reason), ` (${counted(count, "build")})`))))];
}

/** Builds that are not in both reports cannot be compared. */
function fates(some) {
  if (some.length === 0) return [];
  const groups = new Map();
  for (const one of some) {
    const told = [one.fate, one.why].filter(Boolean).join(": ");
    groups.set(told, [...(groups.get(told) || []), one.name]);
  }
  return [el("div", { class: "changes" }, el("h3", { text: `New, gone or missing (${some.length})` }),
    el("ul", {}, ...[...groups].map(([told, names]) => el("li", {}, ...namesFor(told, names)))))];
}

/** Long lists of names are collapsed. */
function namesFor(told, names) {
  const links = names.flatMap((name, place) => [place > 0 ? ", " : "", linkTo(name)]);
  const heading = `${sentence(told)} (${counted(names.length, "build")})`;
  if (names.length <= FEW) return [own(`${heading}: `), el("span", {}, ...links)];
  return [el("details", { class: "names" }, el("summary", {}, own(heading)), ...links)];
}

function changeTable(title, kind, some) {
  if (some.length === 0) return title === "Worse" ? el("p", {}, el("span", { class: "status good" }, glyph("\u2713"), " Nothing is worse.")) : null;
  return el("div", { class: "changes" }, el("h3", {}, el("span", { class: `status ${kind}` }, glyph({ bad: "\u25BC ", good: "\u25B2 ", warn: "? " }[kind] || ""), `${title} (${some.length})`)),
    scroller(title, el("table", {}, el("thead", {}, el("tr", {}, ...["Build", "Measure", "Then", "Now", "Difference", "Allowed", "Verdict"].map((text) =>
      el("th", { scope: "col", class: ["Then", "Now", "Difference"].includes(text) ? "number" : null, text })))),
    ...some.map((one) => el("tbody", {}, ...changeLines(one))))));
}

/** Changes outside their bounds; for a build that is not in both reports, its outcome. */
function changeLines(one) {
  const name = (lines) => el("th", { scope: "rowgroup", rowspan: String(lines) }, linkTo(one.name));
  const telling = (one.changes || []).filter((change) => ["regression", "improvement"].includes(change.verdict) || isUnsure(change));
  if (telling.length === 0) return [el("tr", {}, name(1), el("td", { colspan: "6" }, own([one.fate, one.why].filter(Boolean).join(": "))))];
  return telling.map((change, place) => el("tr", {}, place === 0 && name(telling.length), ...changeCells(change)));
}

function changeCells(change) {
  const verdict = isUnsure(change) ? "unsure" : change.verdict;
  const sign = { regression: ["\u25BC", "bad"], improvement: ["\u25B2", "good"], unsure: ["?", "warn"] }[verdict] || ["", "off"];
  return [el("td", { text: change.label }), ...[change.then, change.now].map((value) => el("td", { class: "number", text: changeText(change, value) })),
    el("td", { class: "number", text: differenceText(change) }), el("td", { text: change.bound || NONE }),
    el("td", { class: change.why ? "text" : null }, el("span", { class: `status ${sign[1]}` }, glyph(sign[0]), " ", verdict), change.why && ": ", change.why && own(change.why))];
}

function changeText(change, value) {
  const told = number(value);
  if (told === null) return NONE;
  if (change.unit === "B" || change.unit === "bytes") return size(told);
  return [digits(told, 5), change.unit].filter(Boolean).join(" ");
}

function differenceText(change) {
  const share = number(change.share);
  if (change.then === undefined || change.now === undefined) return NONE;
  const difference = Number(change.now) - Number(change.then);
  const isBytes = change.unit === "B" || change.unit === "bytes";
  const text = isBytes ? `${difference > 0 ? "+" : ""}${size(difference)}` : [signed(difference), change.unit].filter(Boolean).join(" ");
  return share === null ? text : `${text} (${difference < 0 ? "\u2212" : "+"}${digits(Math.abs(100 * share), 2)} %)`;
}

function changesOfCell(row) {
  const one = report.comparison && report.comparison.rows.find((other) => other.name === row.name);
  if (!one) return [];
  const changes = one.changes || [];
  if (one.fate === "in both" && changes.length === 0) return [];
  return [part("Since the other report", el("p", {}, own([sentence(one.fate), one.why].filter(Boolean).join(": "))), changes.length > 0 && scroller("Changes",
    el("table", {}, el("thead", {}, el("tr", {}, ...["Measure", "Then", "Now", "Difference", "Allowed", "Verdict"].map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, ...changes.map((change) => el("tr", {}, ...changeCells(change)))))))];
}

/** Two builds of this report beside each other: what differs in recipe, stages and figures. */
function sideBySide() {
  if (rows.length < 2) return null;
  const two = [rows.find((row) => (row.winner_of || []).length) || rows[0]];
  two.push((rows.find((row) => row !== two[0] && row.model === two[0].model) || rows.find((row) => row !== two[0])));
  const table = el("table", { class: "beside" });
  const draw = () => {
    table.replaceChildren(el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Differs" }), ...two.map((row) => el("th", { scope: "col" }, path(row.name))))),
      el("tbody", {}, ...differences(two).map(([label, ...texts]) => el("tr", {}, el("th", { scope: "row" }, own(label)), ...texts.map((text) => el("td", {}, el("span", { class: "words" }, own(text))))))));
    labelled(table);
  };
  const choosers = ["Build", "Compare with"].map((label, place) => chooser(label, rows.map((row) => [row.name, row.name]), two[place].name,
    (name) => { two[place] = rowsByName.get(name); draw(); }));
  draw();
  return section("beside", "Two builds side by side", el("div", { class: "controls" }, ...choosers), scroller("Two builds side by side", table));
}

/** Every column and every stage in which the builds differ, with a text per build. */
function differences(two) {
  const columns = COLUMNS.filter((one) => one.id !== "name").map((one) => [fullLabel(one), ...two.map((row) => textOf(one, row))]);
  const stages = two.map((row) => new Map(row.stages.map((stage) => [stage.id, stage])));
  const ids = [...new Set(stages.flatMap((some) => [...some.keys()]))];
  const ofStages = ids.filter((id) => stages[0].get(id)?.cache_key !== stages[1].get(id)?.cache_key)
    .map((id) => [`Stage ${id}`, ...stages.map((some) => stageText(some.get(id)))]);
  return [...columns.filter(([, one, other]) => one !== other), ...ofStages];
}

function stageText(stage) {
  if (!stage) return NONE;
  const time = stage.made_in_seconds ?? stage.elapsed_seconds;
  return [STAGE_WORDS[stage.status] || stage.status, time ? seconds(time) : "", stage.cache_key ? stage.cache_key.slice(0, 12) : stage.reason].filter(Boolean).join(", ");
}
