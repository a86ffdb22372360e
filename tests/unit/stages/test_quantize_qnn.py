"""How QNN compiles quantized models: the purpose of its rules is that nothing is left to the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from quantization_samples import Result, calibrate, image_model, outlier_model, pixels, quantize, rows

from winml_dag.ep.availability import installed
from winml_dag.ep.registry import QNN
from winml_dag.stages.quantize import NodeTypes

pytestmark = [pytest.mark.skipif(not installed(QNN), reason="onnxruntime-qnn is not installed"), pytest.mark.slow]

SEQUENCE = 16

# In a separate process: a second compilation in one process gives different bytes, and a crash must fail only one test.
_COMPILE = """
import sys
import onnxruntime, onnxruntime_qnn
onnxruntime.set_default_logger_severity(3)
onnxruntime.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "QNNExecutionProvider"][:1]
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(
    devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "60", "htp_arch": "73"}
)
onnxruntime.ModelCompiler(options, sys.argv[1]).compile_to_file("compiled.onnx")
"""


def compiled(folder: Path, model: Path) -> Counter[str]:
    """Return the nodes of the compiled model by operator, without Q and DQ at its inputs and outputs."""
    command = [sys.executable, "-c", _COMPILE, str(model)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    nodes = onnx.load(folder / "compiled.onnx", load_external_data=False).graph.node
    return Counter(node.op_type for node in nodes if "Linear" not in node.op_type)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> onnx.ModelProto:
    """A tiny BERT as exported, with constants folded and the mask clamped, as optimize leaves it."""
    import onnxruntime
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    inner = BertModel(config, add_pooling_layer=False).eval()

    class Wrap(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    folder = tmp_path_factory.mktemp("bert")
    ids = torch.ones(1, SEQUENCE, dtype=torch.int64)
    torch.onnx.export(
        Wrap().eval(),
        (ids, ids),
        str(folder / "export.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["output"],
        dynamo=False,
        opset_version=21,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "basic.onnx")
    onnxruntime.InferenceSession(str(folder / "export.onnx"), options, providers=["CPUExecutionProvider"])
    model = onnx.load(folder / "basic.onnx")
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size and values.min() < -1e30:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.maximum(values, np.float32(-50)), tensor.name))
    return model


@pytest.fixture(scope="module")
def bert_ranges(tmp_path_factory, bert) -> Result:
    return calibrate(tmp_path_factory.mktemp("ranges"), bert, sentences())


def sentences() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "input_ids": generator.integers(0, 64, (4, SEQUENCE)),
        "attention_mask": (np.arange(SEQUENCE) < generator.integers(4, SEQUENCE + 1, (4, 1))).astype(np.int64),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("weight_type", "activation_type", "per_channel"),
    [
        ("uint8", "uint8", None),
        ("uint8", "uint8", False),
        ("uint8", "uint16", None),
        ("uint8", "uint16", False),
        ("int8", "uint8", None),
        ("int8", "uint16", None),
        ("int16", "uint16", None),
        ("int4", "uint16", None),
        ("int4", "uint8", None),
    ],
)
def test_a_bert_is_one_partition(tmp_path, bert, bert_ranges, weight_type, activation_type, per_channel):
    types = {"weight_type": weight_type, "activation_type": activation_type}
    result = quantize(tmp_path, bert, "static", bert_ranges, "qnn", per_channel=per_channel, **types)
    assert result.metrics["nodes_skipped"] == 0
    assert result.metrics["weights_by_type"][weight_type] >= 12  # the matrices of two layers
    assert compiled(tmp_path, result.path) == {"EPContext": 1}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("activation_type", "override"),
    [
        ("uint8", NodeTypes("/inner/encoder/layer.0/*", None, "uint16")),
        ("uint8", NodeTypes("*LayerNorm*", None, "uint16")),
        ("uint16", NodeTypes("*Softmax*", None, "uint8")),
        ("uint8", NodeTypes("*query*", "int4", "uint16")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.nodes,
)
def test_a_bert_with_nodes_of_other_types_is_one_partition(tmp_path, bert, bert_ranges, activation_type, override):
    types = {"weight_type": "uint8", "activation_type": activation_type}
    result = quantize(tmp_path, bert, "static", bert_ranges, "qnn", node_overrides=(override,), equalize=False, **types)
    assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}
    assert compiled(tmp_path, result.path) == {"EPContext": 1}


# Below opset 21, Q and DQ of 4 and 16 bits are in another domain.
@pytest.mark.parametrize(
    ("opset", "weight_type", "activation_type", "symmetric"),
    [
        (17, "uint8", "uint8", False),
        (21, "int8", "uint8", True),
        (21, "int4", "uint8", None),
        *((opset, "uint8", "uint16", False) for opset in (17, 21)),
        *((opset, "int16", "uint16", False) for opset in (17, 21)),
        *((opset, "int4", "uint16", None) for opset in (17, 21)),
    ],
)
def test_a_convolutional_network_is_one_partition(tmp_path, opset, weight_type, activation_type, symmetric):
    ranges = calibrate(tmp_path, image_model(opset), pixels(4))
    fields = {"weight_type": weight_type, "activation_type": activation_type, "weight_symmetric": symmetric}
    result = quantize(tmp_path, image_model(opset), "static", ranges, "qnn", **fields)
    assert compiled(tmp_path, result.path) == {"EPContext": 1}


@pytest.mark.parametrize(
    ("opset", "after", "weight_type"),
    [(17, True, "uint8"), (17, False, "int8"), (21, True, "int8"), (21, False, "uint8")],
)
def test_activations_of_two_widths_are_one_partition(tmp_path, opset, after, weight_type):
    model = outlier_model(opset, after=after)
    ranges = calibrate(tmp_path, model, rows(4))
    types = {"weight_type": weight_type, "activation_type": "uint8", "per_channel": True}
    result = quantize(tmp_path, model, "static", ranges, "qnn", **types)
    assert set(result.metrics["activations_by_type"]) == {"uint8", "uint16"}
    assert compiled(tmp_path, result.path) == {"EPContext": 1}
