"""sensitivity: the quality loss of each single node, compared with models in which only that node is quantized."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ep_stage_runs import run_stage
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from optimize_samples import outputs, session
from quantization_samples import (
    Result,
    calibrate,
    fresh,
    image_model,
    outlier_model,
    pixels,
    put,
    quantize,
    rows,
    settled_fields,
    stored,
    text_model,
    token_ids,
)

from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.stages.quantize import NodeTypes, QuantizeTarget
from winml_dag.stages.sensitivity import SENSITIVITY, RankedFields, SamplesFields, SensitivityConfig
from winml_dag.stages.sensitivity.nodes import run
from winml_dag.stages.sensitivity.ranking import FloatModel
from winml_dag.stages.sensitivity.replacement import Replacement

SAMPLES = 3
BYTES = {"weight_type": "uint8", "activation_type": "uint8"}


@dataclass(frozen=True)
class Ranking:
    metrics: Mapping[str, Any]
    report: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def ratios(self) -> dict[str, float]:
        """Return the SQNR by node."""
        return {node["node"]: node["sqnr_db"] for node in self.report["nodes"]}

    def covers(self, name: str) -> list[str]:
        node = next(node for node in self.report["nodes"] if node["node"] == name)
        return [name, *node["includes"]]

    @property
    def relief(self) -> dict[int, Mapping[str, Any]]:
        return {relief["worst_nodes"]: relief for relief in self.report["relief"]}


def sensitivity(
    folder: Path,
    model: onnx.ModelProto,
    mode: str,
    data: Mapping[str, np.ndarray] | None,
    ranges: Result | None = None,
    target: QuantizeTarget | None = None,
    seed: int | None = None,
    *,
    draws: bool = False,
    **fields: Any,
) -> Ranking:
    """Run the stage; unless it *draws*, matplotlib is not found, since a picture takes longer than the rest."""
    found = importlib.util.find_spec
    with chdir(fresh(folder, "sensitivity")), pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(
                importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else found(name, *rest)
            )
        inputs = {"model": put(Path("model"), model)}
        if data is not None:
            inputs["data"] = stored(Path("data"), **data)
        if ranges is not None:
            inputs["ranges"] = ranges.folder
        Path("report").mkdir()
        rules = QuantizeTarget("onnxruntime", mixes_widths=True) if mode == "static" else QuantizeTarget()
        settled = RankedFields(mode, **settled_fields(mode, rules.rules, fields))
        config = SensitivityConfig(settled, target or rules, SamplesFields(SAMPLES, seed, classifies=False))
        metrics = run(config, Workspace(inputs, {"report": Path("report")}))
        report = json.loads(Path("report/sensitivity.json").read_text())
        return Ranking(metrics, report, {path.name: path.read_bytes() for path in Path("report").iterdir()})


def held_out(data: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return what the stage runs: the last samples of *data*."""
    count = len(next(iter(data.values())))
    specs = range(count - SAMPLES, count)
    return [{name: array[index : index + 1] for name, array in data.items()} for index in specs]


