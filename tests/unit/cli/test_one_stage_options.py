"""The effect of each option of the single-stage commands, and what they reject before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_builds import save_model

from winml_dag.cli import cli
from winml_dag.cli.build import command as build_command
from winml_dag.cli.options import request_from
from winml_dag.cli.stages import COMMANDS, request_of
from winml_dag.pipeline.request import RemoteOptions, Request

# winml-cli's options, verbatim, as far as they apply here.
WINML_CLI = {
    "export": (
        *("-m", "--model", "-o", "--output", "-t", "--task", "--batch-size", "--dynamo", "--hierarchy", "-c"),
        *("--input-specs", "--dynamic-axes", "--export-config", "--trust-remote-code"),
    ),
    "optimize": (
        *("-m", "--model", "-o", "--output", "--ep", "-d", "-c", "-l", "--list-capabilities", "--enable-gelu-fusion"),
    ),
    "quantize": (
        *("-m", "--model", "-o", "--output", "-p", "--precision", "-c", "--config", "--samples", "--method"),
        *("--weight-type", "--activation-type", "--per-channel", "--symmetric", "--reduce-range", "--task"),
        *("--model-id", "--overwrite", "-v", "-q"),
    ),
    "compile": (
        *("-m", "--model", "-o", "--output", "--output-dir", "--ep", "-d", "--ep-options", "--validate", "--embed"),
        *("--compiler", "--qnn-sdk-root"),
    ),
}
ALIKE = ("-f", "--format", "--rebuild", "--overwrite", "--cache-dir", "-v", "-q")


def asked(name: str, *arguments: str) -> Request:
    return request_of(name, COMMANDS[name].make_context(name, [*arguments]).params)


@pytest.mark.parametrize("name", [*COMMANDS, "validate"])
def test_stage_commands_share_options_and_those_of_winml_cli(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {*ALIKE, *WINML_CLI.get(name, ())} <= known


@pytest.mark.parametrize(
    ("line", "section", "settings"),
    [
        ("export -m bert -o x.onnx", "export", {}),
        ("export -m bert -o x.onnx --batch-size 2 --no-dynamo --opset 20 --no-hierarchy", "export",
         {"batch_size": 2, "dynamo": False, "opset_version": 20, "enable_hierarchy_tags": False}),
        ("optimize -m m.onnx", "optim", {}),
        ("optimize -m m.onnx --enable gelu-fusion --disable layer_norm_fusion", "optim",
         {"gelu_fusion": True, "layer_norm_fusion": False}),
        ("optimize -m m.onnx --enable-gelu-fusion --disable-layer-norm-fusion", "optim",
         {"gelu_fusion": True, "layer_norm_fusion": False}),
        ("optimize -m m.onnx --min-cosine 0.5", "validate", {"min_cosine": 0.5}),
        ("compile -m m.onnx --min-cosine 0.5", "validate", {"min_cosine": 0.5}),
        ("compile -m m.onnx", "compile", {}),
        ("quantize -m m.onnx", "quant", {}),
        ("quantize -m m.onnx --samples 20 --method entropy", "quant",
         {"samples": 20, "calibration_method": "entropy"}),
        ("quantize -m m.onnx --weight-type int8 --activation-type uint16", "quant",
         {"weight_type": "int8", "activation_type": "uint16"}),
        ("quantize -m m.onnx --per-channel --symmetric --reduce-range", "quant",
         {"per_channel": True, "symmetric": True, "reduce_range": True}),
        ("quantize -m m.onnx --no-per-channel", "quant", {"per_channel": False}),
        ("quantize -m m.onnx --task fill-mask --model-id org/name", "quant",
         {"task": "fill-mask", "model_id": "org/name"}),
        ("quantize -m m.onnx --dataset org/data --dataset-subset en --dataset-split test", "quant",
         {"dataset_name": "org/data", "dataset_subset": "en", "dataset_split": "test"}),
        ("quantize -m m.onnx --seed 3 --distribution normal", "quant", {"seed": 3, "distribution": "normal"}),
        ("quantize -m m.onnx --exclude-node a --exclude-node b* --exclude-op-type Softmax", "quant",
         {"nodes_to_exclude": ["a", "b*"], "op_types_to_exclude": ["Softmax"]}),
        ("quantize -m m.onnx -p int4 -p fp16", "quant", {"rtn_float_type": "float16"}),
    ],
)  # fmt: skip
def test_option_sets_section_field(line: str, section: str, settings: dict[str, Any]) -> None:
    assert asked(*line.split()).overrides.section(section) == settings


def test_option_paths_are_relative_to_current_directory(folder: Path) -> None:
    paths = ("-c", "elsewhere/recipe.json", "--calibration-data", "data.npz", "--load-calibration", "ranges.json")
    assert asked("quantize", "-m", "m.onnx", *paths).overrides.section("quant") == {
        "calibration_data": str(folder / "data.npz"),
        "calibration_load_path": str(folder / "ranges.json"),
    }


def test_options_outside_sections_set_overrides() -> None:
    line = "quantize -m m.onnx -p w8a16 --ep qnn -d npu --no-validate -t fill-mask --save-calibration r.json"
    request = asked(*line.split())
    overrides = request.overrides
    assert (overrides.precision, overrides.ep, overrides.device, overrides.validate) == ("w8a16", "qnn", "npu", False)
    assert (overrides.onnx, overrides.task, request.save_ranges) == (Path("m.onnx"), "fill-mask", Path("r.json"))
    assert asked("quantize", "-m", "m.onnx").overrides.validate is None


def test_winml_cli_files_set_export_fields() -> None:
    files = {
        "inputs.json": {"ids": {"dtype": "int32", "shape": [1, "length"]}},
        "axes.json": {"logits": {"0": "batch"}},
        "export.json": {"opset_version": 17, "do_constant_folding": False, "dynamic_axes": {"never": {"0": "a"}}},
    }
    for name, value in files.items():
        Path(name).write_text(json.dumps(value), encoding="utf-8")
    options = ("--input-specs", "inputs.json", "--dynamic-axes", "axes.json", "--export-config", "export.json")
    request = asked("export", "-m", "bert", "-o", "x.onnx", *options, "--opset", "20")
    assert request.overrides.section("export") == {
        "opset_version": 20,
        "do_constant_folding": False,
        "dynamic_axes": {"logits": {"0": "batch"}},
        "input_tensors": [{"name": "ids", "dtype": "int32", "shape": [1, "length"]}],
    }


def test_compile_options_set_compile_fields() -> None:
    request = asked(
        *("compile", "-m", "m.onnx", "--ep-option", "vtcm_mb=4", "--ep-options", "rpc_control_latency=a=b", "--embed"),
        *("--compiler", "qairt", "--qnn-sdk-root", "sdk", "--soc-model", "60", "--htp-arch", "73"),
        *("--htp-optimization-level", "1", "--require-full-offload", "--no-validate", "-d", "qnn"),
    )
    assert request.overrides.section("compile") == {
        "provider_options": {"vtcm_mb": "4", "rpc_control_latency": "a=b"},
        "embed_context": True,
        "compiler": "qairt",
        "qnn_sdk_root": str(Path("sdk").absolute()),
        "soc_model": "60",
        "htp_arch": 73,
        "htp_optimization_level": 1,
        "require_full_offload": True,
    }
    assert (request.overrides.validate, request.overrides.device) == (False, "qnn")


def test_default_output_is_beside_model() -> None:
    model = ("-m", "in/m.onnx")
    assert asked("optimize", *model).output_file == Path("in/m_opt.onnx")
    assert asked("optimize", *model, "-o", "results").output_file == Path("results/m_opt.onnx")
    assert asked("calibrate", *model).output_file == Path("in/m_ranges.json")
    assert asked("quantize", *model).output_file == Path("in/m_quantized.onnx")
    assert asked("compile", *model).output_file == Path("in/m_compiled.onnx")
    assert asked("compile", *model, "--output-dir", "out").output_file == Path("out/m_compiled.onnx")
    assert asked("compile", *model, "-o", "x.onnx").output_file == Path("x.onnx")
    several = asked("compile", *model, "-m", "b.onnx", "--output-dir", "out")
    assert (several.output_file, several.also) == (Path("out/m_compiled.onnx"), (Path("b.onnx"),))


def test_different_calls_have_different_request_words() -> None:
    model = ("-m", "m.onnx")
    calls = [("optimize", *model), ("calibrate", *model), ("compile", *model), ("quantize", *model)]
    calls += [("optimize", *model, "-o", "m_ranges.json"), ("optimize", *model, "--enable", "gelu_fusion")]
    calls += [("compile", *model, "--embed"), ("compile", *model, "--ep-option", "a=b"), ("compile", *model, *model)]
    calls[-1] += ("--output-dir", ".")
    calls += [
        ("quantize", *model, *more.split())
        for more in ("--samples 3", "-p int4", "-p int4 -p fp16", "-o a.onnx", "--no-validate", "--seed 1",
                     "--exclude-node 1", "--save-calibration r.json", "-t fill-mask")
    ]  # fmt: skip
    assert len({asked(*call).words for call in calls}) == len(calls)


Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    """Models of every kind that a command may refuse, and a file that is none."""
    node = helper.make_node
    ours = "com.microsoft"
    one = numpy_helper.from_array(np.ones(4, np.float32), "w")
    scale, zero = numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.uint8(0), "z")
    blocks = numpy_helper.from_array(np.zeros((4, 1, 8), np.uint8), "b")
    save_model(folder / "m.onnx", node("Add", ["x", "w"], ["y"]), constants=(one,))
    save_model(folder / "c.onnx", node("EPContext", ["x"], ["y"], domain=ours, embed_mode=1, source="QNN"))
    save_model(folder / "q.onnx", node("QLinearAdd", ["x", "x"], ["y"], domain=ours))
    save_model(
        folder / "qdq.onnx",
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        constants=(scale, zero),
    )
    save_model(folder / "half.onnx", dtype=TensorProto.FLOAT16)
    matmul = node("MatMulNBits", ["x", "b", "w"], ["y"], domain=ours, K=4, N=4, bits=4, block_size=16)
    save_model(folder / "blocks.onnx", matmul, constants=(blocks, one))
    (folder / "theirs.onnx").write_bytes(b"mine")
    (folder / "bad.yaml").write_text("optimm: {}\n", encoding="utf-8")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}", encoding="utf-8")


@pytest.fixture
def refused(folder: Path, says) -> Refused:
    """Runs a command that must leave the folder unchanged, and returns its output."""

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def refused(*arguments: str, code: int = 2) -> str:
        before = contents()
        said = says(*arguments, code=code)
        assert contents() == before
        return said

    return refused


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("export -m m.onnx -o x.onnx", 2, "There is nothing to export: the model is ONNX already."),
        ("export -o x.onnx", 2, "No model is named. Give -m, or a recipe with -c."),
        ("export -m ./nope -o x.onnx", 3, "nope does not exist"),
        ("export -m . -o x.onnx", 3, "has no config.json, so it is not a model folder"),
        ("export -m adapter -o x.onnx", 3, "has only an adapter, without its base model"),
        ("export -m . -o x.bin", 2, "x.bin does not end with .onnx. Give -o a file such as result.onnx."),
        ("export -m . -o x.onnx --dynamic-axes no.json", 3, "--dynamic-axes: no.json cannot be read"),
        ("export -m . -o x.onnx --input-specs m.onnx", 3, "--input-specs: m.onnx is not JSON"),
        ("optimize", 2, "Missing option '-m' / '--model'."),
        ("optimize -m nope.onnx", 3, "nope.onnx does not exist"),
        ("optimize -m .", 2, ". is a folder, and `optimize` takes an ONNX model."),
        ("optimize -m theirs.onnx", 3, "theirs.onnx is not an ONNX model"),
        ("optimize -m m.onnx -o theirs.onnx", 2, "theirs.onnx is in the way"),
        ("optimize -m m.onnx -o m.onnx --overwrite", 2, "m.onnx is the model that is read"),
        ("optimize -m m.onnx -c bad.yaml", 2, "optimm"),
        ("optimize -m m.onnx --enable gelu_fusio", 2, "is not an optimization; did you mean 'gelu_fusion'?"),
        ("optimize -m m.onnx --enable gelu_fusion --disable gelu-fusion", 2, "gelu_fusion is enabled and disabled."),
        ("optimize -m q.onnx", 2, "q.onnx is quantized already (QOperator). Use the float32 model."),
        ("quantize -m qdq.onnx", 2, "qdq.onnx is quantized already (QDQ). Use the float32 model."),
        ("quantize -m q.onnx", 2, "q.onnx is quantized already (QOperator)"),
        ("quantize -m half.onnx -p fp16", 2, "has tensors in float16, and only float32 can be quantized."),
        *((f"quantize -m blocks.onnx -p {precision}", 2, "its weights are quantized already (MatMulNBits)")
          for precision in ("int8", "int4", "dynamic")),
        ("quantize -m nope.onnx", 3, "nope.onnx does not exist"),
        ("quantize -m .", 2, "is a folder, and `quantize` takes an ONNX model. For a PyTorch model there is"),
        ("quantize -m m.onnx -p fp32", 2, "There is nothing to quantize: precision fp32 needs no quantization."),
        ("quantize -m m.onnx -p auto", 2, "nothing to quantize"),
        ("quantize -m m.onnx -p int9", 2, "'int9' is not a precision; did you mean"),
        ("quantize -m m.onnx -p int8 -p int4", 2, "a model in int8 is quantized already"),
        ("quantize -m m.onnx -o ./m.onnx --overwrite", 2, "m.onnx is the model that is read"),
        ("quantize -m m.onnx -o a:b.onnx", 2, "'a:b.onnx' is not a name of a file on every system"),
        ("quantize -m m.onnx -p int4 --save-calibration r.json", 2, "rtn needs no activation ranges"),
        ("quantize -m m.onnx --sample 3", 2, "(Did you mean one of: '--samples', '--set'?)"),
        ("quantize -m m.onnx --samples 0", 2, "0 is not in the range x>=1"),
        ("quantize -m m.onnx --weight-type int3", 2, "'int3' is not one of"),
        ("quantize -m m.onnx --ep qmn", 2, "There is no execution provider 'qmn'"),
        ("quantize --model=", 2, "must not be empty"),
        ("calibrate -m q.onnx", 2, "quantized already"),
        ("calibrate -m m.onnx -o x.onnx", 2, "x.onnx does not end with .json"),
        ("calibrate -m m.onnx --calibration-data no.npz", 3, "no.npz does not exist"),
        ("compile -m m.onnx --embed", 2, "compile.embed_context is set, but there is nothing to compile for"
                                         " CPUExecutionProvider: it runs the ONNX model as it is."),
        ("compile -m m.onnx -m q.onnx -d dml --output-dir b", 2, "Models share a binary, and DmlExecutionProvider has"
                                                                " none: it runs the ONNX model as it is."),
        ("compile -m c.onnx -d qnn", 2, "which cannot be compiled again"),
        ("compile -m m.onnx -d qnn --ep-option vtcm", 2, "'vtcm' is not NAME=VALUE"),
        ("compile -m m.onnx -d qnn --ep-option a=1 --ep-option a=2", 2, "a is given twice"),
        ("compile -m m.onnx -o a.onnx --output-dir b", 2, "-o and --output-dir both name the output."),
        ("compile -m m.onnx -m q.onnx -d qnn", 2, "Several models need an output folder."),
        ("validate", 2, "No model is given."),
        ("validate nope.onnx", 3, "nope.onnx does not exist"),
        ("validate m.onnx --reference c.onnx", 2, "c.onnx is compiled, and the reference runs on the CPU."),
        ("validate m.onnx --reference nope.onnx", 3, "nope.onnx does not exist"),
        ("validate m.onnx --min-cosine 0.9", 2, "There is no model to compare m.onnx with"),
        ("validate m.onnx --reference q.onnx --no-reference", 2, "exclude each other"),
        ("validate m.onnx --reference m.onnx -p int9", 2, "'int9' is not a precision"),
        ("validate m.onnx --input-data no.npz", 3, "validate.input_data"),
        ("validate c.onnx --ep openvino", 2, "c.onnx is compiled"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_with_message(refused: Refused, arguments: str, code: int, message: str) -> None:
    assert message in refused(*arguments.split(), code=code)


def test_build_accepts_section_options(folder: Path) -> None:
    given = ("--ep-option", "vtcm_mb=4", "--no-embed", "--min-cosine", "0.5", "--input-data", "a.npz", "--no-validate")
    parameters = build_command.make_context("build", ["--onnx", "m.onnx", "-o", "out", *given]).params
    request = request_from(parameters, RemoteOptions())
    overrides = request.overrides
    assert overrides.section("compile") == {"provider_options": {"vtcm_mb": "4"}, "embed_context": False}
    assert overrides.section("validate") == {"min_cosine": 0.5, "input_data": str(folder / "a.npz")}
    assert overrides.validate is False


@pytest.mark.parametrize("recipe", ["validate: {enabled: false}", "compile: {validate: false}"])
def test_validate_option_overrides_recipe(folder: Path, recipe: str, tells) -> None:
    (folder / "off.yaml").write_text(recipe, encoding="utf-8")
    found = []
    for option in ([], ["--validate"]):
        stages = tells("plan", "--onnx", "m.onnx", "-c", "off.yaml", *option)["builds"][0]["stages"]
        found += [stage["status"] for stage in stages if stage["stage"] == "validate"]
    assert found == ["skipped", "ran"]
