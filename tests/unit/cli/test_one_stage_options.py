"""The effect of each option of the single-stage commands, and what they reject before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.cli import cli, run
from winml_dag.cli.build import command as build_command
from winml_dag.cli.options import request_from
from winml_dag.cli.stages import COMMANDS, request_of
from winml_dag.pipeline.request import Request

# winml-cli's options, verbatim, as far as they apply here.
WINML_CLI = {
    "export": (
        *("-m", "--model", "-o", "--output", "-t", "--task", "--batch-size", "--dynamo", "--hierarchy", "-c"),
        *("--input-specs", "--dynamic-axes", "--export-config", "--trust-remote-code"),
    ),
    "optimize": (
        "-m",
        "--model",
        "-o",
        "--output",
        "--ep",
        "-d",
        "-c",
        "-l",
        "--list-capabilities",
        "--enable-gelu-fusion",
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
def test_options_are_alike_and_those_of_winml_cli_are_there(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {*ALIKE, *WINML_CLI.get(name, ())} <= known


@pytest.mark.parametrize(
    ("arguments", "section", "settings"),
    [
        (("export", "-m", "bert"), "export", {}),
        (
            ("export", "-m", "bert", "--batch-size", "2", "--no-dynamo", "--opset", "20", "--no-hierarchy"),
            "export",
            {"batch_size": 2, "dynamo": False, "opset_version": 20, "enable_hierarchy_tags": False},
        ),
        (("optimize", "-m", "m.onnx"), "optim", {}),
        (
            ("optimize", "-m", "m.onnx", "--enable", "gelu-fusion", "--disable", "layer_norm_fusion"),
            "optim",
            {"gelu_fusion": True, "layer_norm_fusion": False},
        ),
        (
            ("optimize", "-m", "m.onnx", "--enable-gelu-fusion", "--disable-layer-norm-fusion"),
            "optim",
            {"gelu_fusion": True, "layer_norm_fusion": False},
        ),
        (("optimize", "-m", "m.onnx", "--min-cosine", "0.5"), "validate", {"min_cosine": 0.5}),
        (("compile", "-m", "m.onnx", "--min-cosine", "0.5"), "validate", {"min_cosine": 0.5}),
    ],
)
def test_an_option_is_a_field_of_a_section(arguments: tuple[str, ...], section: str, settings: dict[str, Any]) -> None:
    output = ("-o", "x.onnx") if arguments[0] == "export" else ()
    assert asked(*arguments, *output).overrides.section(section) == settings


def test_files_of_winml_cli_are_fields_of_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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


def test_options_of_a_compilation_are_fields_of_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked("compile", "-m", "m.onnx").overrides.section("compile") == {}
    request = asked(
        *("compile", "-m", "m.onnx", "--ep-option", "vtcm_mb=4", "--ep-options", "rpc_control_latency=a=b", "--embed"),
        *("--compiler", "qairt", "--qnn-sdk-root", "sdk", "--soc-model", "60", "--htp-arch", "73"),
        *("--htp-optimization-level", "1", "--require-full-offload", "--no-validate", "-d", "qnn"),
    )
    assert request.overrides.section("compile") == {
        "provider_options": {"vtcm_mb": "4", "rpc_control_latency": "a=b"},
        "embed_context": True,
        "compiler": "qairt",
        "qnn_sdk_root": str(tmp_path / "sdk"),
        "soc_model": "60",
        "htp_arch": 73,
        "htp_optimization_level": 1,
        "require_full_offload": True,
    }
    assert (request.overrides.validate, request.overrides.device) == (False, "qnn")


def test_results_lie_beside_the_model_or_where_the_user_says() -> None:
    model = ("-m", "in/m.onnx")
    assert asked("optimize", *model).output_file == Path("in/m_opt.onnx")
    assert asked("calibrate", *model).output_file == Path("in/m_ranges.json")
    assert asked("compile", *model).output_file == Path("in/m_compiled.onnx")
    assert asked("compile", *model, "--output-dir", "out").output_file == Path("out/m_compiled.onnx")
    assert asked("compile", *model, "-o", "x.onnx").output_file == Path("x.onnx")
    several = asked("compile", *model, "-m", "b.onnx", "--output-dir", "out")
    assert (several.output_file, several.also) == (Path("out/m_compiled.onnx"), (Path("b.onnx"),))


def test_two_calls_that_ask_otherwise_are_never_taken_for_one() -> None:
    model = ("-m", "m.onnx")
    calls = [("optimize", *model), ("calibrate", *model), ("compile", *model), ("quantize", *model)]
    calls += [("optimize", *model, "-o", "m_ranges.json"), ("optimize", *model, "--enable", "gelu_fusion")]
    calls += [("compile", *model, "--embed"), ("compile", *model, "--ep-option", "a=b"), ("compile", *model, *model)]
    calls[-1] += ("--output-dir", ".")
    assert len({asked(*call).words for call in calls}) == len(calls)


Refused = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a float model, a compiled one, a quantized one, and a file that is not a model."""
    monkeypatch.chdir(tmp_path)
    _save("m.onnx", helper.make_node("Add", ["x", "w"], ["y"]))
    _save("c.onnx", helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1, source="QNN"))
    _save("q.onnx", helper.make_node("QLinearAdd", ["x", "x"], ["y"], domain="com.microsoft"))
    (tmp_path / "theirs.onnx").write_bytes(b"mine")
    (tmp_path / "bad.yaml").write_text("optimm: {}\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must leave the folder unchanged, and returns its output."""

    def refused(*arguments: str, code: int = 2) -> str:
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        assert run([*arguments, "--cache-dir", "cache"]) == code
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return said.err

    return refused


def _save(path: str, node: onnx.NodeProto) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")]
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [value], [result], weights)
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("export -m m.onnx -o x.onnx", 2, "There is nothing to export: the model is ONNX already."),
        ("export -o x.onnx", 2, "No model is named. Give -m, or a recipe with -c."),
        ("export -m ./nope -o x.onnx", 3, "nope does not exist"),
        ("export -m . -o x.onnx", 3, "has no config.json, so it is not a model folder"),
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
        ("optimize -m c.onnx", 2, "c.onnx is a compiled model: its EPContext nodes hold the binary of"
                                  " QNNExecutionProvider, which cannot be optimized. Use the ONNX model"
                                  " that it was compiled from."),
        ("optimize -m q.onnx", 2, "q.onnx is quantized already (QOperator). Use the float32 model."),
        ("calibrate -m c.onnx", 2, "which cannot be calibrated"),
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
def test_mistakes_end_with_a_sentence(refused: Refused, arguments: str, code: int, message: str) -> None:
    assert message in refused(*arguments.split(), code=code)


