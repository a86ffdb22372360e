"""How QNN compiles quantized models: the purpose of its rules is that nothing is left to the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from ep_stage_runs import requires_qnn
from export_models import exported_once, random_model
from optimize_samples import optimize
from quantization_samples import calibrate, image_model, outlier_model, pixels, quantize, rows

from winml_dag.stages.export import ExportFields
from winml_dag.stages.quantize import NodeTypes

pytestmark = [requires_qnn, pytest.mark.slow]

# In a process of its own, which may crash; that bytes differ after the first compilation does not matter here.
_COMPILE = """
import sys
import onnx, onnxruntime, onnxruntime_qnn
onnxruntime.set_default_logger_severity(3)
onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "QNNExecutionProvider"][:1]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(
    devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60", "htp_arch": "73"}
)
for number, path in enumerate(sys.argv[1:]):
    onnxruntime.ModelCompiler(options, path).compile_to_file(f"{number}.onnx")
"""


def types(weight_type: str, activation_type: str) -> dict[str, str]:
    return {"weight_type": weight_type, "activation_type": activation_type}


def bert_variants(folder: Path) -> Iterator[tuple[str, Path]]:
    loader = random_model("bert", "feature-extraction", max_position_embeddings=16)
    exported = exported_once(loader, ExportFields(dynamo=False, opset_version=20))
    bert = optimize(folder / "optimized", onnx.load(exported.model), "clamp_constant_values").model
    random = np.random.default_rng(0)
    shape, end = (4, 16), random.integers(4, 17, (4, 1))
    data = {
        "input_ids": random.integers(0, 100, shape).astype(np.int32),
        "attention_mask": (np.arange(16) < end).astype(np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
    }
    ranges = calibrate(folder, bert, data)
    # tests/scenarios/test_precisions_built.py compiles the precisions that builds have by themselves.
    for weight_type, activation_type, per_channel in (("uint8", "uint16", False), ("int8", "uint16", None)):
        made = types(weight_type, activation_type)
        result = quantize(folder, bert, "static", ranges, "qnn", per_channel=per_channel, **made)
        assert result.metrics["nodes_skipped"] == 0
        assert result.metrics["weights_by_type"][weight_type] >= 12  # the matrices of two layers
        yield f"bert {weight_type} {activation_type} {per_channel}", result.path
    for activation_type, override in (
        ("uint8", NodeTypes("*LayerNorm*", None, "uint16")),
        ("uint16", NodeTypes("*Softmax*", None, "uint8")),
        ("uint8", NodeTypes("*query*", "int4", "uint16")),
    ):
        fields = {"node_overrides": (override,), "equalize": False, **types("uint8", activation_type)}
        result = quantize(folder, bert, "static", ranges, "qnn", **fields)
        assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}
        yield f"bert with {override.nodes}", result.path


def image_variants(folder: Path) -> Iterator[tuple[str, Path]]:
    # Below opset 21, Q and DQ of 4 and 16 bits are in another domain.
    for opset, weight_type, activation_type, symmetric in (
        (17, "uint8", "uint8", False),
        (21, "int8", "uint8", True),
        (17, "int16", "uint16", False),
        (21, "uint8", "uint16", False),
        *((opset, "int4", "uint16", None) for opset in (17, 21)),
    ):
        ranges = calibrate(folder, image_model(opset), pixels(4))
        fields = {**types(weight_type, activation_type), "weight_symmetric": symmetric}
        result = quantize(folder, image_model(opset), "static", ranges, "qnn", **fields)
        yield f"image {opset} {weight_type} {activation_type}", result.path


def outlier_variants(folder: Path) -> Iterator[tuple[str, Path]]:
    for opset, after, weight_type in ((17, True, "uint8"), (21, False, "int8")):
        model = outlier_model(opset, after=after)
        ranges = calibrate(folder, model, rows(4))
        result = quantize(folder, model, "static", ranges, "qnn", per_channel=True, **types(weight_type, "uint8"))
        assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}
        yield f"outliers {opset} {after} {weight_type}", result.path


@pytest.mark.filterwarnings("ignore")
def test_quantized_models_compile_to_one_partition(tmp_path):
    models = dict([*bert_variants(tmp_path), *image_variants(tmp_path), *outlier_variants(tmp_path)])
    command = [sys.executable, "-c", _COMPILE, *map(str, models.values())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for number, name in enumerate(models):
        nodes = onnx.load(tmp_path / f"{number}.onnx", load_external_data=False).graph.node
        # Without Q and DQ at its inputs and outputs.
        assert [node.op_type for node in nodes if "Linear" not in node.op_type] == ["EPContext"], name
