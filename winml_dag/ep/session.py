"""Sessions of onnxruntime that use the requested execution provider, or report why they cannot.

onnxruntime prefers running on the CPU to failing: a provider that cannot be created or take a single node leaves a line
in the log, and even ``get_providers()`` still lists it. So the fallback is disabled here, and the assignment of nodes
is checked.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.ep.availability import package_of
from winml_dag.ep.provider import ExecutionProvider, Target
from winml_dag.ep.registry import CPU
from winml_dag.ep.windowsml import ready_library
from winml_dag.errors import StageError
from winml_dag.explanation import explanation

if TYPE_CHECKING:
    import onnxruntime

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
# By default, threads that wait for work keep a processor busy, which other stages or a second session in this process
# could use. Half of the processor time of calibrating ResNet-50 beside other programs was waiting.
_SPINNING = "session.intra_op.allow_spinning"
# A stage finds each of its inputs in a folder of this name; the file there has a generated name, not the user's.
_CALLED = {"reference": "the reference", "baseline": "the baseline"}

# onnxruntime's error for values that it adds after a compiled partition when it moves a QuantizeLinear up to it.
_NO_TYPE = re.compile(r"EPContext.*\(\S+_pre_q\) type inference failed")

_registered: set[str] = set()


def register(ep: ExecutionProvider) -> None:
    """Register *ep* with onnxruntime in this process; repeating is a no-op (onnxruntime itself fails the second time).

    Raises StageError if *ep* is not installed, or its library does not load.
    """
    import onnxruntime

    if ep.name in _registered or _kernels(ep) in onnxruntime.get_available_providers():
        return

    package = package_of(ep, None)
    if package is None or package.is_runtime:
        raise StageError(f"{ep.name} is not part of the installed onnxruntime.", advice=ep.how_to_get)
    try:
        if package.catalog:
            library = ready_library(ep.name)
        else:
            library = importlib.import_module(package.plugin).get_library_path()
        onnxruntime.register_execution_provider_library(ep.name, str(library))
    except StageError:
        raise
    except Exception as error:
        raise StageError(
            f"{ep.name} does not load here: {explanation(error)}.",
            advice="It is installed; its hardware or its driver may be missing: run this on a machine that has them.",
        ) from error
    _registered.add(ep.name)


def _kernels(ep: ExecutionProvider) -> str:
    """Return the provider that onnxruntime assigns the nodes to."""
    return ep.runs_as or ep.name


def runs_on_cpu(target: Target) -> bool:
    """Return whether onnxruntime's own CPU kernels run models for *target*."""
    return _kernels(target.ep) == CPU.name


