"""The work of the optimize stage: the portable level, then each capability, then the portable level again.

Capabilities are applied one at a time, in the order of the catalog. Consecutive rewrites share one graph in memory,
whose weights stay in their file. Each transformer of onnxruntime gets a session of its own, which is slower but shows
exactly what each one changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import RecipeError, StageError
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.inspect import ModelSummary, inspect_model
from winml_dag.onnxmodel.metadata import canonicalise, carry_metadata, carry_tags, tag_of
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages.float_model import refuse_finished
from winml_dag.stages.optimize import WHOLE, Discovered, OptimizeConfig, OptimizeTarget, Selection, select
from winml_dag.stages.optimize.levels import IN_HALF_PRECISION, HalfPrecisionError, run_alone, to_portable_level

OPTIMIZED_FILE = "optimized.onnx"

_PORTABLE_FILE = Path("portable.onnx")
_FINISHED_FILE = Path("finished.onnx")


@dataclass(frozen=True)
class Applied:
    """The result: the model file and, by capability, the number of changes, and what was left unchanged and why."""

    path: Path
    applied: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


def run(config: OptimizeConfig, workspace: Workspace) -> JsonObject:
    """Write the optimized model and return the metrics.

    The metrics are ``nodes_before``, ``nodes_after``, ``applied`` (changes by capability beyond the portable level),
    ``left`` (by capability, what stayed unchanged and why) and ``tagged_nodes``. A model that onnxruntime cannot
    optimize without casting its float16 to float32 is written unchanged.

    Peak memory: about the size of the weights, or of the largest tensor if the weights are in a separate file.

    Raises:
        StageError: the model is compiled or quantized, capabilities are unknown or contradict each other, or
            onnxruntime cannot load the model.
    """
    has_flags = workspace.has("flags")
    discovered = Discovered.read(workspace.input_file("flags", ".json")) if has_flags else Discovered()
    chosen = _chosen(config, discovered)
    target = OptimizeTarget(config.target.standard_domain_only or discovered.standard_domain_only)
    source = workspace.input_file("model", ".onnx")
    before = inspect_model(source)
    # onnxruntime would turn QDQ groups into QLinear operators, which compilers for NPUs do not support.
    refuse_finished(source.name, before, "optimized")
    try:
        to_portable_level(source, _PORTABLE_FILE, without=chosen.without | chosen.waiting)
    except HalfPrecisionError:
        return _leave(source, before, chosen, workspace.outputs["model"] / OPTIMIZED_FILE)
    portable = inspect_model(_PORTABLE_FILE)
    _check_operators(before, portable, ())
    made = _apply_chosen(source, chosen, target)
    after = portable if made.path == _PORTABLE_FILE and not chosen.waiting else inspect_model(made.path)
    _check_operators(before, after, () if target.standard_domain_only else chosen.on)
    _check_interface(before, after)
    tagged = _save(made.path, source, after, workspace.outputs["model"] / OPTIMIZED_FILE)
    return {
        "nodes_before": before.total_nodes,
        "nodes_after": after.total_nodes,
        "applied": dict(made.applied),
        "left": dict(made.left),
        "tagged_nodes": tagged,
    }


def _chosen(config: OptimizeConfig, discovered: Discovered) -> Selection:
    """Select the capabilities: the recipe wins over discovered capabilities, and over what those need."""
    off = {name for name, on in config.optim.items() if not on}
    found = {name: True for name in discovered.capabilities if not off.intersection((name, *CATALOG[name].needs))}
    try:
        return select({**found, **config.optim})
    except RecipeError as error:
        raise StageError(str(error), advice=f"Known are: {', '.join(CATALOG)}.") from error


def _leave(source: Path, summary: ModelSummary, chosen: Selection, destination: Path) -> JsonObject:
    """Write the model unchanged and report that nothing was applied."""
    model = load_model(source, weights=False)
    save_model(model, destination)
    return {
        "nodes_before": summary.total_nodes,
        "nodes_after": summary.total_nodes,
        "applied": dict.fromkeys(chosen.on, 0),
        "left": dict.fromkeys((WHOLE, *chosen.on), IN_HALF_PRECISION),
        "tagged_nodes": sum(bool(tag_of(node)) for node in model.graph.node),
    }


def _apply_chosen(source: Path, chosen: Selection, target: OptimizeTarget) -> Applied:
    """Apply *chosen* to the portable model; return that model's own file if nothing changes."""
    made = apply_capabilities(_PORTABLE_FILE, chosen, target)
    if any(made.applied.values()):
        # Shape inference does not support operators outside the standard, and these shapes are up to date.
        to_portable_level(made.path, _FINISHED_FILE, keep_shapes=True, without=chosen.without)
        return Applied(_FINISHED_FILE, made.applied, made.left)
    if chosen.waiting:
        to_portable_level(source, _PORTABLE_FILE, without=chosen.without)
    return Applied(_PORTABLE_FILE, made.applied, made.left)


