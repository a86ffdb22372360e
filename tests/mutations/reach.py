"""The stages that each recipe field and each option reaches: written by hand, and compared with the code by tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from winml_dag.stages.analyze import ASKED_ABOUT

# Field, base recipe, its new value, and the stages that it reaches directly.
Edit = tuple[str, str, Any, str]

_LOADER = {
    "task": "text-classification",
    "model_type": "bert",
    "random_weights": {"seed": 0, "config": {"hidden_size": 32}},
}
# The only flag whose form depends on whether the model is compiled.
_GELU = {"gelu_fusion": True}
_INPUT = {"name": "input_ids", "dtype": "int32", "shape": [1, 8], "value_range": [0, 9]}

_NODES = "/head/*"

BASES: Mapping[str, Mapping[str, Any]] = {
    "static": {"loader": _LOADER, "ep": "qnn", "quant": {}, "compile": {}},
    "fp16": {"loader": _LOADER, "ep": "qnn", "quant": {"mode": "fp16"}, "compile": {}},
    "rtn": {"loader": _LOADER, "ep": "cpu", "quant": {"mode": "rtn"}},
    "dynamic": {"loader": _LOADER, "ep": "cpu", "quant": {"mode": "dynamic"}},
    "cpu": {"loader": _LOADER, "ep": "cpu", "quant": {}},
    "overrides": {"loader": _LOADER, "ep": "cpu", "quant": {"node_overrides": {_NODES: {"weight_type": "int8"}}}},
    "float": {"loader": _LOADER, "ep": "qnn", "compile": {}},
    "folder": {
        "model": "model",
        "loader": {"task": "text-classification", "model_type": "bert"},
        "ep": "qnn",
        "quant": {},
        "compile": {},
    },
    "text": {"model": "model", "ep": "qnn", "quant": {"calibration_data": "data.txt"}, "compile": {}},
    "rows": {"model": "model", "ep": "qnn", "quant": {"dataset_name": "rows"}, "compile": {}},
    "rows in compile": {"model": "model", "ep": "qnn", "compile": {"quant_config": {"dataset_name": "rows"}}},
    "inputs": {
        "loader": _LOADER,
        "export": {"input_tensors": [_INPUT], "output_tensors": [{"name": "logits"}]},
        "optim": _GELU,
    },
    "module": {"loader": {**_LOADER, "module_path": "encoder"}, "export": {"input_tensors": [_INPUT]}},
    "fused": {"loader": _LOADER, "ep": "cpu", "quant": {}, "optim": _GELU},
    "no tags": {"loader": _LOADER, "export": {"enable_hierarchy_tags": False}},
    "ep in compile": {"loader": _LOADER, "compile": {"execution_provider": "qnn"}, "optim": _GELU},
    "ep_device": {"loader": _LOADER, "compile": {"ep_device": {"ep": "qnn"}}, "optim": _GELU},
    "option file": {
        "loader": _LOADER,
        "ep": "qnn",
        "compile": {"provider_options": {"op_affinity": "affinity.json"}},
    },
    "own inputs": {"model": "model", "ep": "qnn", "quant": {}, "compile": {}, "validate": {"input_data": "data.npz"}},
    "text and own inputs": {
        "model": "model",
        "ep": "qnn",
        "quant": {"calibration_data": "data.txt"},
        "compile": {},
        "validate": {"input_data": "data.npz"},
    },
    "fp16 in compile": {"loader": _LOADER, "ep": "qnn", "compile": {"quant_config": {"mode": "fp16"}}},
    "rtn in compile": {"loader": _LOADER, "ep": "cpu", "compile": {"quant_config": {"mode": "rtn"}}},
    "onnx": {"model": "onnx/model.onnx", "ep": "qnn", "quant": {"calibration_data": "data"}, "compile": {}},
    "open": {
        "model": "open/model.onnx",
        "export": {"shape_config": {"word": 8}},
        "ep": "qnn",
        "quant": {},
        "compile": {},
    },
    "open in compile": {
        "model": "open/model.onnx",
        "export": {"shape_config": {"word": 8}},
        "ep": "qnn",
        "compile": {"quant_config": {"mode": "fp16"}},
    },
}

NOTHING = ""
REFUSED = "refused"


# Capabilities of each kind; their combined effect is tested where they are chosen. ``false`` matters for those that the
# portable level includes, ``true`` for those that it does not.
_READ_OFF = {
    "constant_folding",
    "gelu_fusion",
    "layer_norm_fusion",
    "matmul_add_fusion",
    "ort_graph_optimization",
    "pad_fusion",
}
_READ_ON = {
    "bias_gelu_fusion",
    "clamp_constant_values",
    "gelu_fusion",
    "highdimRTR_lowdimRTR",
    "layer_norm_fusion",
    "matmul_add_fusion",
    "nchwc_transformer",
    "reshape_mergedreshape",
}
TRIED = tuple(sorted(_READ_OFF | _READ_ON))


def _told(capability: str, *stages: str) -> str:
    """Return *stages*, and analyze if it considers *capability*."""
    return " ".join([*stages, *(["analyze"] if capability in ASKED_ABOUT else [])])


EDITS: tuple[Edit, ...] = (
    ("model", "static", "another name", NOTHING),
    ("model", "folder", "same", NOTHING),
    ("model", "folder", "other", "export"),
    ("model", "text", "other", "export"),
    ("model", "onnx", "model", "export optimize validate"),
    ("ep", "static", "cpu", "analyze quantize compile validate finalize"),
    ("ep", "cpu", "qnn", "analyze quantize compile validate finalize"),
    ("ep", "inputs", "qnn", "optimize analyze compile validate finalize"),
    ("ep", "float", "openvino", "analyze compile validate"),
    ("ep", "open", "cpu", "normalize analyze quantize compile validate finalize"),
    ("device", "static", "npu", NOTHING),
    ("device", "static", "gpu", "analyze compile validate"),
    ("device", "inputs", "gpu", "optimize analyze compile validate finalize"),
    ("precision", "static", "w8a8", NOTHING),
    ("precision", "static", "int8", NOTHING),
    ("precision", "static", "w8a16", "analyze quantize validate"),
    ("precision", "static", "fp16", "analyze calibrate quantize validate"),
    ("precision", "open", "fp16", "normalize analyze calibrate quantize validate"),
    ("precision", "float", "w8a16", "analyze calibrate quantize compile validate"),
    ("precision", "inputs", "int8", "optimize analyze calibrate quantize validate finalize"),
    ("output_dir", "static", "elsewhere", NOTHING),
    ("auto", "static", False, "analyze"),
    ("max_optim_iterations", "static", 1, NOTHING),
    ("max_optim_iterations", "static", 0, "analyze"),
    ("allow_unsupported_nodes", "static", True, NOTHING),
    ("eval", "static", {"task": "text-classification"}, NOTHING),
    ("skip_optimize", "static", True, "optimize analyze calibrate quantize"),
    ("skip_optimize", "float", True, "optimize analyze compile validate"),
    ("skip_optimize", "rtn", True, "optimize analyze quantize"),
    ("skip_optimize", "no tags", True, "optimize analyze validate finalize"),
    #
    ("loader", "folder", None, NOTHING),
    ("loader.task", "static", "feature-extraction", "export validate"),
    ("loader.task", "static", "token-classification", "export"),
    ("loader.task", "rows", "question-answering", "export calibrate validate"),
    ("loader.model_class", "static", "BertForMaskedLM", "export"),
    ("loader.model_type", "static", "roberta", "export"),
    ("loader.module_path", "static", "encoder", "export"),
    ("loader.user_script", "static", "script.py", "export"),
    ("loader.trust_remote_code", "static", True, NOTHING),
    ("loader.trust_remote_code", "folder", True, "export"),
    ("loader.path", "static", "model", NOTHING),
    ("loader.path", "folder", "other", "export"),
    ("loader.path", "onnx", "model", "export optimize validate"),
    ("loader.revision", "static", "v2", NOTHING),
    ("loader.revision", "folder", "v2", NOTHING),
    ("loader.random_weights", "static", True, "export"),
    ("loader.random_weights.seed", "static", 1, "export"),
    ("loader.random_weights.config", "static", {"hidden_size": 64}, "export"),
    #
    ("export", "static", {}, NOTHING),
    ("export", "inputs", {}, "export"),
    ("export.opset_version", "static", 17, "export"),
    ("export.opset_version", "static", 21, NOTHING),
    ("export.batch_size", "static", 2, "export"),
    ("export.input_tensors.name", "inputs", "token_type_ids", "export"),
    ("export.input_tensors.dtype", "inputs", "int64", "export"),
    ("export.input_tensors.shape", "inputs", [1, "length"], "export"),
    ("export.input_tensors.value_range", "inputs", [0, 5], "export"),
    ("export.output_tensors.name", "inputs", "scores", "export"),
    ("export.input_tensors", "static", [], NOTHING),
    ("export.input_tensors", "inputs", None, "export"),
    ("export.output_tensors", "static", [], NOTHING),
    ("export.output_tensors", "inputs", None, "export"),
    ("export.dynamic_axes", "static", {"input_ids": {"0": "batch"}}, "export"),
    ("export.dynamic_axes", "static", {}, NOTHING),
    ("export.shape_config", "static", {"sequence_length": 8}, "export"),
    ("export.shape_config", "static", {"batch_size": 1}, NOTHING),
    ("export.shape_config", "static", {}, NOTHING),
    ("export.shape_config", "open", {"word": 64}, "normalize"),
    ("export.batch_size", "open", 2, "normalize"),
    ("export.input_tensors", "open", [{"name": "input_ids", "value_range": [0, 5]}], "normalize"),
    ("export.export_params", "static", False, "export"),
    ("export.do_constant_folding", "static", False, "export"),
    ("export.verbose", "static", True, NOTHING),
    ("export.dynamo", "static", True, "export"),
    ("export.module_arguments", "module", {"causal": True}, "export"),
    ("export.clean_onnx", "static", True, "export"),
    ("export.clean_onnx", "no tags", True, NOTHING),
    ("export.enable_hierarchy_tags", "static", False, "export"),
    ("export.hierarchy_tag_format", "static", "module_only", "export"),
    ("export.hierarchy_tag_format", "no tags", "module_only", NOTHING),
    ("export.compatibility", "static", None, NOTHING),
    ("export.compatibility.transformers_attention", "static", "eager", NOTHING),
    #
    ("optim", "static", None, NOTHING),
    ("optim", "inputs", None, "optimize analyze"),
    *((f"optim.{name}", "static", False, _told(name, *(["optimize"] if name in _READ_OFF else []))) for name in TRIED),
    *((f"optim.{name}", "static", True, _told(name, *(["optimize"] if name in _READ_ON else []))) for name in TRIED),
    #
    ("quant", "static", None, "analyze calibrate quantize compile validate"),
    ("quant", "open", None, "normalize analyze calibrate quantize compile validate"),
    ("quant", "no tags", {}, "analyze calibrate quantize validate finalize"),
    ("quant", "inputs", {}, "optimize analyze calibrate quantize validate finalize"),
    ("quant.mode", "static", "fp16", "analyze calibrate quantize validate"),
    ("quant.mode", "open", "fp16", "normalize analyze calibrate quantize validate"),
    ("quant.mode", "fused", "fp16", "optimize analyze calibrate quantize validate"),
    ("quant.samples", "static", 20, "calibrate"),
    ("quant.samples", "text", 20, "calibrate"),
    ("quant.calibration_method", "static", "entropy", "calibrate"),
    ("quant.calibration_data", "static", "data.npz", "calibrate validate"),
    ("quant.calibration_data", "text", "same.txt", NOTHING),
    ("quant.calibration_data", "fp16", "data.npz", "validate"),
    ("quant.task", "static", "fill-mask", NOTHING),
    ("quant.task", "rows", "question-answering", "calibrate validate"),
    ("quant.model_id", "static", "org/name", NOTHING),
    ("quant.model_id", "text", "other", NOTHING),
    ("quant.model_id", "text", "word", "calibrate validate"),
    ("quant.dataset_name", "static", "rows", "calibrate validate"),
    ("quant.dataset_name", "rows", "model", "calibrate validate"),
    ("quant.dataset_name", "rtn", "rows", "validate"),
    ("quant.dataset_subset", "static", "word", NOTHING),
    ("quant.dataset_subset", "rows", "word", "calibrate validate"),
    ("quant.dataset_split", "static", "other", NOTHING),
    ("quant.dataset_split", "rows", "other", "calibrate validate"),
    ("quant.columns_mapping", "text", {"text": "sentence"}, NOTHING),
    ("quant.columns_mapping", "rows", {"text": "sentence"}, "calibrate validate"),
    ("quant.model_type", "static", "roberta", NOTHING),
    ("quant.model_type", "cpu", "qwen3", "analyze quantize validate"),
    ("quant.model_type", "rtn", "qwen3", NOTHING),
    ("quant.weight_type", "static", "int8", "analyze quantize"),
    ("quant.weight_type", "static", "uint8", NOTHING),
    ("quant.weight_type", "static", "int4", "analyze quantize validate"),
    ("quant.weight_type", "dynamic", "int8", "quantize"),
    ("quant.weight_type", "fp16", "int8", NOTHING),
    ("quant.activation_type", "static", "int8", "analyze quantize"),
    ("quant.activation_type", "static", "uint16", "analyze quantize validate"),
    ("quant.activation_type", "dynamic", "int8", NOTHING),
    ("quant.per_channel", "static", False, "analyze quantize"),
    ("quant.per_channel", "dynamic", True, "quantize"),
    ("quant.per_channel", "rtn", True, NOTHING),
    ("quant.symmetric", "static", True, "quantize"),
    ("quant.symmetric", "fp16", True, NOTHING),
    ("quant.weight_symmetric", "static", True, "quantize"),
    ("quant.weight_symmetric", "dynamic", True, "quantize"),
    ("quant.weight_symmetric", "rtn", True, NOTHING),
    ("quant.activation_symmetric", "static", True, "quantize"),
    ("quant.activation_symmetric", "static", False, NOTHING),
    ("quant.activation_symmetric", "dynamic", True, NOTHING),
    ("quant.op_types_to_quantize", "static", ["MatMul"], "analyze quantize"),
    ("quant.op_types_to_quantize", "static", [], NOTHING),
    ("quant.node_overrides.weight_type", "overrides", "int4", "quantize"),
    ("quant.node_overrides.activation_type", "overrides", "uint16", "quantize"),
    *(("quant.op_types_to_quantize", base, ["MatMul"], "quantize") for base in ("fp16", "rtn", "dynamic")),
    ("quant.op_types_to_exclude", "static", ["Soft*"], "analyze quantize"),
    *(("quant.op_types_to_exclude", base, ["Soft*"], "quantize") for base in ("fp16", "rtn", "dynamic")),
    ("quant.op_types_to_exclude", "static", [], NOTHING),
    ("quant.node_overrides", "static", {"/head/*": {"activation_type": "uint16"}}, "quantize"),
    ("quant.node_overrides", "static", {"/head/*": {}}, NOTHING),
    *(
        ("quant.node_overrides", base, {"/head/*": {"activation_type": "uint16"}}, NOTHING)
        for base in ("fp16", "rtn", "dynamic")
    ),
    *(("quant.nodes_to_exclude", base, ["/head/*"], "analyze quantize") for base in ("static", "fp16")),
    *(("quant.nodes_to_exclude", base, ["/head/*"], "quantize") for base in ("rtn", "dynamic")),
    ("quant.nodes_to_exclude", "static", [], NOTHING),
    ("quant.equalize", "static", False, "quantize"),
    ("quant.equalize", "static", True, NOTHING),
    *(("quant.equalize", base, False, NOTHING) for base in ("fp16", "rtn", "dynamic")),
    ("quant.rtn_bits", "rtn", 8, "quantize validate"),
    ("quant.rtn_block_size", "rtn", 32, "quantize"),
    ("quant.rtn_symmetric", "rtn", False, "quantize"),
    ("quant.rtn_accuracy_level", "rtn", 4, "quantize"),
    ("quant.rtn_float_type", "rtn", "float16", "analyze quantize.1 validate finalize"),
    ("quant.rtn_float_type", "static", "float16", NOTHING),
    ("quant.rtn_bits", "static", 8, NOTHING),
    ("quant.reduce_range", "static", True, "quantize"),
    ("quant.reduce_range", "rtn", True, NOTHING),
    ("quant.fp16_keep_io_types", "fp16", False, "quantize"),
    ("quant.fp16_op_block_list", "fp16", ["Softmax"], "quantize"),
    ("quant.fp16_op_block_list", "static", ["Softmax"], NOTHING),
    ("quant.save_calibration", "static", True, NOTHING),
    ("quant.distribution", "static", "normal", "calibrate"),
    ("quant.distribution", "text", "normal", NOTHING),
    ("quant.seed", "static", 1, "calibrate"),
    ("quant.seed", "static", 0, NOTHING),
    ("quant.seed", "text", 1, "calibrate"),
    ("quant.calibration_load_path", "static", "affinity.json", "calibrate quantize"),
    ("quant.calibration_load_path", "text", "affinity.json", "calibrate quantize validate"),
    ("quant.calibration_load_path", "rtn", "affinity.json", NOTHING),
    ("quant.calibration_save_path", "static", "ranges.json", NOTHING),
    #
    ("compile", "static", None, "compile validate finalize"),
    ("compile", "cpu", {}, NOTHING),
    ("compile.provider_options", "static", {"soc_model": "57"}, "analyze compile validate"),
    ("compile.provider_options", "static", {"htp_performance_mode": "balanced"}, "validate"),
    ("compile.provider_options", "static", {"soc_model": "60"}, NOTHING),
    ("compile.provider_options", "option file", {"op_affinity": "renamed.json"}, NOTHING),
    ("compile.provider_options", "option file", {"op_affinity": "other.json"}, "compile"),
    ("compile.provider_option_file_keys", "option file", ["op_affinity"], NOTHING),
    ("compile.enable_ep_context", "static", False, "compile validate finalize"),
    ("compile.enable_ep_context", "ep_device", False, "compile validate finalize"),
    ("compile.embed_context", "static", True, "compile"),
    ("compile.compiler", "static", "ort_session", "compile"),
    ("compile.qnn_sdk_root", "static", "/opt/qairt", NOTHING),
    ("compile.soc_model", "static", 57, "analyze compile validate"),
    ("compile.soc_model", "static", "Snapdragon X2 Elite", "analyze compile validate"),
    ("compile.soc_model", "static", "snapdragon x elite", NOTHING),
    ("compile.htp_arch", "static", 75, "analyze compile validate"),
    ("compile.htp_arch", "static", 73, NOTHING),
    ("compile.htp_optimization_level", "static", 1, "compile validate"),
    ("compile.htp_optimization_level", "static", 3, NOTHING),
    ("compile.require_full_offload", "static", True, "finalize"),
    ("compile.device", "static", "gpu", "analyze compile validate"),
    ("compile.device", "inputs", "gpu", "optimize analyze compile validate finalize"),
    ("compile.execution_provider", "ep in compile", "cpu", "optimize analyze compile validate finalize"),
    ("compile.execution_provider", "cpu", "qnn", NOTHING),
    ("compile.ep_device", "ep_device", None, "optimize analyze compile validate finalize"),
    ("compile.ep_device.ep", "ep_device", "cpu", "optimize analyze compile validate finalize"),
    ("compile.ep_device.device", "ep_device", "gpu", "analyze compile validate"),
    ("compile.ep_device.device", "inputs", "gpu", "optimize analyze compile validate finalize"),
    ("compile.ep_device.source", "ep_device", "catalog", NOTHING),
    ("compile.validate", "static", False, "validate finalize"),
    ("compile.validate", "text", False, "calibrate validate finalize"),
    ("compile.verbose", "static", True, NOTHING),
    ("compile.quantize", "static", True, NOTHING),
    ("compile.quant_config", "float", {"weight_type": "int8"}, "analyze calibrate quantize compile validate"),
    ("compile.quant_config", "no tags", {}, "analyze calibrate quantize validate finalize"),
    ("compile.quant_config", "inputs", {}, "optimize analyze calibrate quantize validate finalize"),
    ("compile.ep_config", "static", {"embed_context": True}, "compile"),
    ("compile.ep_config", "inputs", {"provider": "qnn"}, "optimize analyze compile validate finalize"),
    #
    ("validate", "static", {}, NOTHING),
    ("validate", "static", {"samples": 5}, "validate"),
    ("validate.enabled", "static", False, "validate finalize"),
    ("validate.min_cosine", "static", 0.5, "validate"),
    ("validate.min_sqnr_db", "static", 10.0, "validate"),
    ("validate.max_abs_error", "static", 0.5, "validate"),
    ("validate.min_top1_agreement", "static", 0.9, "validate"),
    ("validate.input_data", "static", "data.npz", "validate"),
    ("validate.input_data", "text", "data.npz", "validate"),
    ("validate.input_data", "text", "same.txt", "validate"),
    ("validate.input_data", "own inputs", "data", "validate"),
    ("validate.input_data", "own inputs", "data.txt", "validate"),
    ("validate.input_data", "own inputs", "same.npz", NOTHING),
    ("validate.samples", "own inputs", 5, "validate"),
    ("validate.samples", "text and own inputs", 5, "validate"),
    ("validate.input_data", "text and own inputs", None, "validate"),
    ("validate.seed", "own inputs", 1, NOTHING),
    ("quant.calibration_data", "own inputs", "data.txt", "calibrate"),
    ("validate.samples", "static", 5, "validate"),
    ("validate.samples", "text", 5, "calibrate validate"),
    ("validate.enabled", "text", False, "calibrate validate finalize"),
    ("validate.seed", "static", 1, "validate"),
    ("validate.seed", "text", 1, NOTHING),
    ("perf", "static", {"warmup": 1}, NOTHING),
)

# Sections that are equal to another one.
AGAIN = {"compile.quant_config.": "quant.", "compile.ep_config.": "compile."}
_RENAMED = {"compile.provider": "compile.execution_provider"}

# The same for options, on top of a base recipe.
OPTIONS: tuple[Edit, ...] = (
    ("model", "static", "other", "export"),
    ("model", "folder", "same", NOTHING),
    ("model", "folder", "other", "export"),
    ("model", "onnx", "other", "export optimize validate"),
    ("onnx", "static", Path("onnx/model.onnx"), "export optimize validate"),
    ("onnx", "rows", Path("onnx/model.onnx"), "export optimize calibrate validate"),
    ("task", "rows", "question-answering", "export calibrate validate"),
    ("task", "static", "fill-mask", "export"),
    ("task", "static", "feature-extraction", "export validate"),
    ("task", "onnx", "fill-mask", "validate"),
    ("ep", "static", "qnn", NOTHING),
    ("ep", "static", "cpu", "analyze quantize compile validate finalize"),
    ("ep", "open", "cpu", "normalize analyze quantize compile validate finalize"),
    ("ep", "ep in compile", "cpu", "optimize analyze compile validate finalize"),
    ("device", "static", "npu", NOTHING),
    ("device", "static", "gpu", "analyze quantize compile validate"),
    ("device", "open", "cpu", "normalize analyze quantize compile validate finalize"),
    ("device", "static", "cpu", "analyze quantize compile validate finalize"),
    ("device", "ep in compile", "cpu", "optimize analyze compile validate finalize"),
    ("precision", "static", "w8a8", NOTHING),
    ("precision", "static", "w8a16", "analyze quantize validate"),
    ("precision", "float", "w8a16", "analyze calibrate quantize compile validate"),
    ("precision", "open", "fp16", "normalize analyze calibrate quantize validate"),
    ("precision", "inputs", "int8", "optimize analyze calibrate quantize validate finalize"),
    ("precision", "inputs", "fp16", "analyze quantize validate finalize"),
    ("settings", "static", {"quant": {"samples": 20}}, "calibrate"),
    ("settings", "static", {"quant": {"weight_type": "int8"}}, "analyze quantize"),
    ("settings", "rtn", {"quant": {"rtn_float_type": "float16"}}, "analyze quantize.1 validate finalize"),
    ("settings", "static", {"compile": {"embed_context": True}}, "compile"),
    ("settings", "static", {"compile": {"provider_options": {"soc_model": "57"}}}, "analyze compile validate"),
    ("settings", "option file", {"compile": {"provider_options": {"vtcm_mb": "4"}}}, "analyze compile validate"),
    ("settings", "option file", {"compile": {"provider_options": {"op_affinity": "other.json"}}}, "compile"),
    ("settings", "static", {"compile": {"soc_model": 57}}, "analyze compile validate"),
    ("settings", "static", {"compile": {"require_full_offload": True}}, "finalize"),
    ("settings", "static", {"export": {"opset_version": 17}}, "export"),
    ("settings", "static", {"optim": {"layer_norm_fusion": True}}, "optimize analyze"),
    ("settings", "static", {"validate": {"min_cosine": 0.5}}, "validate"),
    ("settings", "static", {"validate": {"input_data": "data.npz"}}, "validate"),
    ("quant", "static", True, NOTHING),
    ("quant", "static", False, "analyze calibrate quantize compile validate"),
    ("quant", "open", False, "normalize analyze calibrate quantize compile validate"),
    ("quant", "inputs", True, "optimize analyze calibrate quantize validate finalize"),
    ("quant", "cpu", False, "analyze calibrate quantize validate finalize"),
    ("compile", "static", True, NOTHING),
    ("compile", "ep in compile", False, "compile validate finalize"),
    ("optimize", "static", True, NOTHING),
    ("optimize", "static", False, "optimize analyze calibrate quantize"),
    ("optimize", "float", False, "optimize analyze compile validate"),
    ("optimize", "inputs", False, "optimize analyze validate finalize"),
    ("analyze", "static", True, NOTHING),
    ("analyze", "static", False, "analyze"),
    ("max_optim_iterations", "static", 1, NOTHING),
    ("max_optim_iterations", "static", 0, "analyze"),
    ("allow_unsupported_nodes", "static", True, NOTHING),
    ("validate", "static", True, NOTHING),
    ("validate", "static", False, "validate finalize"),
    ("validate", "text", False, "calibrate validate finalize"),
    # For composite models only.
    ("submodel", "static", "encoder", NOTHING),
    # For `quantize` only.
    ("sensitivity", "static", True, NOTHING),
    ("random_weights", "static", True, NOTHING),
    ("random_weights", "folder", True, "export"),
    ("trust_remote_code", "static", True, NOTHING),
    ("trust_remote_code", "folder", True, "export"),
)


def declared_name(field: str) -> str:
    """Return the name of *field* in the tables."""
    for prefix, section in AGAIN.items():
        if field.startswith(prefix):
            field = section + field.removeprefix(prefix)
    return _RENAMED.get(field, field)


def edited(recipe: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """Return *recipe* with *value* for *field*; in a list of sections, in the first one."""
    result, place = within(recipe, field.split(".")[:-1])
    place[field.rpartition(".")[2]] = value
    return result


def within(recipe: Mapping[str, Any], sections: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a copy of *recipe* with the nested *sections*, and the innermost of them.

    Raises:
        IndexError: for an empty list of sections.
    """
    result: dict[str, Any] = copy.deepcopy(dict(recipe))
    place: Any = result
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        place = place[0] if isinstance(place, list) else place
        # Sections with user-defined names.
        place = place.setdefault(_NODES, {}) if section == "node_overrides" else place
    return result, place
