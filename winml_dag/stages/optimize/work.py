"""The work of the optimize stage: the portable level, then what each capability adds, then the portable level again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import RecipeError, StageError
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.hierarchy import carry_tags, tag_of
from winml_dag.onnxmodel.inspect import ModelSummary, inspect_model
from winml_dag.onnxmodel.metadata import canonicalise, carry_metadata
from winml_dag.stages.discovered import Discovered
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget
from winml_dag.stages.optimize.applying import apply_capabilities
from winml_dag.stages.optimize.capabilities import CATALOG
from winml_dag.stages.optimize.portable import IN_HALF_PRECISION, HalfPrecisionError, to_portable_level
from winml_dag.stages.optimize.selection import WHOLE, Selection, select
from winml_dag.stages.optimize.unfit import refuse_unfit

OPTIMIZED_FILE = "optimized.onnx"

_PORTABLE_FILE = Path("portable.onnx")
_FINISHED_FILE = Path("finished.onnx")


@dataclass(frozen=True)
class _Rewritten:
    """The model after the rewrites: its file; by capability, how many places changed, and what was left and why."""

    path: Path
    applied: Mapping[str, int]
    left: Mapping[str, str]


def run(config: OptimizeConfig, workspace: Workspace) -> JsonObject:
    """Write the optimized model; its metrics are ``nodes_before``, ``nodes_after``, ``applied`` (changes by
    capability beyond the portable level), ``left`` (by capability, what stayed as it was and why) and ``tagged_nodes``.
    A model that onnxruntime cannot optimize without casting its float16 to float32 is put out as it is.

    Peak of memory: about the size of the weights; that of the largest tensor where they are in a file of their own.

    Raises:
        StageError: for a compiled or quantized model, capabilities that are unknown or contradict each
            other, or a model that onnxruntime cannot load.
    """
    discovered = _discovered(workspace)
    chosen = _chosen(config, discovered)
    target = OptimizeTarget(config.target.standard_domain_only or discovered.standard_domain_only)
    source = workspace.input_file("model", ".onnx")
    before = inspect_model(source)
    refuse_unfit(source.name, before)
    try:
        to_portable_level(source, _PORTABLE_FILE, without=chosen.without | chosen.waiting)
    except HalfPrecisionError:
        return _leave(source, before, chosen, workspace.outputs["model"] / OPTIMIZED_FILE)
    _check_operators(before, inspect_model(_PORTABLE_FILE), ())
    rewritten = _rewrite(source, chosen, target)
    after = inspect_model(rewritten.path)
    _check_operators(before, after, () if target.standard_domain_only else chosen.on)
    _check_interface(before, after)
    tagged = _save(rewritten.path, source, after, workspace.outputs["model"] / OPTIMIZED_FILE)
    return {
        "nodes_before": before.total_nodes,
        "nodes_after": after.total_nodes,
        "applied": dict(rewritten.applied),
        "left": dict(rewritten.left),
        "tagged_nodes": tagged,
    }


def _leave(source: Path, summary: ModelSummary, chosen: Selection, destination: Path) -> JsonObject:
    """Put the model out as it is, and say that nothing was done."""
    model = load_model(source, weights=False)
    save_model(model, destination)
    return {
        "nodes_before": summary.total_nodes,
        "nodes_after": summary.total_nodes,
        "applied": dict.fromkeys(chosen.on, 0),
        "left": dict.fromkeys((WHOLE, *chosen.on), IN_HALF_PRECISION),
        "tagged_nodes": sum(bool(tag_of(node)) for node in model.graph.node),
    }


def _chosen(config: OptimizeConfig, discovered: Discovered) -> Selection:
    """What the recipe says wins over what was discovered, and over what that needs."""
    off = {name for name, on in config.optim.items() if not on}
    found = {name: True for name in discovered.capabilities if not off.intersection((name, *CATALOG[name].needs))}
    try:
        return select({**found, **config.optim})
    except RecipeError as error:
        raise StageError(str(error), advice=f"Known are: {', '.join(CATALOG)}.") from error


def _discovered(workspace: Workspace) -> Discovered:
    if not workspace.has("flags"):
        return Discovered()
    return Discovered.read(workspace.input_file("flags", ".json"))


def _rewrite(source: Path, chosen: Selection, target: OptimizeTarget) -> _Rewritten:
    """Do what is *chosen* to the portable model. With no change at all it is the portable level's file that comes
    back.
    """
    made = apply_capabilities(_PORTABLE_FILE, chosen, target)
    if any(made.applied.values()):
        # Inference knows nothing of operators outside the standard, and these shapes are fresh.
        to_portable_level(made.path, _FINISHED_FILE, keep_shapes=True, without=chosen.without)
        return _Rewritten(_FINISHED_FILE, made.applied, made.left)
    if chosen.waiting:
        to_portable_level(source, _PORTABLE_FILE, without=chosen.without)
    return _Rewritten(_PORTABLE_FILE, made.applied, made.left)


def _domains(model: ModelSummary) -> set[str]:
    return {name.rpartition("/")[0] for name in model.op_counts}


def _check_operators(before: ModelSummary, after: ModelSummary, names: Sequence[str]) -> None:
    """Operators from outside the standard may come only from *before*, or by the capabilities *names*."""
    allowed = {operator for name in names for operator in CATALOG[name].makes}
    foreign = {name for name in after.op_counts if "/" in name} - set(before.op_counts) - allowed
    if foreign:
        raise StageError(
            f"Optimizing put in {', '.join(sorted(foreign))}, which not every execution provider takes.",
            advice="Report this with the model; until it is solved, set skip_optimize.",
        )


def _check_interface(before: ModelSummary, after: ModelSummary) -> None:
    for was, now in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        if [(spec.name, spec.dtype) for spec in was] != [(spec.name, spec.dtype) for spec in now]:
            raise StageError(
                f"Optimizing changed {', '.join(spec.name for spec in was)} to {', '.join(spec.name for spec in now)}.",
                advice="Report this with the model; until it is solved, set skip_optimize.",
            )


def _save(path: Path, source: Path, after: ModelSummary, destination: Path) -> int:
    """Returns how many nodes of the result say which module they come from, as those of *source* do."""
    model = load_model(path, weights=False)
    # onnxruntime writes down all domains that it knows.
    used = {"", *_domains(after)}
    imports = sorted((entry.domain, entry.version) for entry in model.opset_import if entry.domain in used)
    del model.opset_import[:]
    for domain, version in imports:
        model.opset_import.add(domain=domain, version=version)
    original = load_model(source, weights=False)
    # onnxruntime describes the nodes that it makes.
    canonicalise(model)
    carry_metadata(original, model)
    tagged = carry_tags(original, model)
    save_model(model, destination)
    return tagged