def apply_capabilities(source: Path, chosen: Selection, target: OptimizeTarget) -> Applied:
    """Apply *chosen* to the model *source*, in new files next to it; return *source* itself if nothing changes."""
    path, applied, left = source, dict[str, int](), dict[str, str]()
    possible: list[str] = []
    for name in chosen.on:
        capability = CATALOG[name]
        if reason := _why_left(name, target):
            applied[name], left[name] = 0, reason
        elif capability.extended or capability.rewrite:
            possible.append(name)
    for alone, group in groupby(possible, key=lambda name: "" if CATALOG[name].rewrite else name):
        step = _run_onnxruntime(path, alone) if alone else _rewrite(path, tuple(group), target)
        path, applied, left = step.path, {**applied, **step.applied}, {**left, **step.left}
    in_order = [name for name in chosen.on if name in applied]
    return Applied(path, {name: applied[name] for name in in_order}, {n: left[n] for n in in_order if left.get(n)})


def _why_left(name: str, target: OptimizeTarget) -> str:
    capability = CATALOG[name]
    if target.standard_domain_only and capability.makes and not capability.has_standard_form:
        return f"it makes {', '.join(capability.makes)}, and the target takes operators of the ONNX standard only"
    return capability.left


def _rewrite(source: Path, names: tuple[str, ...], target: OptimizeTarget) -> Applied:
    # Imported here: onnxscript and onnx_ir take 0.6 s to import, longer than most stages without a rewrite.
    from winml_dag.stages.optimize.rewriting import rewrite_file

    destination = source.with_name(f"{source.stem}_{names[0]}.onnx")
    outcomes = rewrite_file(source, destination, [CATALOG[name].rewrite for name in names], target)
    applied = {name: outcome.changes for name, outcome in zip(names, outcomes, strict=True)}
    left = {name: outcome.left for name, outcome in zip(names, outcomes, strict=True)}
    return Applied(destination if any(applied.values()) else source, applied, left)


def _run_onnxruntime(source: Path, name: str) -> Applied:
    capability = CATALOG[name]
    destination = source.with_name(f"{source.stem}_{name}.onnx")
    run_alone(capability.extended, source, destination)
    before, after = (inspect_model(path).op_counts for path in (source, destination))
    changes = (abs(after.get(operator, 0) - before.get(operator, 0)) for operator in capability.into)
    places = next(filter(None, changes), 0)
    return Applied(destination if places else source, {name: places})


def _check_operators(before: ModelSummary, after: ModelSummary, names: Sequence[str]) -> None:
    """Refuse non-standard operators that are neither in *before* nor made by the capabilities *names*."""
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
    """Write the result; return how many of its nodes carry the module tag that *source* gives them."""
    model = load_model(path, weights=False)
    # onnxruntime lists all domains that it supports.
    used = {"", *(name.rpartition("/")[0] for name in after.op_counts)}
    imports = sorted((entry.domain, entry.version) for entry in model.opset_import if entry.domain in used)
    del model.opset_import[:]
    for domain, version in imports:
        model.opset_import.add(domain=domain, version=version)
    original = load_model(source, weights=False)
    # onnxruntime adds descriptions to the nodes that it creates.
    canonicalise(model)
    carry_metadata(original, model)
    tagged = carry_tags(original, model)
    save_model(model, destination)
    return tagged
