"""The effect of each option of ``quantize``, and what it rejects before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.cli import run
from winml_dag.cli.stages import COMMANDS, request_of
from winml_dag.pipeline.request import Request
from winml_dag.recipe.schema import Quant

# winml-cli's options, verbatim.
WINML_CLI = (
    *("-m", "--model", "-o", "--output", "-p", "--precision", "-c", "--config", "--samples", "--method"),
    *("--weight-type", "--activation-type", "--per-channel", "--symmetric", "--reduce-range", "--task", "--model-id"),
    *("--overwrite", "-v", "-q"),
)


def asked(*arguments: str) -> Request:
    return request_of(
        "quantize", COMMANDS["quantize"].make_context("quantize", ["-m", "model.onnx", *arguments]).params
    )


def test_every_option_of_winml_cli_is_there() -> None:
    known = {name for parameter in COMMANDS["quantize"].params for name in parameter.opts}
    assert set(WINML_CLI) <= known


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ((), {}),
        (("--samples", "20"), {"samples": 20}),
        (("--method", "entropy"), {"calibration_method": "entropy"}),
        (
            ("--weight-type", "int8", "--activation-type", "uint16"),
            {"weight_type": "int8", "activation_type": "uint16"},
        ),
        (("--per-channel",), {"per_channel": True}),
        (("--no-per-channel",), {"per_channel": False}),
        (("--symmetric",), {"symmetric": True}),
        (("--reduce-range",), {"reduce_range": True}),
        (("--task", "fill-mask", "--model-id", "org/name"), {"task": "fill-mask", "model_id": "org/name"}),
        (("--dataset", "org/data"), {"dataset_name": "org/data"}),
        (
            ("--dataset", "org/data", "--dataset-subset", "en", "--dataset-split", "test"),
            {"dataset_name": "org/data", "dataset_subset": "en", "dataset_split": "test"},
        ),
        (("--seed", "3", "--distribution", "normal"), {"seed": 3, "distribution": "normal"}),
        (("--exclude-node", "a", "--exclude-node", "b*"), {"nodes_to_exclude": ["a", "b*"]}),
        (("--exclude-op-type", "Softmax"), {"op_types_to_exclude": ["Softmax"]}),
        (("-p", "int4", "-p", "fp16"), {"rtn_float_type": "float16"}),
    ],
)
def test_an_option_is_a_field_of_quant(arguments: tuple[str, ...], settings: dict[str, Any]) -> None:
    given = asked(*arguments).overrides.section("quant")
    assert given == settings
    assert Quant.model_validate(given) == Quant(**settings)


def test_paths_are_relative_to_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = asked(
        "-c", "elsewhere/recipe.json", "--calibration-data", "data.npz", "--load-calibration", "ranges.json"
    )
    assert request.overrides.section("quant") == {
        "calibration_data": str(tmp_path / "data.npz"),
        "calibration_load_path": str(tmp_path / "ranges.json"),
    }


def test_the_other_options() -> None:
    request = asked("-p", "w8a16", "--ep", "qnn", "-d", "npu", "--no-validate", "-o", "out.onnx", "-t", "fill-mask")
    overrides = request.overrides
    assert (overrides.precision, overrides.ep, overrides.device, overrides.validate) == ("w8a16", "qnn", "npu", False)
    assert (overrides.onnx, request.output_file, overrides.task) == (Path("model.onnx"), Path("out.onnx"), "fill-mask")
    assert asked().overrides.validate is None
    assert asked().output_file == Path("model_quantized.onnx")
    assert asked("--save-calibration", "ranges.json").save_ranges == Path("ranges.json")


def test_two_calls_that_ask_otherwise_are_never_taken_for_one() -> None:
    calls = [(), ("--samples", "3"), ("-p", "int4"), ("-p", "int4", "-p", "fp16"), ("-o", "a.onnx"), ("--no-validate",)]
    calls += [("--seed", "1"), ("--exclude-node", "1"), ("--save-calibration", "r.json"), ("-t", "fill-mask")]
    assert len({asked(*call).words for call in calls}) == len(calls)


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command in a separate folder, which it must leave unchanged, and returns its output."""
    monkeypatch.chdir(tmp_path)

    def refused(*arguments: str, code: int = 2) -> str:
        before = {path.name for path in tmp_path.iterdir()} - {"cache"}
        assert run(["quantize", *arguments, "--cache-dir", "cache"]) == code
        assert {path.name for path in tmp_path.iterdir()} - {"cache"} == before
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return said.err

    return refused


def _save(path: str, nodes: list[onnx.NodeProto], dtype: int = TensorProto.FLOAT, **constants: np.ndarray) -> None:
    value = helper.make_tensor_value_info("x", dtype, [4])
    result = helper.make_tensor_value_info("y", dtype, [4])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [value], [result], weights)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)


