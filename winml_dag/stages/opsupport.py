"""Measures an execution provider for a support table: ``python -m winml_dag.stages.opsupport --ep qnn``.

The models are ONNX's own tests of operators, each also with constants, with open sizes, and between Q and DQ. A
provider may crash or hang on one of them, so they run in another process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from winml_dag.ep.availability import require_installed
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import CPU, Target, find_ep, is_emulated
from winml_dag.ep.session import session_for, session_options
from winml_dag.ep.support import Case, Outcome, table_name
from winml_dag.ep.support.table import About, rows_of, table_bytes
from winml_dag.errors import WinmlDagError
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graph import QDQ
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze import QuantizedTo
from winml_dag.stages.analyze.analysis import provider_version
from winml_dag.stages.analyze.ask import with_qdq
from winml_dag.stages.analyze.judging import case_of

Array = npt.NDArray[Any]

_INTEGERS = (("uint8", "uint8"), ("uint16", "uint8"), ("uint16", "int8"))
_HANGS_AFTER_SECONDS = 240.0
# A result may be off by this share of the largest number: NPUs compute floats with 10 bits of mantissa. At a step, as
# in Floor, the smallest difference changes the result, so this share of numbers may be off by more.
_TOLERANCE, _MOST_OFF = 0.05, 0.15
_ON_CPU = Target(CPU, "cpu")
# Options that affect only the speed of a compiled model, not what is supported.
_OF_SPEED = frozenset({"htp_graph_finalization_optimization_mode", "htp_performance_mode"})


def measure(model: bytes, inputs: Sequence[Array], target: Target) -> tuple[Case, Outcome] | None:
    """Measure a *model* of one operator on *target*; None if it has no such node or the CPU cannot run it either.

    Raises StageError if the provider or its device is missing.
    """
    path = Path(tempfile.gettempdir()) / "one_operator.onnx"
    path.write_bytes(model)
    read = read_model(path, values=True)
    nodes = [node for node in read.graph.nodes if node.op_type not in (*QDQ, "Constant")]
    if len(nodes) != 1:
        return None
    case = case_of(nodes[0], Dataflow(read))
    feeds = {value.name: array for value, array in zip(read.graph.inputs, inputs, strict=False)}
    expected = _run(model, feeds, _ON_CPU)
    settings = session_options(target, complete_options(target, {}))
    try:
        session = session_for(model, target, settings, threads=1)
    except Exception:  # onnxruntime raises various types; all of them mean that the model does not load
        return case, Outcome(compiled=False, ran=False)
    taken = target.ep == CPU or not any(
        node.op_type not in QDQ
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != target.ep.name
        for node in part.get_nodes()
    )
    try:
        results = session.run(None, feeds)
    except Exception:
        return None if expected is None else (case, Outcome(taken, ran=False))
    return case, Outcome(taken, ran=True, agrees=not taken or expected is None or agree(results, expected))


def _run(model: bytes, feeds: dict[str, Array], target: Target) -> list[Any] | None:
    try:
        return list(session_for(model, target, session_options(target, {}), threads=1).run(None, feeds))
    except Exception:
        return None


def agree(results: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether all *results* match *expected*, within the tolerance of half precision."""
    return all(_agrees(result, wanted) for result, wanted in zip(results, expected, strict=False))


def _agrees(result: Any, wanted: Any) -> bool:
    if not isinstance(result, np.ndarray) or not isinstance(wanted, np.ndarray) or wanted.dtype.kind not in "fiub":
        return True
    if result.shape != wanted.shape:
        return False
    with np.errstate(all="ignore"):
        one, other = np.asarray(result, np.float64), np.asarray(wanted, np.float64)
        comparable = np.isfinite(other) & (np.abs(other) < np.finfo(np.float16).max)
        if not comparable.any():
            return True
        bound = _TOLERANCE * max(float(np.abs(other[comparable]).max()), _TOLERANCE)
        return float((~(np.abs(one - other)[comparable] <= bound)).mean()) <= _MOST_OFF


