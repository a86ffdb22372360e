"""Runs every operator case of the onnx package through the optimize stage: outputs must equal onnxruntime's own.

``python tests/corpus/node_cases.py [NAME ...]`` runs all cases, or those named, prints counts and deviations, and exits
with 1 on any error. Cases of an opset newer than onnxruntime supports run in the newest supported one.
"""

from __future__ import annotations

import contextlib
import ctypes
import pkgutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.optimize.apply import run

RIGHT = "right"
WRONG = "wrong"
# Outcomes that say nothing about optimize.
NOT_LOADED = "onnxruntime does not load it"
NOT_RUN = "onnxruntime loads it and fails to run it"
QUANTIZED = "quantized already, which a build does not optimize"

SETTINGS: Mapping[str, Mapping[str, bool]] = {
    "as usual": {},
    "all off": {"ort_graph_optimization": False, "constant_folding": False},
}
NEWEST_IR, NEWEST_OPSET = 13, 26
# onnx computes the expected outputs of pooling element by element.
SLOW = ("averagepool", "lppool", "maxpool")
# Makes random operators draw the same numbers in every session.
_SEED = 7
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
_OF_NUMPY = frozenset(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(letter)) for letter in "efdFDbhiqBHIQ?")


@dataclass(frozen=True)
class Verdict:
    """The outcome of the case *name*; ``detail`` describes a deviation."""

    name: str
    outcome: str
    detail: str = ""


def cases(without: Collection[str] = ()) -> list[Any]:
    """Return the operator cases of the onnx package, each with ``name``, ``model`` and ``data_sets``.

    Those of :data:`SLOW` take four fifths of the time; *without* has modules to leave out.
    """
    # numpy warns about intentional overflows in some cases.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case import node

        for module in pkgutil.iter_modules(node.__path__):
            if module.name not in without:
                import_module(f"{node.__name__}.{module.name}")
    return list(node._NodeTestCases)


def check(case: Any, folder: Path) -> Verdict:
    """Optimize the *case* in the empty *folder*, and compare its outputs before and after."""
    source = folder / "in" / "model.onnx"
    source.parent.mkdir()
    onnx.save(case.model, source)
    if (plain := _loaded(source)) is None and _lowered(case.model):
        onnx.save(case.model, source)
        plain = _loaded(source)
    inputs, expected = case.data_sets[0]
    if plain is None:
        return Verdict(case.name, *_refused(folder))
    if inspect_model(source).is_quantized:
        return Verdict(case.name, QUANTIZED)
    feeds = {value.name: array for value, array in zip(plain.get_inputs(), inputs, strict=False)}
    try:
        before = _computed(plain, feeds)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        return Verdict(case.name, NOT_RUN, _line(error))
    follows = _all_same(before, [_comparable(output) for output in expected])
    for label, optim in SETTINGS.items():
        try:
            path = _optimized(folder, label, optim)
            after = _computed(_session(path), feeds)
        except Exception as error:
            return Verdict(case.name, WRONG, f"{label}: {type(error).__name__}: {_line(error)}")
        if not _all_same(before, after):
            return Verdict(case.name, WRONG, f"{label}: other outputs than onnxruntime's of the model as it was")
        if follows and not _all_same(after, [_comparable(output) for output in expected]):
            return Verdict(case.name, WRONG, f"{label}: other outputs than the case's")
    return Verdict(case.name, RIGHT)


def check_all(names: Sequence[str] = ()) -> Iterator[Verdict]:
    """Yield the verdicts of all cases, or of those with *names*."""
    onnxruntime.set_default_logger_severity(4)
    for case in cases():
        if not names or case.name in names:
            with tempfile.TemporaryDirectory() as folder:
                yield check(case, Path(folder))


def _lowered(model: onnx.ModelProto) -> bool:
    """Lower *model* to the newest opset that onnxruntime supports, and return whether that was needed."""
    newer = [entry for entry in model.opset_import if not entry.domain and entry.version > NEWEST_OPSET]
    for entry in newer:
        entry.version = NEWEST_OPSET
    model.ir_version = min(model.ir_version, NEWEST_IR)
    return bool(newer)