def test_a_qdq_model_is_refused(refused: Refused) -> None:
    scale, zero = np.float32(0.1), np.uint8(0)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    _save("m.onnx", nodes, s=np.array(scale), z=np.array(zero))
    assert "m.onnx is quantized already (QDQ). Use the float32 model." in refused("-m", "m.onnx")


def test_a_model_with_integer_operators_is_refused(refused: Refused) -> None:
    _save("m.onnx", [helper.make_node("QLinearAdd", ["x", "x"], ["y"], domain="com.microsoft")])
    assert "m.onnx is quantized already (QOperator)" in refused("-m", "m.onnx")


def test_a_compiled_model_is_refused_saying_what_it_is(refused: Refused) -> None:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1, ep_cache_context=b"binary", source="QNN"
    )
    _save("m.onnx", [node])
    message = refused("-m", "m.onnx")
    assert (
        "m.onnx is a compiled model: its EPContext nodes hold the binary of QNNExecutionProvider, which cannot be"
        " quantized" in message
    )
    assert "Use the ONNX model that it was compiled from." in message


def test_a_model_in_float16_is_refused(refused: Refused) -> None:
    _save("m.onnx", [helper.make_node("Relu", ["x"], ["y"])], TensorProto.FLOAT16)
    assert "m.onnx has tensors in float16, and only float32 can be quantized." in refused("-m", "m.onnx", "-p", "fp16")


def test_weights_that_are_integers_already_are_refused_but_for_float16(refused: Refused) -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=4, N=4, bits=4, block_size=16
    )
    _save("m.onnx", [node], b=np.zeros((4, 1, 8), np.uint8), s=np.ones(4, np.float32))
    for precision in ("int8", "int4", "dynamic"):
        assert "its weights are quantized already (MatMulNBits)" in refused("-m", "m.onnx", "-p", precision)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-m", "nope.onnx"), 3, "nope.onnx does not exist"),
        (("-m", "."), 2, "is a folder, and `quantize` takes an ONNX model. For a PyTorch model there is"),
        (("-m", "m.onnx", "-p", "fp32"), 2, "There is nothing to quantize: precision fp32 needs no quantization."),
        (("-m", "m.onnx", "-p", "auto"), 2, "nothing to quantize"),
        (("-m", "m.onnx", "-p", "int9"), 2, "'int9' is not a precision; did you mean"),
        (("-m", "m.onnx", "-p", "int8", "-p", "int4"), 2, "a model in int8 is quantized already"),
        (("-m", "m.onnx", "-o", "m.onnx"), 2, "m.onnx is the model that is read"),
        (("-m", "m.onnx", "-o", "./m.onnx", "--overwrite"), 2, "m.onnx is the model that is read"),
        (("-m", "m.onnx", "-o", "m.txt"), 2, "m.txt does not end with .onnx"),
        (("-m", "m.onnx", "-o", "a:b.onnx"), 2, "'a:b.onnx' is not a name of a file on every system"),
        (("-m", "m.onnx", "--calibration-data", "no.npz"), 3, "no.npz does not exist"),
        (("-m", "m.onnx", "-p", "int4", "--save-calibration", "r.json"), 2, "rtn needs no activation ranges"),
        (("-m", "m.onnx", "--sample", "3"), 2, "(Did you mean one of: '--samples', '--set'?)"),
        (("-m", "m.onnx", "--samples", "0"), 2, "0 is not in the range x>=1"),
        (("-m", "m.onnx", "--weight-type", "int3"), 2, "'int3' is not one of"),
        (("-m", "m.onnx", "--ep", "qmn"), 2, "There is no execution provider 'qmn'"),
        ((), 2, "Missing option '-m' / '--model'"),
        (("-m", ""), 2, "must not be empty"),
    ],
)  # fmt: skip
def test_mistakes_end_with_a_sentence(refused: Refused, arguments: tuple[str, ...], code: int, message: str) -> None:
    _save("m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], w=np.ones(4, np.float32))
    assert message in refused(*arguments, code=code)


@pytest.mark.parametrize("arguments", [("-p", "int8", "-p", "int4"), ("-p", "fp32"), ("-o", "m.onnx")])
def test_what_is_refused_is_one_json_object_too(
    refused: Refused, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    _save("m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], w=np.ones(4, np.float32))
    assert run(["quantize", "-m", "m.onnx", *arguments, "--format", "json", "--cache-dir", "cache"]) == 2
    value = json.loads(capsys.readouterr().out)
    assert value["success"] is False
    assert value["errors"] == [refused("-m", "m.onnx", *arguments).removeprefix("error: ").strip()]
