// The first page: totals, then the goals and charts, then the full table.

function overview() {
  const parts = rows.length === 0 ? [] : [comparison(), goals(), heatMap(), plots(), buildTable(), sideBySide(), work(), terms()];
  const shown = parts.filter(Boolean);
  return [totals(), ...(report.notices || []).map((text) => el("p", { class: "notice" }, own(text))), contents(shown), ...shown];
}

function contents(parts) {
  return el("nav", { "aria-label": "On this page" }, ...parts.map((one) => el("a", { href: `#${one.id}`, text: one.querySelector("h2")?.textContent })));
}

function totals() {
  const count = (test) => rows.filter(test).length;
  const graph = report.graph || {};
  const of = (status) => count((row) => row.status === status);
  const found = of("up to date");
  const troubles = [["Failed", of("failed")], ["Refused", of("refused")], ["Skipped", of("skipped")], ["Not reached", of("not reached")]];
  return definitions([
    ["Builds", [el("b", { text: whole(count(isThere)) }), ` of ${whole(rows.length)}`, found > 0 && el("small", { text: `${whole(found)} up to date` })]],
    ...troubles.map(([label, some]) => [label, some > 0 || label === "Failed" ? el("b", { class: some > 0 && label === "Failed" ? "bad" : null, text: whole(some) }) : null]),
    ["Stages", graph.stages ? [el("b", { text: whole(graph.stages) }), graph.stages_apart > graph.stages && el("small", { text: `instead of ${whole(graph.stages_apart)}` })] : null],
    ["Time", report.elapsed_seconds ? [el("b", { text: seconds(report.elapsed_seconds) }), graph.seconds_ran ? el("small", { text: `${seconds(graph.seconds_ran)} of work` }) : null] : null],
    ["Saved by reuse", graph.seconds_saved ? el("b", { text: seconds(graph.seconds_saved) }) : null],
    ["Critical path", graph.critical_path_seconds ? [el("b", { text: seconds(graph.critical_path_seconds) }), el("small", { text: counted((graph.critical_path || []).length, "stage") })] : null],
  ], "totals");
}

/** What the run spent its time on. */
function work() {
  const graph = report.graph || {};
  if (!graph.stages) return null;
  const list = (some = {}) => Object.entries(some).map(([name, count]) => `${name} ${whole(count)}`).join(", ");
  return section("work", "Work",
    el("p", { class: "note", text: "Time counts from the start of the run to its end, with measuring: after all builds, perf runs one model at a time, so that nothing disturbs it. Work adds up the stages, several of which run at a time." }),
    definitions([["Builds in one graph", graph.builds && whole(graph.builds)],
      ["Stages", graph.stages_apart ? `${whole(graph.stages)}; each build by itself would have had ${whole(graph.stages_apart)}` : whole(graph.stages)],
      ["Stages by name", list(graph.by_stage)], ["Stages by result", list(graph.by_status)],
      ["Work done", graph.seconds_ran ? seconds(graph.seconds_ran) : null], ["Saved by reuse", graph.seconds_saved ? seconds(graph.seconds_saved) : null]], "facts wide"),
    graph.critical_path && el("details", {}, el("summary", { text: `Critical path: ${seconds(graph.critical_path_seconds || 0)}` }),
      el("p", { text: "More jobs would not shorten this path: each stage waits for the one before." }),
      el("ol", {}, ...graph.critical_path.map((id) => el("li", {}, path(id))))));
}

/** The page is often sent to somebody without the documentation. */
function terms() {
  return section("terms", "Terms", el("details", {}, el("summary", { text: "What the marks and columns mean" }),
    definitions([
      ["\u2605 winner", "the best build of a goal, within its bounds"],
      ["\u25bc missed", "a value outside the bound that the recipe sets"],
      ["? emulated", "measured on an emulator of the device: compare such latencies with each other only"],
      ["Pareto-dominated", "another build of the model is at least as good in size, latency and quality, and better in one; shown in grey"],
      ["Latency p50, p90, p99", "half, 90 % and 99 % of the inferences took no longer"],
      ["Cosine, SQNR", "how close the outputs are to those of the float model, on samples that were not used for calibration; 1 and high values are best"],
      ["Accuracy, drop", "the metric on labelled data, and how much lower it is than that of the float model"],
      ["Partitions, CPU nodes", "compiled parts of the model, and nodes that the device leaves to the CPU"],
      ["Spent, saved", "time of the stages of this build that ran, and of those whose cached results were reused"],
      ["Up to date, refused, not reached", "nothing had to run; rejected before anything ran; an earlier failure ended the run"]], "facts wide")));
}
