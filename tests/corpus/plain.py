"""The result without winml_dag: ``onnxruntime.quantization`` and related tools on the same model, types and samples.

Each function is what a user would write from the documentation; it imports nothing of winml_dag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from cells import STATIC, Cell
from judge import halves, integers
from netgraphs import Feed
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

# The ways to make a static model; the last word of a way is its granularity.
_STATIC_ON_CPU = ("raw tensor", "raw channel", "prepared tensor", "prepared channel")


def ways(cell: Cell, *, few: bool = False) -> Sequence[str]:
    """Return the ways to make *cell*; *few*: only those compared with winml_dag's result first."""
    if not cell.is_static:
        return ("plain",)
    if cell.ep == "qnn":
        return ("channel", "tensor")
    return ("prepared channel", "raw tensor") if few else _STATIC_ON_CPU


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def make(cell: Cell, way: str, model: Path, feeds: Sequence[Feed], work: Path) -> Path:
    """Make the model of *cell* in *way*, in the folder *work*; raises whatever the library raises.

    Raises:
        LookupError: when the library found nothing to convert, and the model is unchanged.
    """
    made = _for_qnn(cell, way, model, feeds, work) if cell.ep == "qnn" else _for_cpu(cell, way, model, feeds, work)
    done = halves if cell.precision == "fp16" else integers
    if cell.precision != "fp32" and not done(made):
        raise LookupError("nothing was converted")
    return made


def _for_cpu(cell: Cell, way: str, model: Path, feeds: Sequence[Feed], work: Path) -> Path:
    made = work / "made.onnx"
    if cell.precision == "fp32":
        return model
    if cell.precision == "fp16":
        _save(convert_float_to_float16(onnx.load(model), keep_io_types=True), made)
    elif cell.precision == "dynamic":
        quantize_dynamic(model, made, weight_type=QuantType.QUInt8)
    elif cell.precision == "w4a32":
        quantizer = MatMulNBitsQuantizer(onnx.load(model), bits=4, block_size=128, is_symmetric=True)
        quantizer.process()
        _save(quantizer.model.model, made)
    else:
        preparing, granularity = way.split()
        source = model
        if preparing == "prepared":
            source = work / "prepared.onnx"
            if not source.exists():
                _prepare(model, source)
        weights, activations = (QuantType[name] for name in STATIC[cell.precision])
        ranges = work / f"{preparing}-ranges.json"
        quantize_static(
            source,
            made,
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=granularity == "channel",
            weight_type=weights,
            activation_type=activations,
            # The ranges depend only on the model and the samples; types and granularities share them.
            calibration_cache_path=ranges,
        )
    return made


def _prepare(model: Path, prepared: Path) -> None:
    try:
        quant_pre_process(str(model), str(prepared), auto_merge=True)
    except Exception:  # symbolic shapes fail on many models, and the message advises to omit them
        quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)


def _for_qnn(cell: Cell, way: str, model: Path, feeds: Sequence[Feed], work: Path) -> Path:
    # Imported here: it imports PyTorch, which takes seconds.
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    made = work / "made.onnx"
    fixed = work / "fixed.onnx"
    if not fixed.exists():
        _save(_with_shapes(onnx.load(model), feeds), fixed)
    if cell.precision == "fp16":
        _save(convert_float_to_float16(onnx.load(fixed), keep_io_types=True), made)
        return made
    prepared = work / "prepared.onnx"
    source = prepared if prepared.exists() or qnn_preprocess_model(fixed, prepared) else fixed
    weights, activations = (QuantType[name] for name in STATIC[cell.precision])
    settings = get_qnn_qdq_config(
        source, _Reader(feeds), activation_type=activations, weight_type=weights, per_channel=way == "channel"
    )
    quantize(source, made, settings)
    return made


def _with_shapes(model: onnx.ModelProto, feeds: Sequence[Feed]) -> onnx.ModelProto:
    """Return *model* with the shapes of the samples instead of open dimensions.

    Set manually: ``onnxruntime.tools`` fails on models that call several dimensions "?".
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    dims = [(value, dim) for value in inputs for dim in value.type.tensor_type.shape.dim]
    if all(dim.HasField("dim_value") and dim.dim_value >= 0 for _, dim in dims):
        return model
    for value in inputs:
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[0][value.name].shape, strict=True):
            dim.dim_value = size
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def _save(model: Any, path: Path) -> None:
    large = model.ByteSize() > 2**30
    onnx.save(model, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)
