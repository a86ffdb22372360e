"""Values with equal meaning, by recipe field and option: they share one key, all others have distinct keys.

Written by hand, like the tables of reached stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from field_values import WORDS

# For an ONNX model, a task only determines whether its outputs are class scores.
_CLASSIFYING = ("text-classification", "fill-mask")
_TASKS = ((None, "text-classification"), _CLASSIFYING, (None, *(word for word in WORDS if word not in _CLASSIFYING)))

SAME: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "model": (("model", "same"),),
    "ep": ((None, "cpu"), (None, "qnn")),
    "device": (("auto", "cpu"), ("auto", "npu")),
    # Rounds that add nothing equal the first, whatever the limit.
    "max_optim_iterations": (tuple(range(1, 21)),),
    "loader.task": _TASKS,
    "loader.path": ((None, "model", "same"),),
    "export.dynamic_axes": ((None, {}),),
    "export.module_arguments": ((None, {}),),
    "export.shape_config": ((None, {}, {"batch_size": 1}),),
    "quant.model_type": ((None, *(word for word in WORDS if word != "qwen3")),),
    "quant.weight_type": ((None, "uint8"),),
    "quant.activation_type": ((None, "uint8"),),
    "quant.per_channel": ((None, False), (None, True)),
    "quant.equalize": ((None, True),),
    "quant.activation_symmetric": ((None, False),),
    "quant.op_types_to_exclude": ((None, []),),
    "quant.op_types_to_quantize": ((None, []),),
    "quant.nodes_to_exclude": ((None, []),),
    "quant.fp16_op_block_list": ((None, []),),
    "quant.seed": ((None, 0),),
    # Without data these folders are JSON tables, identical in each.
    "quant.calibration_data": (("model", "same", "other"), ("data.txt", "same.txt")),
    "validate.input_data": (("model", "same", "other"),),
    "validate.min_sqnr_db": ((None, 0.5),),
    "quant.dataset_name": (("model", "same", "other"),),
    "quant.model_id": ((None, "model", "same", "other"),),
    "quant.task": ((None, *(word for word in WORDS if word != "question-answering")),),
    "compile.soc_model": ((1, "1"),),
    "compile.htp_arch": ((None, 73),),
    "compile.htp_optimization_level": ((None, 3),),
    "compile.device": (("auto", "cpu"), ("auto", "npu")),
    "compile.execution_provider": ((None, "cpu"), (None, "qnn")),
    "compile.ep_device.ep": ((None, "cpu"),),
    "compile.ep_device.device": ((None, "auto", "cpu"), (None, "auto", "npu")),
}

SAME_OPTIONS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "model": ((None, "model", "same"),),
    "task": _TASKS,
    # Without compile, a model for QNN is validated on the CPU, one for OpenVINO on OpenVINO.
    "ep": ((None, "cpu"), (None, "qnn"), (None, "cpu", "qnn")),
    "device": ((None, "cpu"), (None, "qnn", "npu"), (None, "cpu", "qnn", "npu")),
    "precision": ((None, "fp16"), (None, "int4")),
    "quant": ((None, False), (None, True)),
    "compile": ((None, True),),
    "optimize": ((None, True),),
    "analyze": ((None, True),),
    "max_optim_iterations": ((None, *range(1, 21)),),
    "validate": ((None, True),),
    "random_weights": ((None, False),),
}
