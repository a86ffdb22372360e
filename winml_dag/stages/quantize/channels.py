"""onnxruntime's quantizer, with all channels of a weight at once, and a map of readers; the bytes are the same.

One by one, as onnxruntime takes them, channels are 3.7 of the 4.8 s that MiniLM takes. And it looks for the readers of
each tensor in all nodes: 33 of 39 s for a model with 2400.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto
from onnxruntime.quantization import QDQQuantizer, qdq_quantizer
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.qdq_quantizer import QDQQuantTensorType, QDQTensorQuantInfo, QuantizationParams
from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType, tensor_proto_to_array


class _ReaderMap(ONNXModel):  # type: ignore[misc]
    """Knows the readers of each tensor, as long as inputs change only through the two methods that keep the map."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self._readers: dict[str, list[NodeProto]] | None = None

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        if self._readers is None:
            self._readers = {}
            for node in self.model.graph.node:
                self._read(self._readers, node)
        readers = self._readers.pop(old_input_name, [])
        for node in readers:
            ONNXModel.replace_node_input(node, old_input_name, new_input_name)
        self._readers.setdefault(new_input_name, []).extend(readers)

    def add_node(self, node: NodeProto) -> None:
        super().add_node(node)
        if self._readers is not None:
            self._read(self._readers, self.model.graph.node[-1])

    def replace_node_input(self, node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        self._readers = None
        ONNXModel.replace_node_input(node, old_input_name, new_input_name)

    def replace_input_of_nodes(self, *arguments: Any) -> None:
        self._readers = None
        super().replace_input_of_nodes(*arguments)

    def topological_sort(self) -> None:
        self._readers = None
        super().topological_sort()

    @staticmethod
    def _read(readers: dict[str, list[NodeProto]], node: NodeProto) -> None:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)


class ChannelQuantizer(QDQQuantizer):  # type: ignore[misc]
    """Replaces the loops over channels and over nodes; whatever else is asked is left to onnxruntime."""

    tensors_to_quantize: dict[str, QDQTensorQuantInfo]
    model: ONNXModel

    def __init__(self, model: ModelProto, *arguments: Any) -> None:
        super().__init__(model, *arguments)
        self.model = _ReaderMap(self.model.model)

    def quantize_model(self) -> Any:
        of_one = qdq_quantizer.quantize_onnx_initializer

        def of_all(
            weight: TensorProto, quant_type: int, zero_point: Any, scale: Any, axis: int | None = None, **more: Any
        ) -> Any:
            if axis is not None and not more.get("block_size"):
                # Each value with its own scale: onnxruntime quantizes those of a whole tensor by elements.
                across = [-1 if at == axis else 1 for at in range(len(weight.dims))]
                scale, zero_point = (
                    np.broadcast_to(each.reshape(across), tuple(weight.dims)).ravel() for each in (scale, zero_point)
                )
                axis = None
            return of_one(weight, quant_type, zero_point, scale, axis, **more)

        qdq_quantizer.quantize_onnx_initializer = of_all
        try:
            return super().quantize_model()
        finally:
            qdq_quantizer.quantize_onnx_initializer = of_one

    def _calc_initializer_quant_params(self) -> dict[str, QuantizationParams]:
        every = dict(self.tensors_to_quantize)
        tensors = {tensor.name: tensor for tensor in self.model.initializer()}
        found = {name: self._of_channels(tensors[name], info) for name, info in every.items() if name in tensors}
        self.tensors_to_quantize = {name: info for name, info in every.items() if found.get(name) is None}
        found |= super()._calc_initializer_quant_params()
        self.tensors_to_quantize = every
        return found

    def _of_channels(self, tensor: TensorProto, info: QDQTensorQuantInfo) -> QuantizationParams | None:
        first, *others = self.tensor_quant_overrides.get(tensor.name, [{}])
        axis = first.get("axis", info.axis)
        if others or axis is None or not 0 <= axis < len(tensor.dims) or first.keys() & {"scale", "rmin", "rmax"}:
            return None
        values = tensor_proto_to_array(tensor)
        if not values.size or self.block_size:
            return None
        quant_type = self.weight_qType if info.tensor_type is QDQQuantTensorType.WEIGHT else self.activation_qType
        quant_type = first["quant_type"].tensor_type if "quant_type" in first else quant_type
        is_symmetric = first.get("symmetric", True)
        lowest, highest = get_qmin_qmax_for_qType(
            quant_type, first.get("reduce_range", self.reduce_range), symmetric=is_symmetric
        )
        channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        low, high = np.minimum(channels.min(1), 0), np.maximum(channels.max(1), 0)
        if self.min_real_range is not None:
            high = np.maximum(high, low + np.asarray(self.min_real_range, values.dtype))
        if is_symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale = (high.astype(np.float64) - low.astype(np.float64)) / (float(highest) - float(lowest))
        if not (scale >= 0).all():  # NaN
            return None
        is_zero = scale < np.finfo(values.dtype).tiny
        scale[is_zero] = 1
        middle = np.full(scale.shape, (int(lowest) + int(highest)) / 2) if is_symmetric else float(lowest) - low / scale
        zero_point = np.where(is_zero, 0, np.round(middle)).astype(lowest.dtype)
        return QuantizationParams(
            zero_point=zero_point, scale=scale.astype(values.dtype), quant_type=quant_type, axis=axis
        )
