// The content of the page, unpacked from its compact form, and helpers on rows.

const report = JSON.parse(byId("content").textContent);
const rows = report.rows.map(unpacked);
const rowsByName = new Map(rows.map((row) => [row.name, row]));

/** Shorter names are kept on one line. */
const SHORT = 34;

const STATUSES = {
  "built": { glyph: "\u2713", kind: "good" },
  "up to date": { glyph: "\u2713", kind: "good" },
  "failed": { glyph: "\u2717", kind: "bad" },
  "refused": { glyph: "\u2298", kind: "warn" },
  "skipped": { glyph: "\u25CB", kind: "off" },
  "not reached": { glyph: "\u2026", kind: "off" },
};

function unpacked(row) {
  const stages = row.stages.map((values) => {
    const pairs = report.stage_columns.map((name, place) => [name, values[place]]);
    return Object.fromEntries(pairs.map(([name, value]) => [name, isTextOfStage(name) && value !== null ? report.texts[value] : value]));
  });
  return { values: {}, ...row, stages, versions: report.versions[row.versions] };
}

function isTextOfStage(name) {
  return ["id", "stage", "status", "reason", "cache_key", "made_at", "made_by"].includes(name);
}

function isThere(row) {
  return row.status === "built" || row.status === "up to date";
}

function target(row) {
  return [row.ep, row.device].filter((part, place) => part && (place === 0 || part !== row.ep)).join(" ") || NONE;
}

/** Whether the latency comes from an emulator and says nothing about the device. */
function isEmulated(row) {
  return Boolean(row.latency && row.latency.emulated);
}

/** The part of a trial's name after that of its build. */
function trialMark(row) {
  return row.trial_of && row.name.startsWith(row.trial_of) ? row.name.slice(row.trial_of.length).replace(/^\//, " ") : "";
}

/** Whether it exists and misses a bound. */
function missesBound(row) {
  return [row.quality, row.accuracy].some((part) => part && part.passed === false);
}

/** Why a row has no such part; never empty. */
function whyMissing(row, part) {
  const told = part && row.missing && row.missing[part];
  if (told) return told;
  if (!isThere(row)) return whatBecame(row);
  return "Not measured.";
}

function whatBecame(row) {
  const why = row.why || (row.failure && row.failure.error) || "";
  const where = row.failure && row.failure.stage ? ` in ${row.failure.stage}` : "";
  return `${sentence(row.status)}${where}${why ? `: ${why}` : "."}`;
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function addressOf(row) {
  return `#cell/${encodeURIComponent(row.name)}`;
}

function linkTo(name) {
  const row = rowsByName.get(name);
  return row ? el("a", { href: addressOf(row) }, path(name)) : path(name);
}

function statusMark(status) {
  const { glyph: sign, kind } = STATUSES[status] || { glyph: "?", kind: "off" };
  return el("span", { class: `status ${kind}` }, glyph(sign), " ", status);
}

/** Each value once, in the order of the rows. */
function distinct(of) {
  return [...new Set(rows.map(of))];
}

/** Axes that the page has no column for. */
function furtherAxes() {
  const told = (axis, field) =>
    rows.every((row) => row.values[axis] === undefined || row.values[axis] === row[field]);
  return Object.keys(report.axes || {}).filter((axis) => !["model", "precision", "ep", "device"].some((field) => told(axis, field)));
}