def session_options(target: Target, options: Mapping[str, str]) -> onnxruntime.SessionOptions:
    """Return options for a session, or a compilation, with *target*'s execution provider, registered, and *options*.

    Raises StageError if the provider or its device is not available.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # warnings about every node that stays on the CPU hide the errors
    register(target.ep)
    settings = onnxruntime.SessionOptions()
    if runs_on_cpu(target):
        return settings
    if target.ep.name in _registered:
        extras = target.ep.session_extras(target.device, package_of(target.ep, None))
        settings.add_provider_for_devices([_device(target)], {**options, **extras})
        return settings
    try:
        settings.add_provider(target.ep.name, dict(options))
    except Exception as error:
        raise StageError(
            f"{target.ep.name} cannot be set up for device {target.device!r} here: {explanation(error)}.",
            advice=f"Check the provider options, and that this machine has that device; this provider drives "
            f"{', '.join(target.ep.devices)}. {SEE_LOG}",
        ) from error
    return settings


def session_for(
    model: Path | bytes, target: Target, settings: onnxruntime.SessionOptions, *, threads: int | None = None
) -> onnxruntime.InferenceSession:
    """Load *model* for *target*, without onnxruntime's fallback to another provider, and with recorded assignment.

    Raises what onnxruntime raises.
    """
    import onnxruntime

    settings.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    if threads is not None:
        settings.intra_op_num_threads = threads
    providers = [CPU.name] if runs_on_cpu(target) else None
    given = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(given, settings, providers, enable_fallback=0)
    session.disable_fallback()
    return session


def open_session(
    model: Path | bytes, what: str, settings: onnxruntime.SessionOptions | None = None, *, optimized: bool = False
) -> onnxruntime.InferenceSession:
    """Return a CPU session of the model without fusions, or *optimized* with all graph optimizations.

    Raises StageError, which calls it *what*, if onnxruntime cannot load it.
    """
    import onnxruntime

    settings = settings or onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    settings.log_severity_level = 3
    settings.add_session_config_entry(_SPINNING, "0")
    given = model if isinstance(model, bytes) else str(model)
    try:
        return onnxruntime.InferenceSession(given, settings, providers=[CPU.name])
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise StageError(f"onnxruntime cannot load {what}: {explanation(error)}.") from error


def create_session(
    model: Path,
    target: Target,
    options: Mapping[str, str],
    *,
    threads: int | None = None,
    compiled: bool = False,
    as_deployed: bool = False,
) -> onnxruntime.InferenceSession:
    """Load *model* for *target*; *threads* are those of one operator, None uses onnxruntime's default.

    *compiled*: whether it was compiled for *target*. *as_deployed*: waiting threads spin, as in a user's session.
    Raises StageError if it does not load there, or would run entirely on the CPU instead.
    """
    settings = session_options(target, options)
    if not as_deployed:
        settings.add_session_config_entry(_SPINNING, "0")
    try:
        session = session_for(model, target, settings, threads=threads)
    except Exception as error:
        raise _load_error(model, target, explanation(error), compiled=compiled) from error
    if _kernels(target.ep) not in assigned_nodes(session) and not runs_on_cpu(target):
        raise StageError(
            f"{target.ep.name} took no part of {model.name}: all of it would run on the CPU.",
            advice=f"{ASK_ANALYZE} Or build it for the CPU.",
        )
    return session


def _load_error(model: Path, target: Target, why: str, *, compiled: bool) -> StageError:
    name = target.ep.name
    if not (compiled and target.ep.makes_ep_context):
        called = _CALLED.get(model.parent.name, "the model")
        return StageError(f"{name} cannot load {called}: {why}.", advice=SEE_LOG)
    if _NO_TYPE.search(why):
        import onnxruntime

        return StageError(
            f"onnxruntime {onnxruntime.__version__} cannot load back what {name} compiled: it moves a QuantizeLinear"
            " from an operator that was left to the CPU to a compiled part, and gives the value there no type.",
            advice=f"Leave that operator in float (quant.nodes_to_exclude); the result of compile names those that were"
            f" left to the CPU. {SEE_LOG}",
        )
    as_onnx = f"--no-compile ships the ONNX model, which {name} compiles when it is loaded. {SEE_LOG}"
    return StageError(
        f"{name} compiled this model and cannot load it back: {why}.",
        advice=as_onnx if target.ep.takes_onnx else SEE_LOG,
    )


ASK_ANALYZE = "`winml-dag analyze` shows which operators this target supports, and why."
SEE_LOG = "The log of this stage has the execution provider's own words."


def assigned_nodes(session: onnxruntime.InferenceSession) -> dict[str, dict[str, int]]:
    """Return the number of each provider's operators by type. Before version 1.24, onnxruntime has only the names."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {name: {} for name in session.get_providers()}
    counts: dict[str, Counter[str]] = {}
    for subgraph in session.get_provider_graph_assignment_info():
        counts.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return {name: dict(sorted(counts[name].items())) for name in sorted(counts)}


def _device(target: Target) -> onnxruntime.OrtEpDevice:
    import onnxruntime

    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == target.ep.name]
    wanted = {target.device}
    if target.device in target.ep.emulates:
        wanted.add("cpu")  # the emulator is listed as a CPU
    by_preference = sorted(devices, key=lambda device: device.device.type.name.lower() != target.device)
    for device in by_preference:
        if device.device.type.name.lower() in wanted:
            return device
    found = ", ".join(device.device.type.name.lower() for device in devices) or "none"
    raise StageError(
        f"{target.ep.name} finds no {target.device} on this machine (devices: {found}).",
        advice="Run this target on a machine that has one, or give another --device.",
    )


_NEWER_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_NEWER_OPSET = re.compile(
    r"Opset (\d+) is under development.*?official support for domain (\S+) is till opset (\d+)", re.DOTALL
)
_NO_OPSET = "Missing opset in the model"


def unread_version(error: Exception) -> StageError | None:
    """Return the error if this onnxruntime loads no model of this ONNX version; None if *error* has another cause.

    *error* was raised by loading the model.
    """
    import onnxruntime

    text, reader = str(error), f"onnxruntime {onnxruntime.__version__}"
    if found := _NEWER_IR.search(text):
        return StageError(
            f"The model is of ONNX IR version {found[1]}; {reader} reads up to {found[2]}.",
            advice="Install a newer onnxruntime, or save the model with an older version of the onnx package.",
        )
    if found := _NEWER_OPSET.search(text):
        return StageError(
            f"The model uses opset {found[1]} of {found[2]}; {reader} knows it up to {found[3]}.",
            advice="Install a newer onnxruntime, or export the model with that opset.",
        )
    if _NO_OPSET in text:
        return StageError(
            "The model does not say which opset it uses, as models before ONNX IR version 3 do not.",
            advice="Export it again with opset 7 or newer.",
        )
    return None
