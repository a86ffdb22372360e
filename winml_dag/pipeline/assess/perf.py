"""Plan perf (a finished model, the target to run on, and how to measure it) as a graph, and read its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Node, Source, SourceFile, config_json
from winml_dag.ep.availability import require_installed
from winml_dag.ep.registry import Target
from winml_dag.errors import InputError, UsageError
from winml_dag.installed import distribution_version, versions
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import UNKNOWN_DIMENSION, UNKNOWN_RANK
from winml_dag.onnxmodel.precision import precision_of
from winml_dag.pipeline.assess.builtmodel import BuiltModel, measured_on, run_target
from winml_dag.pipeline.assess.measurement import (
    AssessmentPlan,
    AssessmentRequest,
    Measurement,
    measuring_node,
    plan_measurement,
)
from winml_dag.pipeline.host import Host, this_host
from winml_dag.pipeline.model import OnnxFile
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.schema import Perf
from winml_dag.stages import artifact_types
from winml_dag.stages.perf import (
    HISTOGRAM,
    PERF,
    PICTURE_FILE,
    REPORT_FILE,
    HistogramConfig,
    PerfConfig,
    PerfFields,
)
from winml_dag.store.store import Store

_ITERATIONS = 100


@dataclass(frozen=True)
class PerfPlan(AssessmentPlan):
    """A measurement ready to run; the load time of ``reference`` is measured, too."""

    @property
    def draws(self) -> bool:
        """Whether it outputs a picture."""
        return any(node.stage == HISTOGRAM for node in self.measurement.graph.nodes)

    def report(self, done: Measurement, folder: Path | None = None) -> JsonObject:
        return {
            **self.head(done, precision=self.precision),
            **done.report,
            "baseline_model": None if self.reference is None else str(self.reference.path),
            "toolchain": done.toolchain,
            "report": None if folder is None else str(folder / REPORT_FILE),
            "picture": str(folder / PICTURE_FILE) if folder is not None and self.draws else None,
        }


def plan_perf(
    built: BuiltModel,
    request: AssessmentRequest[Perf],
    store: Store,
    host: Host | None = None,
    *,
    draws: bool = False,
) -> PerfPlan:
    """Plan the measurement of *built* that *request* describes, on *host*, by default this one.

    The reference is the model that a compiled one was made from. *draws*: draw a histogram, if that is possible here.

    Raises:
        UsageError: for a target that is not installed or that the model cannot run on, for options that the provider
            does not have, and for a batch that the model does not take.
        InputError: for a missing baseline or data.
    """
    target, perf = measured_on(built, request.ep, request.device), request.section
    require_installed(target)
    baseline = _baseline(built, request, target)
    config = PerfConfig(
        _fields(built, perf),
        run_target(built, target, request.options),
        (host or this_host()).identity(device=target.device),
    )
    inputs = {
        "model": built.model.source(),
        "baseline": None if baseline is None else baseline.source(),
        "data": _data(perf, request.base),
    }
    nodes = [measuring_node(PERF, config_json(config), inputs, target, store.fingerprints)]
    path = built.model.path
    precision = built.precision or precision_of(read_model(path)).name or None
    if draws and distribution_version("matplotlib") is not None:
        # The folder is in the title because most models have the same file name.
        named = f"{path.resolve().parent.name}/{path.name} ({precision or 'precision unknown'})"
        title = config_json(HistogramConfig(f"{named} on {target.ep.name} ({target.device})"))
        read, tools = {"report": nodes[0].output("report")}, versions(HISTOGRAM.packages)
        nodes.append(Node(HISTOGRAM.name, HISTOGRAM, title, read, toolchain=tools))
    # The scope includes the target: a comparison across providers would list too many differences.
    scope = f"perf {path.resolve()}\n{target.ep.alias} {target.device}"
    planned = plan_measurement(nodes, inputs.values(), store.fingerprints, scope)
    return PerfPlan(planned, built, target, baseline, precision)


def _fields(built: BuiltModel, perf: Perf) -> PerfFields:
    model = built.model
    for spec in model.summary.inputs if perf.batch_size is not None else ():
        takes_any = bool(spec.shape) and isinstance(spec.shape[0], str)
        if not takes_any and spec.shape[:1] != (perf.batch_size,):
            raise UsageError(
                f"A batch of {perf.batch_size} does not fit: {model.path.name} takes {spec.name} in the shape"
                f" {list(spec.shape)} only.",
                advice="Export it with export.batch_size, or with its first axis in export.dynamic_axes.",
            )
    return PerfFields(
        warmup=perf.warmup,
        iterations=perf.iterations or (_ITERATIONS if perf.duration is None else None),
        duration=perf.duration,
        threads=perf.threads,
        batch_size=_built_batch(built) if perf.batch_size is None else perf.batch_size,
        sizes=_sizes(model, perf),
        seed=perf.seed if perf.input_data is None else None,
        loads=perf.loads,
    )


def _built_batch(built: BuiltModel) -> int | None:
    """Return the batch size that the build of *built* fixed; None for one sample, or if the inputs differ from it."""
    section = built.settings.get("export")
    size = section.get("batch_size") if isinstance(section, Mapping) else None
    fits = all(spec.shape[:1] == (size,) for spec in built.model.summary.inputs)
    return size if isinstance(size, int) and fits and size != 1 else None


def _sizes(model: OnnxFile, perf: Perf) -> Mapping[str, int]:
    """Return the sizes of the axes of random inputs.

    Raises:
        UsageError: for an axis that the model does not have, or its first, and when the inputs are given.
    """
    sizes = perf.sizes
    if sizes and perf.input_data is not None:
        raise UsageError("perf.sizes is for random inputs, and perf.input_data has sizes of its own.")
    known = {size for spec in model.summary.inputs for size in spec.shape[1:] if isinstance(size, str)}
    for name in sizes.keys() - (known - {UNKNOWN_DIMENSION, UNKNOWN_RANK}):
        named = ", ".join(sorted(known)) or "none"
        raise UsageError(
            f"{model.path.name} leaves no size {name!r} open beside the batch.",
            advice=f"It leaves open: {named}. The batch is perf.batch_size.",
        )
    return sizes


def _baseline(built: BuiltModel, request: AssessmentRequest[Perf], target: Target) -> OnnxFile | None:
    if not request.has_reference:
        return None
    if request.reference is None:
        return built.uncompiled
    baseline = OnnxFile.at(request.reference)
    made_for = {context.source for context in baseline.summary.ep_context} - {"", target.ep.name}
    if baseline.kind == artifact_types.COMPILED_MODEL and made_for:
        raise UsageError(f"{baseline.path} is compiled for {', '.join(sorted(made_for))}, not for {target.ep.name}.")
    return baseline


def _data(perf: Perf, base: Path) -> Source | None:
    if perf.input_data is None:
        return None
    path = resolve_path(base, perf.input_data)
    if path.suffix.casefold() != ".npz" or not path.is_file():
        what = "does not exist" if not path.exists() else "is no .npz file"
        raise InputError(f"perf.input_data: {path} {what}.", advice="Save inputs by their names with numpy.savez.")
    return Source("input data", artifact_types.CALIBRATION_DATA, (SourceFile("data.npz", path),))
