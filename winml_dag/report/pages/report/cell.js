// The page of one build: its measurements, its stages, and the command that repeats it.

function cellPage(row) {
  return [
    el("p", { class: "back" }, el("a", { href: "#", text: "\u2190 All builds" })),
    el("h2", { id: "cell-title", tabindex: "-1" }, path(row.name)),
    el("p", { class: "lead" }, statusMark(row.status), isThere(row) && !row.why ? "" : el("span", {}, ": ", own(row.why || (row.failure && row.failure.error) || ""))),
    ...failurePart(row),
    ...cellFacts(row),
    ...measuredPart(row),
    ...goalsOfCell(row),
    ...changesOfCell(row),
    row.stages.length > 0 && part("Stages", ...timeline(row)),
    commandPart(row),
    ...originPart(row),
  ].filter(Boolean);
}

function part(title, ...children) {
  return el("section", { class: "part" }, el("h3", { text: title }), ...children);
}

function failurePart(row) {
  const failure = row.failure;
  if (!failure) return [];
  return [part("Error",
    definitions([["Stage", own(failure.stage || "before the first stage")], ["Error", own(failure.error)],
      ["What to do", failure.advice && own(failure.advice)], ["Reached", row.reached && own(row.reached)], ["Whole log", failure.log && el("code", {}, path(failure.log))]], "facts wide"),
    failure.tail && el("h4", { text: "End of the log" }),
    failure.tail && verbatim("End of the log", failure.tail.join("\n")))];
}

function cellFacts(row) {
  const values = Object.entries(row.values || {}).map(([axis, label]) => [sentence(axis), own(label)]);
  const named = new Set(values.map(([axis]) => axis.toLowerCase()));
  const plain = (label, field) => [named.has(field) ? "" : label, named.has(field) ? null : row[field] && own(row[field])];
  return [definitions([
    ...values, plain("Model", "model"), plain("Precision", "precision"), ["EP and device", own(target(row))], ["Task", row.task && own(row.task)],
    ["Components", row.components && own(row.components.join(", "))],
    ["Stage reached", isThere(row) || row.failure ? null : row.reached && own(row.reached)],
    ["Trial of", row.trial_of && linkTo(row.trial_of)],
    ["Pareto-dominated by", row.dominated_by ? [linkTo(row.dominated_by), row.dominated_why && ": ", row.dominated_why && own(row.dominated_why)] : null],
    ["Time spent", seconds(row.seconds || 0)], ["Time saved", seconds(row.saved_seconds || 0)],
    ["Peak memory of the build", row.peak_memory_bytes && size(row.peak_memory_bytes)],
    ["Folder", row.folder && el("code", {}, path(row.folder))],
  ]), ...(row.notices || []).map((text) => el("p", { class: "notice" }, own(text)))];
}

const CARDS = [
  ["Size", "size", ["size", "sidecar", "folder-size", "embeds"]],
  ["Latency", "latency", ["p50", "p90", "p99", "inferences", "warmup", "load", "memory", "emulated", "latency-source"]],
  ["Quality against the float model", "quality", ["cosine", "cosine-min", "sqnr", "error", "quality-samples", "quality-data", "quality-bound"]],
  ["Accuracy", "accuracy", ["accuracy", "metric", "reference", "drop", "interval", "significant", "accuracy-samples", "accuracy-bound", "accuracy-source"]],
];

function measuredPart(row) {
  if (!isThere(row) && ![...CARDS.map(([, name]) => name), "placement"].some((name) => row[name])) return [];
  return [el("div", { class: "cards" }, ...CARDS.map(([title, name, ids]) => card(row, title, name, ids)), nodesCard(row))];
}

function card(row, title, name, ids) {
  if (!row[name]) return el("section", { class: "card" }, el("h3", { text: title }), el("p", { class: "missing" }, own(whyMissing(row, name))));
  const [first, ...others] = ids.map((id) => columnsById.get(id));
  const missed = row[name].passed === false ? "missed" : "";
  return el("section", { class: "card" }, el("h3", { text: title }),
    el("p", { class: `figure ${missed}` }, textOf(first, row), missed && glyph(" \u25BC"), missed && unseen(" misses its bound"), el("small", { text: ` ${first.label.toLowerCase()}` })),
    definitions(others.filter((one) => one.value(row) !== null).map((one) => [labelOnCard(one), own(textOf(one, row))])));
}

function labelOnCard(one) {
  return one.id.endsWith("-source") ? "Measured" : one.id === "emulated" ? "On" : one.label;
}

/** Where the nodes run, and how many were quantized. */
function nodesCard(row) {
  const placed = row.placement;
  const counts = (some = {}) => Object.entries(some).sort((one, other) => other[1] - one[1]);
  const lists = [["Of these", counts(placed && placed.cpu_nodes)], ["Skipped because", counts(row.skipped_reasons)]];
  return el("section", { class: "card" }, el("h3", { text: "Where its nodes run" }),
    placed ? el("p", { class: "figure" }, whole(placed.partitions), el("small", { text: ` partition${placed.partitions === 1 ? "" : "s"}` }))
      : el("p", { class: "missing" }, own(whyMissing(row, "placement"))),
    definitions([["Nodes on the CPU", placed && whole(cpuNodes(row) || 0)],
      ["Nodes quantized", row.nodes_quantized === undefined ? null : whole(row.nodes_quantized)],
      ["Nodes skipped", row.nodes_skipped === undefined ? null : whole(row.nodes_skipped)]]),
    ...lists.filter(([, some]) => some.length > 0).map(([label, some]) => el("div", {}, el("h4", { text: String(label) }),
      el("ul", { class: "plain" }, ...some.map(([name, count]) => el("li", {}, `${whole(count)} \u00D7 `, own(name)))))));
}

function commandPart(row) {
  if (!row.command) return part("Build it again", el("p", { class: "missing", text: "No command was kept." }));
  return part("Build it again", el("div", { class: "command" }, verbatim("Command", row.command),
    el("button", { type: "button", text: "Copy", on: { click: (event) => copy(row.command, event.currentTarget) } })));
}

function originPart(row) {
  const versions = Object.entries(row.versions || {});
  return [row.digest && part("Digest of the model", verbatim("Digest of the model", row.digest)),
    versions.length > 0 && part("Versions", definitions(versions.map(([name, version]) => [name, own(String(version))]), "facts versions"))];
}