def _refused(folder: Path) -> tuple[str, str]:
    """Check that a model which onnxruntime does not load is rejected in a sentence."""
    try:
        _optimized(folder, "as usual", {})
    except StageError:
        return NOT_LOADED, ""
    except Exception as error:
        return WRONG, f"not loaded, and refused with {type(error).__name__}: {_line(error)}"
    return NOT_LOADED, ""


def _optimized(folder: Path, label: str, optim: Mapping[str, bool]) -> Path:
    work = folder / label
    work.mkdir()
    with contextlib.chdir(work):
        Path("out").mkdir()
        run(OptimizeConfig(optim), Workspace({"model": folder / "in"}, {"model": Path("out")}))
    return work / "out" / "optimized.onnx"


def _loaded(path: Path) -> onnxruntime.InferenceSession | None:
    try:
        return _session(path)
    except Exception:
        return None


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    onnxruntime.set_seed(_SEED)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _computed(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    if any(_needs_ort_value(array) for array in feeds.values()):
        values = {name: _ort_value(array) for name, array in feeds.items()}
        return [_comparable(value) for value in session.run_with_ort_values(None, values)]
    arrays = {name: np.asarray(array) if isinstance(array, np.generic) else array for name, array in feeds.items()}
    return [_comparable(value) for value in session.run(None, arrays)]


def _needs_ort_value(value: Any) -> bool:
    """Return whether *value* is of a type that numpy itself does not have."""
    return isinstance(value, TensorProto) or (isinstance(value, np.ndarray) and not value.dtype.isbuiltin)


def _ort_value(value: Any) -> onnxruntime.OrtValue:
    if not isinstance(value, TensorProto):
        if not _needs_ort_value(value):
            return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(value))
        value = numpy_helper.from_array(value)
    if value.data_type == TensorProto.STRING:
        return onnxruntime.OrtValue.ortvalue_from_numpy(numpy_helper.to_array(value).astype(object))
    content = value.raw_data or numpy_helper.from_array(numpy_helper.to_array(value)).raw_data
    made = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(value.dims), value.data_type)
    ctypes.memmove(made.data_ptr(), content, len(content))
    return made


def _comparable(value: Any) -> Any:
    """Return *value* as a numpy value, or for types without one, its type, shape and bytes."""
    if isinstance(value, onnxruntime.OrtValue):
        if not value.is_tensor() or value.data_type() == "tensor(string)":
            return value.numpy() if value.is_tensor() else value
        kind = value.element_type()
        if kind in _OF_NUMPY:
            return value.numpy()
        return kind, list(value.shape()), ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    if _needs_ort_value(value):
        tensor = value if isinstance(value, TensorProto) else numpy_helper.from_array(value)
        if tensor.data_type in _OF_NUMPY:
            return numpy_helper.to_array(tensor)
        content = tensor.raw_data or numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        return tensor.data_type, list(tensor.dims), content
    return value


def _all_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(_same(one, other) for one, other in zip(some, others, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return _all_same(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if one is None or other is None or isinstance(one, tuple) or isinstance(other, tuple):
        return bool(one == other)
    first, second = np.asarray(one), np.asarray(other)
    if first.shape != second.shape or first.dtype.kind != second.dtype.kind:
        return False
    if first.dtype.kind in "fc":
        return np.allclose(first, second, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    return np.array_equal(first, second)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def main(names: Sequence[str]) -> int:
    counts: Counter[str] = Counter()
    for verdict in check_all(names):
        counts[verdict.outcome] += 1
        if verdict.outcome == WRONG:
            print(f"{verdict.name}: {verdict.detail}", flush=True)
    for outcome, count in counts.most_common():
        print(f"{count:5} {outcome}")
    return 1 if counts[WRONG] or not counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
