// All columns of a build: how to compute and format the value, and whether lower or higher is better.

// Of a column, `value` and `text` are functions of a row and of the value; `part` is the part of a row it is read from,
// `better` is "low" or "high", `held` tells whether a bound was met, and `usual` whether it is shown at first.
const column = (id, label, group, value, more = {}) => ({ id, label, group, value, ...more });
const figure = (part, name) => (row) => (row[part] ? number(row[part][name]) : null);
const word = (part, name) => (row) => (row[part] && row[part][name]) || null;
const either = (part, name, yes, no) => (row) => (row[part] ? (row[part][name] ? yes : no) : null);
const passed = (part) => (row) => row[part] && row[part].passed;
const verdict = (part) => (row) => {
  if (!row[part]) return null;
  const bound = number(row[part].bound);
  if (row[part].passed === undefined) return "no bound";
  return `${row[part].passed ? "met" : "missed"}${bound === null ? "" : ` (${digits(bound, 4)})`}`;
};
const source = (part) => (row) =>
  row[part] ? [row[part].measured, moment(row[part].made_at)].filter(Boolean).join(", ") || null : null;

const AS = {
  ms: { text: milliseconds, better: "low", part: "latency" },
  bytes: { text: (value) => size(value), better: "low", part: "size" },
  count: { text: whole },
  time: { text: seconds },
  quality: { text: (value) => digits(value, 4), part: "quality" },
  accuracy: { text: (value) => digits(value, 4), part: "accuracy" },
};

/** A build that never started has no time, rather than zero. */
function spent(row, told) {
  return row.stages.length > 0 || told ? number(told) || 0 : null;
}

function cpuNodes(row) {
  return row.placement ? Object.values(row.placement.cpu_nodes || {}).reduce((sum, count) => sum + count, 0) : null;
}

/** A value that all builds share or that is in their names needs no column. */
const isUsual = (...fields) => new Set(rows.map((row) => row[fields[0]])).size !== 1
  && !rows.every((row) => fields.some((field) => row.name.includes(row[field] || "")));

