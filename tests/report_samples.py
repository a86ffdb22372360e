"""Reports for the page: a small one with everything a report may contain, and one of 500 builds.

Numbers are derived from positions in the sweep, so that every run has the same ones. Names are as hostile as users may
choose.
"""

from __future__ import annotations

from dataclasses import replace

from winml_dag.pipeline.sweep.result import (
    Candidate,
    CellStatus,
    Failure,
    GoalResult,
    SearchResult,
    SharedGraph,
    StageRun,
)
from winml_dag.report.compare import Bound, Change, Compared, Comparison, Fate, Verdict
from winml_dag.report.row import Accuracy, Latency, Placement, Quality, Report, Row, Size

INJECTED = '</script><script>window.injected = 1</script><img src=x onerror="window.injected = 2">'
RIGHT_TO_LEFT = "نموذج"
OVERRIDE = "evil\u202ecod"

MODELS = ("bert-base", "resnet-50", "clip-text", RIGHT_TO_LEFT)
PRECISIONS = ("fp32", "fp16", "w8a8", "w8a16", "w4a16")
TARGETS = (("cpu", "cpu"), ("qnn", "npu"))
# For fp32: bytes, milliseconds.
_WHOLE = {
    "bert-base": (438e6, 41.0),
    "resnet-50": (102e6, 18.5),
    "clip-text": (254e6, 29.0),
    RIGHT_TO_LEFT: (61e6, 7.4),
}
_SMALLER = {"fp32": 1.0, "fp16": 0.5, "w8a8": 0.26, "w8a16": 0.27, "w4a16": 0.17}
_FASTER = {"fp32": 1.0, "fp16": 1.1, "w8a8": 0.42, "w8a16": 0.55, "w4a16": 0.71}
_COSINE = {"fp32": 1.0, "fp16": 0.99998, "w8a8": 0.971, "w8a16": 0.9973, "w4a16": 0.9869}
_STAGES = ("export", "optimize.0", "analyze.0", "calibrate", "quantize", "compile", "validate", "finalize")
_VERSIONS = {"onnx": "1.23.2", "onnxruntime": "1.31.1", "torch": "2.13.0+cpu", "transformers": "5.23.0"}


def small_report() -> Report:
    """Return 40 cells: built, up to date, failed, rejected, skipped and not reached, with winners and missing parts."""
    rows = [
        _row(model, precision, ep, device, place)
        for place, (model, precision, (ep, device)) in enumerate(
            (model, precision, target) for model in MODELS for precision in PRECISIONS for target in TARGETS
        )
    ]
    return Report(
        name="What to ship in autumn",
        subjects=("out/autumn",),
        made_at="2026-11-22T10:46:54+00:00",
        began_at="2026-11-22T10:31:12.144231+00:00",
        rows=(*rows, _trial(rows)),
        axes={"model": MODELS, "precision": PRECISIONS, "target": ("cpu", "npu")},
        graph=SharedGraph(
            builds=38,
            stages=163,
            stages_apart=291,
            by_stage={"export": 4, "optimize": 12, "calibrate": 8, "quantize": 30, "compile": 19, "validate": 38},
            by_status={"ran": 121, "reused": 41, "failed": 1},
            seconds_ran=1630.5,
            seconds_saved=2412.0,
            critical_path=("bert-base/export", "bert-base/calibrate", "bert-base/w8a8/npu/compile"),
            critical_path_seconds=311.0,
        ),
        goals=_goals(),
        host={"system": "Linux x86-64", "processor": "2 cores"},
        elapsed_seconds=942.3,
        made_by="winml_dag 0.1.0",
        notices=("out/autumn/old: its manifest is damaged and was skipped.",),
    )