def models(target: Target) -> Iterator[tuple[bytes, list[Array]]]:
    """Yield the models to measure, each with its inputs."""
    from onnx.backend.test.case.node import collect_testcases

    for test in collect_testcases(None):
        if test.model is None or len(test.model.graph.node) != 1 or not test.data_sets:
            continue
        inputs = [each for each in test.data_sets[0][0] if isinstance(each, np.ndarray)]
        if len(inputs) != len(test.model.graph.input):
            continue
        for model, fed in forms(test.model, inputs):
            yield model.SerializeToString(), fed
            if any(array.dtype == np.float32 for array in inputs):
                yield from ((integers, fed) for integers in _quantized(model, target))


def forms(model: ModelProto, inputs: Sequence[Array]) -> Iterator[tuple[ModelProto, list[Array]]]:
    """Yield *model* as it is, with all inputs but the first as constants, and with an open first size."""
    yield model, list(inputs)
    if len(inputs) > 1:
        constant = deepcopy(model)
        for value, array in zip(constant.graph.input[1:], inputs[1:], strict=True):
            constant.graph.initializer.append(numpy_helper.from_array(array, value.name))
        del constant.graph.input[1:]
        yield constant, list(inputs[:1])
    if inputs and inputs[0].ndim:
        open_ = deepcopy(model)
        open_.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "size"
        for value in open_.graph.output:
            value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
        yield open_, list(inputs)


def _quantized(model: ModelProto, target: Target) -> Iterator[bytes]:
    for activations, weights in _INTEGERS:
        try:
            made = with_qdq(deepcopy(model), target, QuantizedTo(activations, weights))
        except Exception:  # a model that onnx's or onnxruntime's tools cannot take apart
            return
        if any(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in made.graph.input):
            yield made.SerializeToString()


def rows(target: Target) -> Iterator[tuple[Case, Outcome]]:
    """Yield what is measured on *target*. A model that ends or blocks its process does not run."""
    executor: ProcessPoolExecutor | None = None
    for model, inputs in models(target):
        executor = executor or ProcessPoolExecutor(1, get_context("spawn"))
        try:
            found = executor.submit(measure, model, inputs, target).result(_HANGS_AFTER_SECONDS)
        except (BrokenProcessPool, TimeoutError):
            for process in list((executor._processes or {}).values()):
                process.kill()
            executor.shutdown()
            executor, found = None, None
        if found is not None:
            yield found
    if executor is not None:
        executor.shutdown()


def about_target(target: Target, cases: int, opset: int) -> About:
    """What is installed on this machine for *target*."""
    import onnxruntime

    from winml_dag.stages.devices import sdk_version

    return About(
        ep=target.ep.name,
        device=target.device,
        ep_version=provider_version(target),
        sdk_version="" if target.ep == CPU else sdk_version(target.ep),
        onnxruntime=onnxruntime.__version__,
        onnx=onnx.__version__,
        options={name: value for name, value in complete_options(target, {}).items() if name not in _OF_SPEED},
        emulated=is_emulated(target),
        opset=opset,
        cases=cases,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what an execution provider does with operators, as a table.")
    parser.add_argument("--ep", required=True, help="such as qnn")
    parser.add_argument("--device", help="by default the provider's first")
    parser.add_argument("--output", type=Path, help="the table; by default such as qnn_npu.support in this folder")
    given = parser.parse_args()
    ep = find_ep(given.ep)
    target = Target(ep, given.device or ep.devices[0])
    try:
        require_installed(target)
        session_options(target, complete_options(target, {}))  # raises if the device is missing
    except WinmlDagError as error:
        sys.exit(str(error))
    found: list[tuple[Case, Outcome]] = []
    for row in rows(target):
        found.append(row)
        if len(found) % 100 == 0:
            print(f"{len(found)} measured", file=sys.stderr, flush=True)
    opset = max((case.opset for case, outcome in found if not case.domain and outcome.ran), default=0)
    output = given.output or Path(table_name(target))
    output.write_bytes(table_bytes(about_target(target, len(found), opset), rows_of(found)))
    print(f"{output}: {len(found)} measurements.")


if __name__ == "__main__":
    main()
