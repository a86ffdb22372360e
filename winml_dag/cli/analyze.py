"""``winml-dag analyze``: what a target supports of a model's operators, and what would help."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import Note, show
from winml_dag.cli.command import FILE, TEXT, Command, file_option, output_file
from winml_dag.cli.measuring import built_model_of, built_model_options, measured, stage_timeout_option
from winml_dag.cli.options import How, how_options, opened
from winml_dag.cli.settings import given_shapes, shape_options
from winml_dag.errors import UsageError
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.analysis import AnalysisPlan, AnalysisRequest, TargetAnalysis
    from winml_dag.pipeline.assess.builtmodel import BuiltModel
    from winml_dag.pipeline.assess.measurement import Measurement
    from winml_dag.store.store import Store

_NOT_SUPPORTED = 1
_TRIES = 3  # same as for builds; repeated damage has a cause that retries do not fix
_VERDICTS = ("supported", "partial", "unsupported", "unknown")
_MEANING = {
    "supported": "runs on the target",
    "partial": "runs, but on the CPU or with other numbers",
    "unsupported": "does not run",
    "unknown": "could not be determined",
}
_MOST_OPERATORS = 15
_MOST_REASON = 160
_SEVERITIES = (("error", "errors"), ("warning", "warnings"), ("note", "info"))


@click.command(name="analyze", cls=Command, panel="Analysis")
@built_model_options
@click.option("--ep", type=TEXT, help="Execution provider, auto, or all that are installed or have a table [auto].")
@click.option("-d", "--device", type=TEXT, help="npu, gpu, cpu, auto or all, or the name of an execution provider.")
@click.option("-p", "--precision", type=TEXT, help="Analyze the model as it will be in this precision, such as w8a16.")
@click.option("--no-information", is_flag=True, help="Only check the model itself, for no target.")
@click.option(
    "--run-unknown-op",
    is_flag=True,
    help="Fail if the execution provider is not installed, instead of using its table.",
)
@file_option("Write the analysis to this file, or into this folder as analyze_result.json.")
@click.option(
    "--optim-config", type=FILE, help="Write a recipe with the capabilities that would help to this file, for -c."
)
@click.option(
    "--save-node",
    type=click.Choice(["partial", "unsupported", "unknown"]),
    multiple=True,
    help="Write a model of one node for each case with this verdict. Repeatable.",
)
@click.option("--save-dir", type=FILE, help="Folder for --save-node [MODEL_nodes].")
@shape_options
@stage_timeout_option
@how_options
def command(**options: Any) -> int:
    """Show which operators of a model a target supports: supported, partial (runs on the CPU, or with different
    results), unsupported, or unknown. If the execution provider is not installed, a table of measurements is used. Also
    show which optimizations would help. Exits with 1 if an operator is not supported.

    \b
    winml-dag analyze model.onnx --ep qnn
    winml-dag analyze model.onnx --ep all
    winml-dag analyze out --ep qnn -p w8a16 --optim-config optim.json
    """
    how = How.of(options)
    if options["output"] is not None:
        options["output"] = output_file(options["output"], "analyze_result.json")
    request = _request_of(options)
    built = built_model_of(options, how)
    return _analyze(built, request, options, how)


def _request_of(options: Mapping[str, Any]) -> AnalysisRequest:
    from winml_dag.pipeline.assess.analysis import AnalysisRequest
    from winml_dag.pipeline.normalization import shapes_of
    from winml_dag.recipe.schema import Export

    lint_only = options["no_information"]
    for name in ("run_unknown_op", "save_node", "optim_config", "precision"):
        if lint_only and options[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--no-information skips what {option} is about.", advice="Give one of them.")
    return AnalysisRequest(
        options["ep"],
        options["device"],
        options["precision"],
        lint_only=lint_only,
        must_ask=options["run_unknown_op"],
        shapes=shapes_of(Export.from_dict(given_shapes(options))),
    )


def _analyze(built: BuiltModel, request: AnalysisRequest, options: Mapping[str, Any], how: How) -> int:
    from winml_dag.pipeline.assess.analysis import merged, optimizations
    from winml_dag.pipeline.jsonfile import put_json

    if options["save_dir"] is not None and not options["save_node"]:
        raise UsageError("--save-dir is the folder of --save-node.", advice="Give --save-node too.")
    _refuse_places(built, options)
    store = opened(how.cache_dir, how.remote)
    plan, done, found = _look(built, request, store, how, options["stage_timeout"])
    _refuse_several(found, options)
    result = merged(plan, found, done.made_at)
    put: dict[str, Path] = {}
    if options["output"] is not None:
        put["report"] = put_json(options["output"], result, "analysis_timestamp", overwrite=how.overwrite)
    if options["optim_config"] is not None:
        put["optim_config"] = put_json(
            options["optim_config"], optimizations(found[0]), "optim", overwrite=how.overwrite
        )
    saved = _save_nodes(plan, done, found, store, options)
    value = analysis_json(plan, done, found, result, put, saved)
    show(value, analysis_lines(plan, done, found, put, saved, quiet=how.quiet))
    return 0 if all(each.is_fine(lint_only=request.lint_only) for each in found) else _NOT_SUPPORTED


def _refuse_several(found: list[TargetAnalysis], options: Mapping[str, Any]) -> None:
    """Raise UsageError, before any file is written, for options that need a single target when there are several."""
    for option in ("optim_config", "save_node"):
        if len(found) > 1 and options[option]:
            raise UsageError(
                f"--{option.replace('_', '-')} is for one target.", advice="Name it with --ep and --device."
            )


def _refuse_places(built: BuiltModel, options: Mapping[str, Any]) -> None:
    """Raise UsageError for output files that would replace the model or each other, even with --overwrite."""
    taken = {(built.folder / name).resolve() for name in built.model.summary.files}
    for option in ("output", "optim_config"):
        path: Path | None = options[option]
        if path is None:
            continue
        if path.resolve() in taken:
            what = f"--{option.replace('_', '-')}: {path} is the model that is read, or named twice."
            raise UsageError(what, advice="Choose another file.")
        taken.add(path.resolve())


def _look(
    built: BuiltModel, request: AnalysisRequest, store: Store, how: How, timeout: float | None
) -> tuple[AnalysisPlan, Measurement, list[TargetAnalysis]]:
    from winml_dag.errors import StoreError
    from winml_dag.pipeline.assess.analysis import plan_analysis, read_analyses
    from winml_dag.store.blobs import BlobDamaged

    plan = plan_analysis(built, request, store.fingerprints)
    for _ in range(_TRIES):
        done = measured(plan.measurement, store, how, timeout_seconds=timeout)
        try:
            return plan, done, read_analyses(plan, done, store)
        except BlobDamaged:
            continue
    raise StoreError(
        "The analysis is damaged in the cache again and again.",
        advice="Check the disk, or choose another cache folder with --cache-dir.",
    )


def _save_nodes(
    plan: AnalysisPlan,
    done: Measurement,
    found: list[TargetAnalysis],
    store: Store,
    options: Mapping[str, Any],
) -> list[Path]:
    from winml_dag.pipeline.assess.analysis import judged_model, nodes_to_save, save_nodes

    if not options["save_node"]:
        return []
    path = plan.built.model.path
    cases: Any = found[0].metrics["cases"]
    nodes = nodes_to_save(cases, set(options["save_node"]))
    folder = options["save_dir"] or path.with_name(f"{path.stem}_nodes")
    with tempfile.TemporaryDirectory() as temporary:
        model = judged_model(plan, done, store, Path(temporary)) if nodes else path
        return list(save_nodes(model, nodes, folder, overwrite=options["overwrite"])) if nodes else []


def analysis_json(
    plan: AnalysisPlan,
    done: Measurement,
    found: Sequence[TargetAnalysis],
    result: JsonObject,
    put: Mapping[str, Path],
    saved: Sequence[Path],
) -> JsonObject:
    """Return all findings per target, and the files written."""
    return {
        "success": True,
        "model": str(plan.built.model.path),
        "supported": all(each.is_fine(lint_only=plan.request.lint_only) for each in found),
        "analyzed": done.freshness,
        "made_at": done.made_at,
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        "notices": list(plan.notices),
        "targets": [
            {
                "execution_provider": each.target.ep.name,
                "device": each.target.device,
                **{name: value for name, value in each.metrics.items() if name not in ("cases", "peak_memory_bytes")},
            }
            for each in found
        ],
        "analysis": result,
        "report": None if "report" not in put else str(put["report"]),
        "optim_config": None if "optim_config" not in put else str(put["optim_config"]),
        "saved_nodes": [str(path) for path in saved],
    }


def analysis_lines(
    plan: AnalysisPlan,
    done: Measurement,
    found: Sequence[TargetAnalysis],
    put: Mapping[str, Path],
    saved: Sequence[Path],
    *,
    quiet: bool,
) -> Iterator[str]:
    """Format the findings for people. *quiet* keeps only the verdicts."""
    when = f"analyzed in {done.elapsed_seconds:.1f} s" if done.is_live else f"cached, analyzed {done.made_at}"
    yield f"{plan.built.model.path}: {when}"
    yield from map(Note, plan.notices)
    if not plan.request.lint_only:
        if len(found) > 1:
            yield from _overview(found)
        for each in found:
            yield ""
            yield from _target_lines(each, quiet=quiet)
    if not quiet:
        yield from _patterns(found[0])
        yield from _lint_lines(found[0])
    for name, path in put.items():
        yield f"{name.replace('_', ' ')}: {path}"
    if saved:
        yield f"saved nodes: {counted(len(saved), 'model')} in {saved[0].parent}"


def _overview(found: Sequence[TargetAnalysis]) -> Iterator[str]:
    yield ""
    names = [f"{each.target.ep.alias} {each.target.device}" for each in found]
    width = max(map(len, names))
    yield "  ".join([" " * width, *(f"{verdict:>11}" for verdict in _VERDICTS)])
    for name, each in zip(names, found, strict=True):
        nodes: Any = each.metrics["nodes"]
        yield "  ".join([f"{name:<{width}}", *(f"{nodes[verdict]:>11}" for verdict in _VERDICTS)])


def _target_lines(analysis: TargetAnalysis, *, quiet: bool) -> Iterator[str]:
    metrics: Any = analysis.metrics
    yield f"{analysis.target.ep.name}, {analysis.target.device}"
    if metrics["table"]:
        yield f"  measured with {metrics['table']}"
    for verdict in _VERDICTS:
        nodes, operators = metrics["nodes"][verdict], metrics["operators"][verdict]
        if nodes or verdict == "supported":
            what = f"{counted(nodes, 'node'):>12} of {counted(operators, 'operator')}"
            yield f"  {verdict:<12}{what}: {_MEANING[verdict]}"
            if verdict != "supported" and not quiet:
                yield from _operator_lines(metrics[verdict], metrics["table"])
    if not quiet:
        yield from _advice(analysis)


def _advice(analysis: TargetAnalysis) -> Iterator[str]:
    """Yield what would help: capabilities, and changes that only the user can make."""
    results: Any = analysis.file["results"]
    table = str(analysis.metrics["table"])
    for information in results[0]["information"]:
        for action in information["actions"]:
            named = "".join(name for item in action["action_items"] for name in item["optimization_options"])
            if action["enabled"] or action["level"] == "warning":
                yield f"  would help: {f'{named}: ' if named else ''}{_short(action['details'], table)}"


def _operator_lines(found: Sequence[Any], table: str) -> Iterator[str]:
    for each in found[:_MOST_OPERATORS]:
        name = each["operator"].removeprefix("OP/").removeprefix("ai.onnx/")
        yield f"    {name:<24}{each['count']:>5}  {_short(each['reason'], table)}"
    if len(found) > _MOST_OPERATORS:
        yield f"    and {counted(len(found) - _MOST_OPERATORS, 'more operator')}"


def _patterns(analysis: TargetAnalysis) -> Iterator[str]:
    patterns: Any = analysis.metrics["patterns"]
    if patterns:
        yield ""
        named = (
            f"{name.removeprefix('SUBGRAPH/').removesuffix('Pattern')} {count}" for name, count in patterns.items()
        )
        yield f"patterns: {', '.join(named)}"


def _lint_lines(analysis: TargetAnalysis) -> Iterator[str]:
    lint: Any = analysis.file["lint"]
    found = [(word, each) for word, key in _SEVERITIES for each in lint[key]]
    if found:
        yield ""
    for word, each in found:
        yield f"{word}: {each['message']} {each['advice']}".rstrip()
    if not found:
        yield "lint: nothing found"


def _short(text: str, table: str) -> str:
    """Shorten *text* and drop the name of the *table*, which is already printed above."""
    text = text.replace(f" ({table})", "") if table else text
    return text if len(text) <= _MOST_REASON else f"{text[: _MOST_REASON - 1]}…"