def large_report(builds: int = 500) -> Report:
    """Return *builds* cells of one sweep, with eight stages each and the longest possible names."""
    targets = ("cpu", "dml", "qnn", "openvino", "vitisai")
    rows = []
    for place in range(builds):
        model, rest = divmod(place, 25)
        precision, ep = PRECISIONS[rest // 5], targets[rest % 5]
        name = f"microsoft-model-family-{model:02d}"
        row = _measured_row(f"{name}/{precision}/{ep}", name, precision, ep, "npu" if rest % 2 else "cpu", place)
        rows.append(row if place % 17 else _failed(row))
    return Report(name="Large", subjects=("out/large",), made_at="2026-11-22T10:46:54+00:00", rows=tuple(rows))


def hostile_report() -> Report:
    """Return names, reasons and logs that would run as code, end an element or reverse the page unless treated
    as text.
    """
    row = _measured_row(INJECTED, INJECTED, "w8a8", OVERRIDE, "npu", 3)
    failed = _failed(_measured_row("failed" + INJECTED, RIGHT_TO_LEFT, "w8a16", OVERRIDE, "npu", 4), INJECTED)
    odd = _measured_row("100 % \udcff#?&", "long" * 60, "w8a8", "qnn", "npu", 5)
    return Report(
        name=INJECTED,
        subjects=(INJECTED,),
        made_at=INJECTED,
        rows=(row, failed, odd),
        axes={INJECTED: (INJECTED,)},
        host={INJECTED: INJECTED},
        notices=(INJECTED,),
        graph=SharedGraph(builds=1, stages=1, stages_apart=2, by_stage={INJECTED: 1}, critical_path=(INJECTED,)),
        goals=(
            GoalResult({"model": INJECTED}, INJECTED, {INJECTED: INJECTED}, None, (Candidate(INJECTED, {}, INJECTED),)),
        ),
    )


def bare_report() -> Report:
    """Return one plain build with no data except that it exists."""
    row = Row("out", {}, "model.onnx", "fp32", "cpu", "cpu", CellStatus.BUILT, missing={"size": "It has no files."})
    return Report(name="out", subjects=("out",), made_at="2026-11-22T10:46:54+00:00", rows=(row,))


def comparison_with(report: Report) -> Comparison:
    """Compare with an older report: one build is slower, one smaller, one fails now, one is new, the others are the
    same.
    """
    there = [row for row in report.rows if row.latency is not None and row.size is not None]
    slower, smaller = there[0], there[1]
    failing = next(row for row in report.rows if row.status is CellStatus.FAILED)
    rows = [
        _compared(slower, Fate.SAME, (_slower(slower),)),
        _compared(failing, Fate.NOW_FAILING, (), "compile failed"),
        _compared(smaller, Fate.SAME, (_smaller(smaller),)),
        _compared(there[2], Fate.NEW),
        _compared(there[3], Fate.SAME, (_noisy(there[3]),)),
        *(_compared(row, Fate.SAME) for row in there[4:]),
    ]
    return Comparison(
        then="out/summer",
        now="out/autumn",
        then_made_at="2026-08-01T08:00:00+00:00",
        now_made_at=report.made_at,
        bounds=(
            Bound("latency", 0.05, True, "+5%"),
            Bound("size", 0.01, True, "+1%"),
            Bound("cosine", 0.001, False, "-0.001"),
        ),
        rows=tuple(rows),
        notices=("3 latencies were not compared: they were measured on an emulator.",),
    )


def _row(model: str, precision: str, ep: str, device: str, place: int) -> Row:
    row = _measured_row(f"{model}/{precision}/{device}", model, precision, ep, device, place)
    if precision == "fp32" and ep == "qnn":
        return _without(row, CellStatus.SKIPPED, "QNN is for integers here")
    if model == "resnet-50" and precision == "w4a16" and ep == "qnn":
        return _without(row, CellStatus.REFUSED, "4-bit weights need MatMul, and a convolution has none")
    if model == "clip-text" and (precision, ep) == ("w8a8", "qnn"):
        return _failed(row)
    if model == RIGHT_TO_LEFT and precision == "w4a16":
        return _without(row, CellStatus.NOT_REACHED, "the run was interrupted")
    return row


def _measured_row(name: str, model: str, precision: str, ep: str, device: str, place: int) -> Row:
    size, milliseconds = _WHOLE.get(model, (50e6 + 1e6 * (place // 25), 3.0 + place % 25 / 3))
    is_npu = device == "npu"
    bytes_, p50 = int(size * _SMALLER[precision]), milliseconds * _FASTER[precision] * (0.35 if is_npu else 1)
    cosine = _COSINE[precision] - (0.0011 if is_npu and precision != "fp32" else 0) - place % 7 * 1e-4
    wins = (precision, ep) == ("w8a16", "qnn")
    loses = precision == "w8a16" and ep == "cpu" and place % 2 == 0 and model == "resnet-50"
    return Row(
        name=name,
        values={"model": model, "precision": precision, "target": device},
        model=model,
        precision=precision,
        ep=ep,
        device=device,
        status=CellStatus.UP_TO_DATE if place % 5 == 4 else CellStatus.BUILT,
        task="feature-extraction",
        reached="finalize",
        folder=f"out/autumn/{name}",
        stages=_stages(place),
        size=Size(bytes_, bytes_ - 2048, int(bytes_ * 2.4), embeds_binary=False),
        latency=Latency(
            round(p50, 3),
            round(p50 * 1.08, 3),
            round(p50 * 1.31, 3),
            200,
            20,
            "live" if place % 3 else "cached",
            "2026-11-22T10:44:00+00:00",
            0.41,
            int(bytes_ * 1.6),
            emulated=is_npu and model == "clip-text",
        )
        if place % 11 != 10
        else None,
        quality=Quality(
            round(cosine, 6),
            round(cosine - 0.006, 6),
            31.4 if precision != "fp32" else float("inf"),
            0.043,
            50,
            "sentences.csv",
            0.975,
            cosine >= 0.975,
        ),
        accuracy=Accuracy(
            "accuracy",
            round(0.913 - (1 - cosine) / 2, 4),
            True,
            1000,
            "live",
            "2026-11-22T10:45:00+00:00",
            0.913,
            round((1 - cosine) / 2, 4),
            (0.89, 0.93),
            (1 - cosine) > 0.02,
        )
        if model != "clip-text"
        else None,
        placement=Placement(1 + place % 3, {"Gather": 2, INJECTED: 1} if place % 3 else {}) if is_npu else None,
        nodes_quantized=70 if precision.startswith("w") else None,
        nodes_skipped=3 if precision.startswith("w") else None,
        skipped_reasons={"Softmax is kept in float": 3} if precision.startswith("w") else {},
        seconds=round(21.5 + place % 13 * 3.7, 1),
        made_in_seconds=120.0,
        saved_seconds=round(60.0 + place % 9 * 4.1, 1),
        peak_memory_bytes=2_300_000_000 + place * 1_000_000,
        versions=_VERSIONS | ({"onnxruntime-qnn": "2.7.0", "QNN SDK": "2.51.0"} if is_npu else {}),
        digest="sha256:" + f"{place:02x}" * 32,
        command=f"winml-dag build -c autumn.yaml --filter '{name}' -o out/autumn",
        missing={
            "latency": "perf was interrupted before its turn came.",
            "accuracy": "eval has no data for feature-extraction: set eval.dataset.",
            "placement": "It is not compiled: the CPU runs all of its nodes.",
        },
        dominated_by=f"{model}/w8a8/{device}" if loses else None,
        dominated_why="smaller and faster at equal cosine" if loses else "",
        winner_of=(f"least latency for {model} on npu",) if wins and model in MODELS[:2] else (),
    )


def _stages(place: int) -> tuple[StageRun, ...]:
    """Return the runs: the first three stages are reused, the others run one after the other."""
    runs = []
    started = 40.0 + place * 1.5
    for number, stage in enumerate(_STAGES):
        is_found = number < 3
        took = round(1.4 + (place * 7 + number * 5) % 11 * 1.3, 2)
        runs.append(
            StageRun(
                id=stage,
                stage=stage.split(".")[0],
                status="reused" if is_found else "ran",
                reason="nothing changed" if is_found else f"quant.samples: {10 + place} -> {20 + place}",
                cache_key=f"{place // 10 if is_found else place:04x}{number:02x}" + "9f3a5c71e2b4d680" * 3,
                elapsed_seconds=0.0 if is_found else took,
                made_in_seconds=took,
                started_seconds=None if is_found else round(started, 2),
                peak_memory_bytes=int(2e8 + number * 9e7),
                made_at=f"2026-11-22T10:3{number % 10}:11+00:00",
                made_by="winml_dag 0.1.0",
                cells=10 if is_found else 1,
            )
        )
        started += 0 if is_found else took + 0.3
    return tuple(runs)


def _without(row: Row, status: CellStatus, why: str) -> Row:
    return Row(row.name, row.values, row.model, row.precision, row.ep, row.device, status, why=why, command=row.command)


def _failed(row: Row, said: str = "") -> Row:
    tail = (
        *(f"[compile] node {number}: op validated" for number in range(17)),
        said or "QNN_GRAPH_ERROR 0x1786: tensor rank 6",
    )
    before = row.stages[4]
    started = round((before.started_seconds or 0) + before.elapsed_seconds, 2)
    last = StageRun("compile", "compile", "failed", "never built before", "ab" * 32, 4.2, None, started)
    failure = Failure(
        "compile",
        "QNN's compiler gave up: the graph has a tensor of rank 6" + said,
        "Exclude the node with quant.nodes_to_exclude, or take another opset.",
        "/cache/failures/1f3a.log",
        tail,
    )
    return replace(
        _without(row, CellStatus.FAILED, ""),
        reached="quantize",
        stages=(*row.stages[:5], last),
        failure=failure,
        seconds=31.0,
        saved_seconds=22.0,
        folder=row.folder,
    )


def _trial(rows: list[Row]) -> Row:
    base = next(row for row in rows if row.name == "bert-base/w8a8/npu")
    trial = _measured_row("bert-base/w8a8/npu/keep-6", base.model, base.precision, base.ep, base.device, 6)
    assert trial.quality is not None
    good = replace(trial.quality, cosine=0.9921, cosine_min=0.985, passed=True)
    return replace(trial, trial_of=base.name, winner_of=("least size for bert-base on npu",), quality=good)


def _goals() -> tuple[GoalResult, ...]:
    bounds = {"cosine": ">=0.99", "accuracy_drop": "<=0.01"}
    return (
        GoalResult(
            {"model": "bert-base", "target": "npu"},
            "latency",
            bounds,
            "bert-base/w8a16/npu",
            (
                _candidate("bert-base/w8a16/npu", 7.89, 0.9956, 0.0022),
                _candidate("bert-base/fp16/npu", 15.785, 0.9985, 0.0008),
                _candidate("bert-base/w8a8/npu", 6.03, 0.9697, 0.0152, "cosine 0.9697 is below 0.99"),
                _candidate("bert-base/w4a16/npu", None, 0.985, 0.0075, "latency was not measured"),
            ),
            folder="out/autumn/best/bert-base-npu",
            search=SearchResult(
                "bert-base/w8a8/npu",
                "16 bits",
                74,
                {0: False, 8: True, 4: False, 6: True, 5: False},
                6,
                tuple(f"/encoder/layer.{place}/MatMul" for place in range(6)),
                "bert-base/w8a8/npu/keep-6",
                "6 of 74 nodes are enough.",
            ),
        ),
        GoalResult(
            {"model": "resnet-50", "target": "npu"},
            "latency",
            bounds,
            "resnet-50/w8a16/npu",
            (_candidate("resnet-50/w8a16/npu", 3.56, 0.9958, 0.0021),),
            folder="out/autumn/best/resnet-50-npu",
            why="measured on an emulator, which says nothing about a real device: latency",
            search=SearchResult("", "", 0, {}, why="no cell misses only a bound on quality"),
        ),
        GoalResult(
            {"model": "clip-text", "target": "npu"},
            "latency",
            bounds,
            None,
            (Candidate("clip-text/w8a8/npu", {"latency": None, "cosine": None}, "it failed"),),
            why="no build meets cosine >=0.99; the nearest is clip-text/w4a16/npu with 0.985",
        ),
    )


def _candidate(cell: str, latency: float | None, cosine: float, drop: float, why: str = "") -> Candidate:
    return Candidate(cell, {"latency": latency, "cosine": cosine, "accuracy_drop": drop}, why)


def _compared(row: Row, fate: Fate, changes: tuple[Change, ...] = (), why: str = "") -> Compared:
    then = None if fate is Fate.NEW else row.name
    return Compared(row.name, then, fate, row.model, row.precision, row.ep, row.device, changes, why)


def _slower(row: Row) -> Change:
    assert row.latency is not None
    then, now = round(row.latency.p50 / 1.12, 3), row.latency.p50
    return Change("latency", "latency p50", "ms", then, now, now - then, 0.12, "+5%", Verdict.REGRESSION)


def _noisy(row: Row) -> Change:
    assert row.latency is not None
    then, now, why = row.latency.p50 / 1.4, row.latency.p50, "a thread waited for a processor"
    return Change("latency", "latency p50", "ms", then, now, now - then, 0.4, "+5%", Verdict.WITHIN, why)


def _smaller(row: Row) -> Change:
    assert row.size is not None
    then, now = row.size.model * 1.3, float(row.size.model)
    return Change("size", "size", "bytes", then, now, now - then, -0.23, "+1%", Verdict.IMPROVEMENT)