def sqnr(reference: onnx.ModelProto, candidate: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> float:
    """Return the SQNR of the only output, on samples without padding and without fusions, so that both run node by
    node.
    """
    expected, found = (np.concatenate(run_plainly(model, feeds)).astype(np.float64) for model in (reference, candidate))
    noise = float(((found - expected) ** 2).sum())
    return 10 * math.log10(float((expected**2).sum()) / noise) if noise else math.inf


def run_plainly(model: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    plain = session(model, optimized=False)
    return [plain.run(None, feed)[0].ravel() for feed in feeds]


def unpadded(count: int) -> dict[str, np.ndarray]:
    data = token_ids(count)
    return {**data, "attention_mask": np.ones_like(data["attention_mask"])}


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


TEXTS, IMAGES = unpadded(8), pixels(8)


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return calibrate(tmp_path_factory.mktemp("images"), image_model(), IMAGES)


@pytest.mark.parametrize(("mode", "fields"), [("dynamic", {"weight_type": "int8"}), ("rtn", {"rtn_block_size": 16})])
def test_node_sqnr_matches_model_with_only_that_node_quantized(
    tmp_path: Path, mode: str, fields: dict[str, Any]
) -> None:
    model, data = text_model(), TEXTS
    ranking = sensitivity(tmp_path, model, mode, data, **fields)
    assert ranking.ratios.keys() >= {"query", "key", "project"}
    for name, ratio in ranking.ratios.items():
        others = [other for other in names(model) if other != name]
        alone = quantize(tmp_path, model, mode, nodes_to_exclude=tuple(others), **fields)
        assert ratio == pytest.approx(sqnr(model, alone.model, held_out(data)), abs=0.06), name


def test_fp16_node_sqnr_matches_rounded_inputs_and_outputs(tmp_path: Path) -> None:
    model, data = text_model(), TEXTS
    ranking = sensitivity(tmp_path, model, "fp16", data)
    assert ranking.ratios.keys() >= {"embed", "norm", "softmax", "residual"}
    for name, ratio in ranking.ratios.items():
        expected = sqnr(model, rounded(model, name), held_out(data))
        assert (ratio is None and expected == math.inf) or ratio == pytest.approx(expected, abs=0.06), name


def rounded(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return *model*, with the node *name* computing with values rounded to float16."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    integers = {"input_ids", "attention_mask", "axis"}
    nodes: list[onnx.NodeProto] = []
    for node in changed.graph.node:
        behind: list[onnx.NodeProto] = []
        if node.name == name:
            for names_of, put, end in ((node.input, nodes, "read"), (node.output, behind, "made")):
                for index, value in enumerate(names_of):
                    if value not in integers:
                        own = f"{value} {end}"
                        source, result = (value, own) if end == "read" else (own, value)
                        put.append(helper.make_node("Cast", [source], [f"{own} half"], to=TensorProto.FLOAT16))
                        put.append(helper.make_node("Cast", [f"{own} half"], [result], to=TensorProto.FLOAT))
                        names_of[index] = own
        nodes += [node, *behind]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del changed.graph.node[:]
    changed.graph.node.extend(kept)
    return changed


def test_static_node_sqnr_matches_qdq_around_that_node(tmp_path: Path) -> None:
    """In a chain without other readers, the rules for several nodes equal those for one."""
    model, data = image_model(), IMAGES
    model.graph.node[2].name = ""
    of_images = calibrate(tmp_path, model, data)
    ranking = sensitivity(tmp_path, model, "static", data, of_images, **BYTES)
    shown = [name or "Conv_of_node_2" for name in names(model)]
    assert set(ranking.ratios) == {"conv1", "Conv_of_node_2", "pool", "flatten", "classify"}
    assert ranking.covers("conv1") == ["conv1", "relu1"], "the lowest integer stands for the Relu"
    for name, ratio in ranking.ratios.items():
        others = [other for other in shown if other not in ranking.covers(name)]
        alone = quantize(tmp_path, model, "static", of_images, "onnxruntime", nodes_to_exclude=tuple(others), **BYTES)
        assert ratio == pytest.approx(sqnr(model, alone.model, held_out(data)), abs=0.06), name


def test_most_damaging_node_is_ranked_first(tmp_path: Path) -> None:
    model, data = text_model(), TEXTS
    (project,) = [tensor for tensor in model.graph.initializer if tensor.name == "wo"]
    values = numpy_helper.to_array(project).copy()
    values[0, 0] = 60  # one number that takes all steps of a scale for the whole matrix
    project.CopyFrom(numpy_helper.from_array(values, "wo"))
    ranges = calibrate(tmp_path, model, data)
    ranking = sensitivity(tmp_path, model, "static", data, ranges, per_channel=False, **BYTES)
    ratios = list(ranking.ratios.values())
    assert ranking.report["nodes"][0]["node"] == ranking.metrics["worst_node"] == "project"
    assert ratios == sorted(ratios, key=lambda ratio: math.inf if ratio is None else ratio)


@pytest.mark.parametrize("mixes_widths", [True, False])
def test_relief_is_measured_on_the_resulting_model(tmp_path: Path, mixes_widths: bool) -> None:
    """They are left in float only where widths do not mix."""
    model, data = text_model(), TEXTS
    ranges = calibrate(tmp_path, model, data)
    target = QuantizeTarget("onnxruntime", mixes_widths)
    ranking = sensitivity(tmp_path, model, "static", data, ranges, target, **BYTES)
    by = "node_overrides" if mixes_widths else "nodes_to_exclude"
    for count in (0, 2):
        worst = list(ranking.ratios)[:count]
        fields = {by: tuple(NodeTypes(name, activation_type="uint16") if mixes_widths else name for name in worst)}
        spared = quantize(tmp_path, model, "static", ranges, "onnxruntime", **fields, **BYTES)
        expected = pytest.approx(sqnr(model, spared.model, held_out(data)), abs=0.06)
        assert (ranking.relief[count]["by"], ranking.relief[count]["sqnr_db"]) == (by, expected)
    assert not mixes_widths or ranking.relief[4]["sqnr_db"] > ranking.relief[0]["sqnr_db"]


def test_equalized_model_is_ranked_by_original_nodes(tmp_path: Path) -> None:
    """Equalization scales matrices, and adds a second normalization after one that a residual reads too."""
    model, data = outlier_model(), rows(8)
    ranges = calibrate(tmp_path, model, data)
    ranking = sensitivity(tmp_path, model, "static", data, ranges, **BYTES)
    quantized = quantize(tmp_path, model, "static", ranges, "onnxruntime", **BYTES).model
    assert "norm_equalized" in names(quantized), "the model of this test"
    shown = {name for node in ranking.report["nodes"] for name in (node["node"], *node["includes"])}
    assert shown == set(names(model))
    # Each one alone is better than all together: the float reference is the equalized model.
    assert all(ratio is None or ratio > ranking.relief[0]["sqnr_db"] - 0.1 for ratio in ranking.ratios.values())


def test_padding_does_not_affect_ranking(tmp_path: Path) -> None:
    """Two rankings on the same texts, with different contents after the end of each text."""
    model, data = text_model(), token_ids(8)
    hidden = data["attention_mask"] == 0
    assert hidden[-SAMPLES:].any(), "the data of this test"
    other = {**data, "input_ids": np.where(hidden, (data["input_ids"] + 3) % 16, data["input_ids"])}
    first, second = (sensitivity(tmp_path, model, "dynamic", each, weight_type="int8") for each in (data, other))
    for name in ("project", "query"):
        assert first.ratios[name] == pytest.approx(second.ratios[name], abs=1.5)


def test_model_of_open_length_is_ranked_on_cpu(tmp_path: Path) -> None:
    """Its Softmax is kept in float with a node that the model does not have."""
    model = text_model(length="n")
    ranking = sensitivity(tmp_path, model, "static", TEXTS, calibrate(tmp_path, model, TEXTS), **BYTES)
    assert ranking.ratios.keys() <= set(names(model))
    assert {"scores", "mix"} <= ranking.ratios.keys()


def test_unrankable_model_is_refused(tmp_path: Path, of_images: Result) -> None:
    model, data = image_model(), IMAGES
    with pytest.raises(StageError, match="needs activation ranges"):
        sensitivity(tmp_path, model, "static", data, **BYTES)
    quantized = quantize(tmp_path, model, "static", of_images, "onnxruntime", **BYTES).model
    with pytest.raises(StageError, match="quantized already and cannot be ranked by sensitivity"):
        sensitivity(tmp_path, quantized, "static", data, of_images, **BYTES)
    with pytest.raises(StageError, match="No node of the model could be quantized"):
        sensitivity(tmp_path, model, "static", data, of_images, nodes_to_exclude=("*",), **BYTES)


def test_without_data_and_matplotlib_random_inputs_run_without_picture(tmp_path: Path) -> None:
    ranking = sensitivity(tmp_path, image_model(), "rtn", None, seed=7, rtn_block_size=16)
    assert (ranking.files.keys(), ranking.metrics["picture"]) == ({"sensitivity.json"}, False)
    assert ranking.metrics["samples"] == SAMPLES
    assert (ranking.report["data"], ranking.report["seed"], ranking.report["held_out"]) == ("random", 7, True)


@pytest.mark.slow
def test_report_and_picture_have_same_bytes_in_every_process(tmp_path: Path, of_images: Result) -> None:
    model, data = image_model(), IMAGES
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **data)
    config = {
        "quant": {"mode": "static", **settled_fields("static", "onnxruntime", {"per_channel": True, **BYTES})},
        "target": {"rules": "onnxruntime", "mixes_widths": True},
        "validate": {"samples": 3, "seed": None, "classifies": False},
    }
    inputs = {
        "model": {"model.onnx": tmp_path / "model.onnx"},
        "ranges": {"ranges.json": of_images.path},
        "data": {"data.npz": tmp_path / "data.npz"},
    }
    here = sensitivity(tmp_path, model, "static", data, of_images, draws=True, per_channel=True, **BYTES).files
    assert here.keys() == {"sensitivity.json", "sensitivity.png"}
    other = run_stage(SENSITIVITY, tmp_path / "run", config, inputs, hash_seed=1)
    assert not other.error
    assert other.files() == here


@st.composite
def small_graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw nodes that read any values before them, with several outputs, some with several readers."""
    values = ["x"]
    nodes = []
    for position in range(draw(st.integers(1, 24))):
        op_type = draw(st.sampled_from(["Add", "Sub", "Tanh", "Neg", "MatMul", "Split"]))
        read = draw(st.sampled_from(values))
        made = [f"v{position}"]
        if op_type in ("Add", "Sub"):
            reads = [read, draw(st.sampled_from([*values, "small", "large"]))]
        elif op_type == "MatMul":
            reads = [read, "large"]
        elif op_type == "Split":
            nodes.append(helper.make_node("Concat", [read, read], [f"twice{position}"], f"twice{position}", axis=0))
            reads, made = [f"twice{position}"], [f"v{position}", f"w{position}"]
        else:
            reads = [read]
        attributes = {"num_outputs": 2} if op_type == "Split" else {}
        nodes.append(helper.make_node(op_type, reads, made, f"n{position}", **attributes))
        values += made
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    generator = np.random.default_rng(0)
    constants = {"small": generator.standard_normal(32), "large": generator.standard_normal((32, 32)) / 6}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, 32])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 32]) for name in outputs],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def replacements(model: onnx.ModelProto) -> Iterator[Replacement]:
    """Yield each node with its outputs negated."""
    for position, node in enumerate(model.graph.node):
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.output[:] = [f"{name} first" for name in node.output]
        negated = [helper.make_node("Neg", [f"{name} first"], [name]) for name in node.output]
        yield Replacement((position,), (own, *negated), ())


@settings(max_examples=12, deadline=None)
@given(model=small_graphs())
def test_stepwise_execution_equals_whole_model(model: onnx.ModelProto) -> None:
    given = [{"x": np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)}]
    nodes = list(model.graph.node)
    lean = onnx.ModelProto()
    lean.CopyFrom(model)
    stepped = FloatModel(lean, model)
    assert stepped.steps == tuple((at, at + 1) for at in range(len(nodes)))
    assert _outputs(model, given[0]) == [value.tobytes() for value in stepped.run_rest(0, None, given)[0]]
    values = given
    for (first, end), replacement in zip(stepped.steps, replacements(model), strict=True):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        del changed.graph.node[:]
        changed.graph.node.extend([*nodes[:first], *replacement.nodes, *nodes[end:]])
        (found,) = stepped.run_rest(first, replacement, values)
        assert _outputs(changed, given[0]) == [value.tobytes() for value in found]
        values = stepped.advance(first, end, values)


def _outputs(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[bytes]:
    return [value.tobytes() for value in outputs(model, feed, optimized=False)]
