"""The compiler qairt, with an SDK whose tools are scripts: they record their calls and return prepared results.

The second one returns a real context binary of the same model, so that everything downstream is real too.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from ep_stage_runs import Models, compiled, make_models, requires_qnn

from winml_dag.cli import run
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.qairt import find_sdk, host_name, library

pytestmark = [requires_qnn, pytest.mark.skipif(sys.platform == "win32", reason="the tools here are scripts")]

_TOOL = """#!{python}
import json, os, shutil, sys
from pathlib import Path
root = Path(os.environ["QNN_SDK_ROOT"])
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
call = {{"tool": Path(__file__).name, "arguments": sys.argv[1:], "libraries": os.environ["LD_LIBRARY_PATH"]}}
if (config := arguments.get("--config_file")) is not None:
    backend = json.loads(Path(config).read_text())["backend_extensions"]
    call |= {{"backend": backend, "htp": json.loads(Path(backend["config_file_path"]).read_text())}}
with (root / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps(call) + chr(10))
if (root / "fails").exists():
    print("INFO: reading the model")
    print("ERROR: Op Gather is of no use")
    sys.exit(3)
{work}
"""
_CONVERT = 'shutil.copy(arguments["--input_network"], arguments["--output_path"])'
_GENERATE = """folder = Path(arguments["--output_dir"])
folder.mkdir()
shutil.copy(root / "answer.bin", folder / (arguments["--binary_file"] + ".bin"))"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def answer(models, tmp_path_factory) -> bytes:
    """A context binary of w8a16 with float inputs and outputs, as the SDK makes it."""
    given = {"offload_graph_io_quantization": "0"}
    options = complete_options(resolve_target("qnn", "npu"), given)
    return compiled(tmp_path_factory.mktemp("answer"), models.w8a16, options).files()["compiled_qnn.bin"]


@pytest.fixture
def sdk(answer, tmp_path) -> Path:
    root = tmp_path / "qairt" / "2.39.0"
    programs, libraries = root / "bin" / host_name(), root / "lib" / host_name()
    programs.mkdir(parents=True)
    libraries.mkdir(parents=True)
    for name, work in (("qairt-converter", _CONVERT), ("qnn-context-binary-generator", _GENERATE)):
        tool = programs / name
        tool.write_text(_TOOL.format(python=sys.executable, work=work), encoding="utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    for name in ("QnnHtp", "QnnHtpNetRunExtensions", "QnnModelDlc"):
        (libraries / library(name)).write_bytes(name.encode())
    (root / "answer.bin").write_bytes(answer)
    (root / "sdk.yaml").write_text("name: qairt\nversion: 2.39.0.250926\n", encoding="utf-8")
    return root


def test_qairt_tools_are_run_and_their_output_is_loadable(models, sdk, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)

    def compile_(sdk: Path, code: int = 0) -> dict[str, Any]:
        arguments = ["compile", "-m", str(models.w8a16), "-o", "out.onnx", "--ep", "qnn", "--compiler", "qairt"]
        arguments += ["--soc-model", "57", "--htp-optimization-level", "1", "--qnn-sdk-root", str(sdk)]
        assert run([*arguments, "--cache-dir", "cache", "--format", "json"]) == code
        return json.loads(capsys.readouterr().out)

    def ran(value: dict[str, Any]) -> list[str]:
        return [stage["id"] for stage in value["stages"] if stage["status"] == "ran"]

    (sdk / "fails").touch()
    failed = json.dumps(compile_(sdk, code=1))
    assert "qairt-converter ended with exit code 3: ERROR: Op Gather is of no use" in failed
    assert not (tmp_path / "out.onnx").exists()
    (sdk / "fails").unlink()
    (sdk / "calls.jsonl").unlink()

    value = compile_(sdk)
    converted, generated = map(json.loads, (sdk / "calls.jsonl").read_text().splitlines())
    assert converted["tool"] == "qairt-converter"
    assert converted["arguments"] == [
        *("--input_network", "model.onnx", "--output_path", "model.dlc", "--target_backend", "HTP"),
        *("--float_bitwidth", "16", "--preserve_io_datatype"),
    ]
    libraries = sdk / "lib" / host_name()
    assert generated["arguments"] == [
        *("--backend", str(libraries / library("QnnHtp")), "--model", str(libraries / library("QnnModelDlc"))),
        *("--dlc_path", "model.dlc", "--config_file", "backend.json"),
        *("--binary_file", "compiled_qnn", "--output_dir", "context"),
    ]
    assert generated["libraries"].split(os.pathsep)[0] == str(libraries)
    assert generated["backend"]["shared_library_path"] == str(libraries / library("QnnHtpNetRunExtensions"))
    assert generated["htp"] == {
        "graphs": [{"graph_names": ["model"], "O": 1, "fp16_relaxed_precision": 1}],
        "devices": [{"soc_model": 57, "dsp_arch": "v75"}],
    }
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.onnx", "out_qnn.bin"]
    # Compared with its source model, on QNN's emulator.
    assert ran(value) == ["compile", "validate", "finalize"]
    metrics = value["stages"][0]["metrics"]
    assert (metrics["ep_context_partitions"], metrics["cpu_nodes"]) == (1, [])
    assert metrics["ep_sdk_version"] == "2.39.0.250926"

    # A moved SDK is the same; another tool changes the key.
    moved = sdk.rename(sdk.with_name("moved"))
    assert ran(compile_(moved)) == []
    tool = moved / "bin" / host_name() / "qairt-converter"
    tool.write_text(tool.read_text() + "# mended\n", encoding="utf-8")
    again = compile_(moved)
    assert "compile" in ran(again)
    assert "QAIRT SDK qairt-converter" in again["stages"][0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--qnn-sdk-root) does not say where it is"),
        (("--qnn-sdk-root", "none"), "there is no folder"),
        (("--qnn-sdk-root", "{sdk}/bin"), "is no QAIRT SDK for"),
        (("--qnn-sdk-root", "{sdk}", "--ep-option", "num_graph_prepare_threads=2"), "'num_graph_prepare_threads'"),
        (("--qnn-sdk-root", "{sdk}", "--device", "gpu"), "on the npu, not for"),
    ],
)
def test_invalid_setup_is_refused_before_tools_run(models, sdk, tmp_path, capsys, arguments, words) -> None:
    given = [argument.format(sdk=sdk) for argument in arguments]
    model = shutil.copy(models.w8a16, tmp_path / "m.onnx")
    arguments = ["compile", "-m", str(model), "--ep", "qnn", "--compiler", "qairt", *given]
    code = run([*arguments, "--cache-dir", str(tmp_path / "cache")])
    assert code in (2, 3)
    assert words in capsys.readouterr().err
    assert not (sdk / "calls.jsonl").exists()


def test_sdk_python_is_found_in_its_folder(sdk) -> None:
    assert find_sdk(sdk).python is None
    (sdk / "venv" / "bin").mkdir(parents=True)
    (sdk / "venv" / "bin" / "python").touch()
    (sdk / "venv" / "lib" / "python3.10" / "site-packages").mkdir(parents=True)
    found = find_sdk(sdk)
    assert found.python == sdk / "venv" / "bin" / "python"
    assert found.site_packages == (sdk / "venv" / "lib" / "python3.10" / "site-packages",)
    (sdk / "sdk.yaml").unlink()
    assert find_sdk(sdk).version == "2.39.0"
