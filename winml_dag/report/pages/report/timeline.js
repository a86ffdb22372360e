// The stages of a build on one time scale: when each ran, and the original duration of reused ones.

const STAGE_WORDS = { ran: "ran", reused: "found", skipped: "skipped", failed: "failed" };

function timeline(row) {
  const scale = timeScale(row.stages);
  const table = el("table", { class: "stages" },
    el("caption", { class: "unseen", text: "Stages in their order" }),
    el("thead", {}, el("tr", {}, ...["Stage", "Result", "Time", "", "Why", "Peak memory", "Key"].map((text) =>
      el("th", { scope: "col", class: text === "" ? "bars" : ["Time", "Peak memory"].includes(text) ? "number" : null }, text || unseen("Drawn"))))),
    el("tbody", {}, ...row.stages.map((stage) => stageLine(stage, scale))));
  return [
    el("p", { class: "legend" },
      el("span", { class: "entry" }, el("i", { class: "bar ran" }), "ran in this sweep, from its beginning on"),
      el("span", { class: "entry" }, el("i", { class: "bar reused" }), "found: what it had taken to make")),
    scroller("Stages", table),
  ];
}

function timeScale(stages) {
  const ran = stages.filter(hasRun);
  const from = ran.length ? Math.min(...ran.map((stage) => stage.started_seconds)) : 0;
  const ends = ran.map((stage) => stage.started_seconds + stage.elapsed_seconds);
  const found = stages.filter((stage) => stage.status === "reused").map((stage) => from + (stage.made_in_seconds || 0));
  return { from, to: Math.max(from + 0.001, ...ends, ...found) };
}

function hasRun(stage) {
  return (stage.status === "ran" || stage.status === "failed") && stage.started_seconds !== null;
}

function stageLine(stage, scale) {
  const shared = stage.cells > 1 ? `, shared by ${stage.cells} builds` : "";
  const made = stage.status === "reused" && !stage.reason.includes(stage.made_at) ? [moment(stage.made_at), stage.made_by === report.made_by ? "" : stage.made_by].filter(Boolean).join(", ") : "";
  return el("tr", { class: stage.status },
    el("th", { scope: "row" }, own(stage.id)),
    el("td", {}, stageMark(stage.status), shared, made && el("div", { class: "small" }, own(`made ${made}`))),
    el("td", { class: "number", text: stageTime(stage) }),
    el("td", { class: "bars" }, stageBar(stage, scale)),
    el("td", {}, el("span", { class: "words" }, own(moment(stage.reason || NONE)))),
    el("td", { class: "number", text: stage.peak_memory_bytes ? size(stage.peak_memory_bytes) : NONE }),
    el("td", {}, stage.cache_key ? withTooltip(el("code", { class: "key", text: stage.cache_key }), () => [[stage.cache_key]]) : NONE));
}

function stageMark(status) {
  const [sign, kind] = { ran: ["\u25B6", "good"], reused: ["\u21BA", "good"], failed: ["\u2717", "bad"] }[status] || ["\u25CB", "off"];
  return el("span", { class: `status ${kind}` }, glyph(sign), " ", STAGE_WORDS[status] || status);
}

function stageTime(stage) {
  if (stage.status === "reused") return stage.made_in_seconds === null ? NONE : `(${seconds(stage.made_in_seconds)})`;
  return hasRun(stage) || stage.elapsed_seconds > 0 ? seconds(stage.elapsed_seconds) : NONE;
}

function stageBar(stage, scale) {
  const isFound = stage.status === "reused";
  const length = isFound ? stage.made_in_seconds || 0 : hasRun(stage) ? stage.elapsed_seconds : 0;
  if (length === 0 && !hasRun(stage)) return null;
  const whole = scale.to - scale.from;
  const bar = el("div", { class: `bar ${stage.status}` });
  bar.style.marginInlineStart = `${isFound ? 0 : (100 * (stage.started_seconds - scale.from)) / whole}%`;
  bar.style.width = `${(100 * length) / whole}%`;
  return bar;
}
