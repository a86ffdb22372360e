"""One attempt: whether an execution provider takes the node of a model, whether that runs, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from winml_dag.ep.registry import CPU, Target
from winml_dag.ep.session import RECORD_ASSIGNMENT, session_options
from winml_dag.ep.support.case import Outcome
from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.facts import QDQ
from winml_dag.stages.probe.onenode import PROBED

if TYPE_CHECKING:
    import onnxruntime

Array = npt.NDArray[Any]

_ON_CPU = Target(CPU, "cpu")
# How far a result may be off, as a share of the greatest expected number: NPUs compute floats with 10 bits of mantissa,
# and in integers a result is off by a few steps of its scale. And how many numbers may be further off: where a step is
# (in Floor, in comparisons), the smallest difference makes another result.
_TOLERANCE = 0.05
_MOST_OFF = 0.15
_SMALLEST = 5e-2


def attempt(
    model: bytes,
    feeds: Mapping[str, Array],
    target: Target,
    options: Mapping[str, str],
    expected: Sequence[Array] | None = None,
) -> Outcome:
    """Try *model*, whose node is called ``PROBED``, on *target*.

    The result is held against *expected*, and without that against what the CPU makes of the same model. On the CPU
    without it, nothing is known against the result.

    Raises:
        StageError: when the provider or its device is not here, which says nothing of the model.
    """
    try:
        session = open_session(model, target, options)
    except StageError:
        raise
    except Exception as error:  # onnxruntime raises what it likes; all of it means that the model does not load
        return Outcome(False, False, words=explanation(error))
    compiled = target.ep == CPU or _is_taken(session, target)
    try:
        results = session.run(None, dict(feeds))
    except Exception as error:
        return Outcome(compiled, False, words=explanation(error))
    if not compiled:
        return Outcome(False, True)
    if expected is None and target.ep != CPU:
        expected = run_on_cpu(model, feeds)
    return Outcome(True, True, expected is None or agree(results, expected))


def open_session(model: bytes, target: Target, options: Mapping[str, str]) -> onnxruntime.InferenceSession:
    """A session as an application makes it, without onnxruntime's own fallback to another provider."""
    import onnxruntime

    settings = session_options(target, options)
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    providers = [CPU.name] if target.ep == CPU else None
    session = onnxruntime.InferenceSession(model, settings, providers, enable_fallback=0)
    session.disable_fallback()
    return session


def run_on_cpu(model: bytes, feeds: Mapping[str, Array]) -> list[Array] | None:
    """What the CPU makes of *model*; None when it cannot."""
    try:
        return list(open_session(model, _ON_CPU, {}).run(None, dict(feeds)))
    except Exception:
        return None


def agree(results: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether all *results* are what is *expected*, as exactly as may be asked for."""
    return all(_agrees(result, wanted) for result, wanted in zip(results, expected, strict=False))


def _agrees(result: Any, wanted: Any) -> bool:
    if not isinstance(result, np.ndarray) or not isinstance(wanted, np.ndarray) or wanted.dtype.kind not in "fiub":
        return True
    if result.shape != wanted.shape:
        return False
    if not wanted.size:
        return True
    with np.errstate(all="ignore"):
        one, other = np.asarray(result, np.float64), np.asarray(wanted, np.float64)
        # NaN and infinities are what sizes of floats make of them: 65504 is the greatest of 16 bits.
        comparable = np.isfinite(other) & (np.abs(other) < 6e4)
        if not comparable.any():
            return True
        bound = _TOLERANCE * max(float(np.abs(other[comparable]).max()), _SMALLEST)
        off = ~(np.abs(one[comparable] - other[comparable]) <= bound)
    return float(off.mean()) <= _MOST_OFF


def _is_taken(session: onnxruntime.InferenceSession, target: Target) -> bool:
    """Whether nothing was left to another provider but conversions at the edge. What onnxruntime takes away before it
    asks any provider, such as an Identity, is in nobody's way.
    """
    return not any(
        node.op_type not in QDQ or node.name == PROBED
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name != target.ep.name
        for node in subgraph.get_nodes()
    )