const COLUMNS = [
  column("name", "Build", "Build", (row) => row.name, { usual: true, lasting: "always shown" }),
  column("model", "Model", "Build", (row) => row.model, { usual: isUsual("model") }),
  column("precision", "Precision", "Build", (row) => row.precision, { usual: isUsual("precision") }),
  column("ep", "EP", "Build", (row) => row.ep, { usual: isUsual("ep", "device") }),
  column("device", "Device", "Build", (row) => row.device || null, {}),
  column("task", "Task", "Build", (row) => row.task || null),
  ...furtherAxes().map((axis) => column(`axis-${axis}`, axis, "Build", (row) => row.values[axis] || null)),
  column("status", "Status", "Build", (row) => row.status, { usual: true }),
  column("reached", "Stage reached", "Build", (row) => row.reached || null),
  column("why", "Why", "Build", (row) => (isThere(row) ? row.why || null : whatBecame(row))),
  column("winner", "Winner of", "Build", (row) => (row.winner_of || []).join(", ") || null),
  column("trial", "Trial of", "Build", (row) => row.trial_of || null),
  column("dominated", "Pareto-dominated by", "Build", (row) => row.dominated_by || null,
    { text: (value, row) => (row.dominated_why ? `${value} (${row.dominated_why})` : value) }),
  column("size", "Size", "Size", figure("size", "model"), { ...AS.bytes, usual: true }),
  column("sidecar", "Beside the ONNX file", "Size", figure("size", "sidecar"), AS.bytes),
  column("folder-size", "Whole folder", "Size", figure("size", "folder"), AS.bytes),
  column("embeds", "Binary", "Size", either("size", "embeds_binary", "embedded", "not embedded"), { part: "size" }),
  column("p50", "Latency p50", "Speed", figure("latency", "p50"), { ...AS.ms, usual: true }),
  column("p90", "p90", "Speed", figure("latency", "p90"), AS.ms),
  column("p99", "p99", "Speed", figure("latency", "p99"), AS.ms),
  column("inferences", "Inferences", "Speed", figure("latency", "inferences"), { ...AS.count, part: "latency" }),
  column("warmup", "Warm-up", "Speed", figure("latency", "warmup"), { ...AS.count, part: "latency" }),
  column("load", "Loading", "Speed", figure("latency", "load_seconds"), { ...AS.time, better: "low", part: "latency" }),
  column("memory", "Peak memory", "Speed", figure("latency", "peak_memory_bytes"), { ...AS.bytes, part: "latency" }),
  column("emulated", "Measured on", "Speed", either("latency", "emulated", "an emulator", "a device"), { part: "latency" }),
  column("latency-source", "Latency from", "Speed", source("latency"), { part: "latency" }),
  column("cosine", "Cosine", "Quality", figure("quality", "cosine"),
    { text: cosine, better: "high", part: "quality", usual: true, held: passed("quality") }),
  column("cosine-min", "Lowest cosine", "Quality", figure("quality", "cosine_min"),
    { text: cosine, better: "high", part: "quality", held: passed("quality") }),
  column("sqnr", "SQNR (dB)", "Quality", figure("quality", "sqnr_db"), { ...AS.quality, better: "high" }),
  column("error", "Largest error", "Quality", figure("quality", "max_abs_error"), { ...AS.quality, better: "low" }),
  column("quality-samples", "Samples", "Quality", figure("quality", "samples"), { ...AS.count, part: "quality" }),
  column("quality-data", "Data", "Quality", word("quality", "data"), { part: "quality" }),
  column("quality-bound", "Bound", "Quality", verdict("quality"), { part: "quality", held: passed("quality") }),
  column("metric", "Metric", "Accuracy", word("accuracy", "metric"), { part: "accuracy" }),
  column("accuracy", "Accuracy", "Accuracy", figure("accuracy", "value"), { ...AS.accuracy, better: "high", usual: true, held: passed("accuracy") }),
  column("interval", "95 of 100 in", "Accuracy",
    (row) => (row.accuracy && row.accuracy.interval ? row.accuracy.interval.map((end) => digits(Number(end), 4)).join(" \u2026 ") : null), { part: "accuracy" }),
  column("reference", "Reference", "Accuracy", figure("accuracy", "reference"), AS.accuracy),
  column("drop", "Drop", "Accuracy", figure("accuracy", "drop"),
    { ...AS.accuracy, better: "low", usual: true, held: passed("accuracy") }),
  column("significant", "Beyond chance", "Accuracy", either("accuracy", "significant", "yes", "not shown"), { part: "accuracy" }),
  column("accuracy-samples", "Samples", "Accuracy", figure("accuracy", "samples"), { ...AS.count, part: "accuracy" }),
  column("accuracy-bound", "Bound", "Accuracy", verdict("accuracy"), { part: "accuracy", held: passed("accuracy") }),
  column("accuracy-source", "Accuracy from", "Accuracy", source("accuracy"), { part: "accuracy" }),
  column("partitions", "Partitions", "Nodes", figure("placement", "partitions"), { ...AS.count, better: "low", part: "placement", usual: true }),
  column("cpu-nodes", "CPU nodes", "Nodes", cpuNodes, { ...AS.count, better: "low", part: "placement", usual: true }),
  column("quantized", "Nodes quantized", "Nodes", (row) => number(row.nodes_quantized), AS.count),
  column("skipped", "Nodes skipped", "Nodes", (row) => number(row.nodes_skipped), AS.count),
  column("seconds", "Spent", "Time", (row) => spent(row, row.seconds), { ...AS.time, better: "low", usual: true }),
  column("saved", "Saved", "Time", (row) => spent(row, row.saved_seconds), { ...AS.time, better: "high", usual: true }),
  column("made-in", "All its stages", "Time", (row) => spent(row, row.made_in_seconds), { ...AS.time, better: "low" }),
  column("build-memory", "Peak memory of the build", "Time", (row) => number(row.peak_memory_bytes), { text: (value) => size(value), better: "low" }),
  column("digest", "Digest", "Origin", (row) => row.digest || null),
  column("folder", "Folder", "Origin", (row) => row.folder || null),
  column("versions", "Versions", "Origin",
    (row) => Object.entries(row.versions || {}).map(([name, version]) => `${name} ${version}`).join(", ") || null),
];

const columnsById = new Map(COLUMNS.map((one) => [one.id, one]));

function textOf(one, row) {
  const value = one.value(row);
  if (value === null) return NONE;
  return one.text ? one.text(value, row) : String(value);
}

/** Shown next to a latency that was measured on an emulator. */
function emulatedMark() {
  return [glyph(" ?"), unseen(" on an emulator")];
}

/** The heading outside the table, where it needs more context. */
function fullLabel(one) {
  const alone = { "seconds": "Time spent", "saved": "Time saved", "cpu-nodes": "Nodes on the CPU", "drop": "Accuracy drop", "p90": "Latency p90", "p99": "Latency p99", "quality-samples": "Samples of quality", "accuracy-samples": "Samples of accuracy" };
  return alone[one.id] || one.label;
}

function isNumeric(one) {
  return one.better !== undefined || one.text === whole || one.text === seconds;
}