def test_a_build_takes_settings_of_sections_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--ep-option", "vtcm_mb=4", "--no-embed", "--min-cosine", "0.5", "--input-data", "a.npz", "--no-validate")
    parameters = build_command.make_context("build", ["--onnx", "m.onnx", "-o", "out", *given]).params
    request, _ = request_from({**parameters, "recipe": None})
    overrides = request.overrides
    assert overrides.section("compile") == {"provider_options": {"vtcm_mb": "4"}, "embed_context": False}
    assert overrides.section("validate") == {"min_cosine": 0.5, "input_data": str(tmp_path / "a.npz")}
    assert overrides.validate is False


@pytest.mark.parametrize("recipe", ["validate: {enabled: false}", "compile: {validate: false}"])
def test_validate_is_wanted_whatever_the_recipe_says(
    folder: Path, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    (folder / "off.yaml").write_text(recipe, encoding="utf-8")
    found = []
    for option in ([], ["--validate"]):
        assert run(["plan", "--onnx", "m.onnx", "-c", "off.yaml", "-f", "json", "--cache-dir", "cache", *option]) == 0
        stages = json.loads(capsys.readouterr().out)["builds"][0]["stages"]
        found += [stage["status"] for stage in stages if stage["stage"] == "validate"]
    assert found == ["skipped", "ran"]
