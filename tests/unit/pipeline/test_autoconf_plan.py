"""The capability search as a plan: its rounds, their inputs, and what is in no key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from onnx import TensorProto, helper, save

from winml_dag import file_reading
from winml_dag.engine.stage import Node, key_inputs_of
from winml_dag.ep.availability import installed
from winml_dag.ep.registry import CPU, QNN
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan import plan_build
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.stages.analyze import ASKED_ABOUT
from winml_dag.stages.analyze.analysis import FUSIONS
from winml_dag.store.records import cache_key
from winml_dag.store.store import Store

RANDOM = {"task": "text-classification", "model_type": "bert", "random_weights": {"config": {"hidden_size": 32}}}

NOTHING = Overrides()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    monkeypatch.setenv("WINML_DAG_SUPPORT_DIR", str(tmp_path / "tables"))
    return Store(tmp_path / "cache")


def planned(store: Store, overrides: Overrides = NOTHING, **recipe: Any) -> BuildGraph:
    Path("recipe.yaml").write_text(yaml.safe_dump({"loader": RANDOM, **recipe}), encoding="utf-8")
    request = Request(Path("recipe.yaml"), overrides, Path("out"))
    build = build_of(request, store.folder, download=False, needs_folder=False)
    return plan_build(build, store.fingerprints)


def searching(planned: BuildGraph) -> list[Node]:
    return [node for node in planned.graph.nodes if node.stage.name in ("optimize", "analyze")]


def key(planned: BuildGraph, node_id: str) -> str:
    """Return the key of a node, with a placeholder for the exported model."""
    node = planned.graph.node(node_id)
    digests = {slot: planned.sources[name].digest if name in planned.sources else name
               for slot, name in node.inputs.items()}  # fmt: skip
    return cache_key(key_inputs_of(node, digests))


def test_every_optimize_reads_same_model_and_earlier_discoveries(store: Store) -> None:
    graph = planned(store, ep="cpu", precision="w8a8")
    assert [node.id for node in searching(graph)] == [
        *("optimize.0", "analyze.0", "optimize.1", "analyze.1"),
        *("optimize.2", "analyze.2", "optimize.3", "analyze.3"),
    ]
    nodes = {node.id: node for node in graph.graph.nodes}
    for number in range(1, 4):
        optimize, analyze = nodes[f"optimize.{number}"], nodes[f"analyze.{number}"]
        assert optimize.config == nodes["optimize.0"].config
        assert optimize.inputs["model"] == nodes["optimize.0"].inputs["model"] == "export.model"
        assert optimize.inputs["flags"] == analyze.inputs["flags"] == f"analyze.{number - 1}.flags"
        assert analyze.inputs["model"] == f"optimize.{number}.model"
    assert nodes["calibrate"].inputs["model"] == "optimize.3.model"
    assert [node.id for node in graph.graph.nodes if node.check] == ["analyze.3"]


def test_search_does_not_change_the_first_key(store: Store) -> None:
    """Nor does the target: builds for several targets share the first optimize, and all rounds if nothing is
    discovered.
    """
    recipes = ({"ep": "cpu"}, {"ep": "cpu", "auto": False}, {"ep": "cpu", "max_optim_iterations": 1})
    targets = ({"ep": "qnn", "precision": "w8a16"}, {"ep": "openvino", "device": "gpu"})
    keys = {key(planned(store, **recipe), "optimize.0") for recipe in recipes + targets}
    assert keys == {key(planned(store, Overrides(analyze=False), ep="cpu"), "optimize.0")}


@pytest.mark.parametrize(
    ("recipe", "overrides", "ids", "proposes"),
    [
        ({}, Overrides(max_optim_iterations=1), ["optimize.0", "analyze.0", "optimize.1", "analyze.1"], True),
        ({"max_optim_iterations": 0}, Overrides(), ["optimize.0", "analyze.0"], False),
        ({"skip_optimize": True}, Overrides(), ["analyze.0"], False),
        ({}, Overrides(optimize=False), ["analyze.0"], False),
        ({"auto": False}, Overrides(), ["optimize.0"], None),
        ({}, Overrides(analyze=False), ["optimize.0"], None),
        ({"auto": False}, Overrides(analyze=True, max_optim_iterations=0), ["optimize.0", "analyze.0"], False),
    ],
)
def test_search_rounds_can_be_limited_or_disabled(
    store: Store, recipe: dict[str, Any], overrides: Overrides, ids: list[str], proposes: bool | None
) -> None:
    graph = planned(store, overrides, **recipe)
    nodes = searching(graph)
    assert [node.id for node in nodes] == ids
    asked = [node.config["analyze"]["propose"] for node in nodes if node.stage.name == "analyze"]  # type: ignore[index,call-overload]
    assert set(asked) == ({proposes} if proposes is not None else set())
    assert ("no capabilities" in graph.sources) is (ids != [])


def test_quantized_model_is_analyzed_once(store: Store) -> None:
    value, result = (helper.make_tensor_value_info(name, TensorProto.UINT8, [1]) for name in "xy")
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s"], ["f"]),
        helper.make_node("QuantizeLinear", ["f", "s"], ["y"]),
    ]
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    save(helper.make_model(helper.make_graph(nodes, "g", [value], [result], [scale])), "qdq.onnx")
    graph = planned(store, Overrides(onnx=Path("qdq.onnx")))
    assert [node.id for node in searching(graph)] == ["analyze.0"]
    assert graph.graph.node("analyze.0").inputs["model"] == "qdq.onnx"


def test_analyze_config_uses_quantized_types(store: Store) -> None:
    quant: dict[str, Any] = {"weight_type": "int8", "activation_type": "uint16", "per_channel": False}
    quant["nodes_to_exclude"] = ["/head/*"]
    quant["op_types_to_exclude"] = ["Softmax"]
    (node,) = searching(planned(store, Overrides(optimize=False), ep="qnn", quant=quant))
    assert node.config["quant"] == {
        "activation_type": "uint16",
        "weight_type": "int8",
        "per_channel": False,
        "op_types": None,
        "excluded_op_types": ["Softmax"],
        "excluded": ["/head/*"],
    }
    assert node.config["target"] == {
        "execution_provider": "QNNExecutionProvider",
        "device": "npu",
        "standard_domain_only": False,
        "asks": installed(QNN),
        "provider_options": {"enable_htp_fp16_precision": "1", "htp_arch": "73", "soc_model": "60"}
        if installed(QNN)
        else {},
    }


@pytest.mark.parametrize(("precision", "width"), [("w8a8", 8), ("w8a16", 16), ("w16a16", 16)])
def test_analyze_assumes_operators_that_quantize_uses_on_cpu(store: Store, precision: str, width: int) -> None:
    build = planned(store, Overrides(optimize=False), ep="cpu", precision=precision)
    (node,) = searching(build)
    (quantize,) = [node for node in build.graph.nodes if node.stage.name == "quantize"]
    assumed, taken = node.config["quant"], quantize.config["target"]
    assert isinstance(assumed, dict)
    assert isinstance(taken, dict)
    assert assumed["op_types"] == taken["op_types"] == list(CPU.integers.operators[width])

    (own,) = searching(
        planned(
            store,
            Overrides(optimize=False),
            ep="cpu",
            precision=precision,
            quant={"op_types_to_quantize": ["Softmax"]},
        )
    )
    assert own.config["quant"] == {**assumed, "op_types": ["Softmax"]}


@pytest.mark.parametrize(("precision", "types"), [("fp16", "float16"), ("w4a16", "float16"), ("w4a32", None)])
def test_fp16_activations_are_analyzed_and_4_bit_weights_alone_are_not(
    store: Store, precision: str, types: str | None
) -> None:
    (node,) = searching(planned(store, Overrides(optimize=False), ep="cpu", precision=precision))
    quant = node.config["quant"]
    assert (quant["activation_type"] if isinstance(quant, dict) else quant) == types


def test_analyze_gets_only_proposable_capabilities_of_recipe(store: Store) -> None:
    optim = {"gelu_fusion": False, "bias_softmax_fusion": True, "clamp_constant_values": True}
    (_, node) = searching(planned(store, Overrides(max_optim_iterations=0), optim=optim))
    assert node.config["optim"] == {"clamp_constant_values": True, "gelu_fusion": False}
    assert {fusion.capability for fusion in FUSIONS} <= {*ASKED_ABOUT}


def test_target_without_support_table_is_reported(store: Store) -> None:
    (told,) = (notice for notice in planned(store, ep="migraphx", device="gpu").summary.notices if "table" in notice)
    assert told.startswith("There is no table of what MIGraphXExecutionProvider (gpu) takes")
    assert not any("table" in notice for notice in planned(store, ep="migraphx", auto=False).summary.notices)


def planned_from_cache(store: Store) -> BuildGraph:
    Path("recipe.yaml").write_text(yaml.safe_dump({"loader": RANDOM, "ep": "migraphx"}), encoding="utf-8")
    return plan_request(Request(Path("recipe.yaml"), Overrides(), Path("out")), store, download=False)


def test_user_support_table_takes_precedence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it comes after a plan was made."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    assert "operator support" not in planned_from_cache(store).sources
    table = Path("tables", "migraphx_gpu.support")
    table.write_bytes(b"table")
    graph = planned_from_cache(store)
    assert graph.graph.sources["operator support"].files[0].path == Path.cwd() / table
    assert [file.name for file in graph.sources["operator support"].files] == ["000_migraphx_gpu.support"]
    assert graph.graph.node("analyze.0").inputs["support"] == "operator support"
    table.write_bytes(b"another")
    assert planned_from_cache(store).sources["operator support"] != graph.sources["operator support"]


def test_later_winml_cli_tables_are_detected(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    monkeypatch.setenv("WINMLCLI_RULES_DIR", str(Path.cwd() / "rules"))
    folder = Path("rules", "MIGraphXExecutionProvider_GPU")
    folder.parent.mkdir()
    assert "operator support" not in planned_from_cache(store).sources
    folder.mkdir()
    for number, op_type in enumerate(("Add", "Relu"), 1):
        (folder / f"{op_type}_MIGraphXExecutionProvider_GPU_ai.onnx_opset13.parquet").write_bytes(b"table")
        assert len(planned_from_cache(store).graph.sources["operator support"].files) == number
