"""Common mistakes: each gives its exit code and a sentence that names it, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx_samples import perceptron, save

from winml_dag.cli import run

QDQ = """m (float[1, 8] x) => (float[1, 8] y) <float scale = {0.1}, uint8 zero = {0}> {
    q = QuantizeLinear(x, scale, zero)
    y = DequantizeLinear(q, scale, zero)
}"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of which most cannot be built, and what is in the way of their output. Nothing writes to it."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("weightless", "inner", "theirs", "out"):
        (folder / name).mkdir()
    config = '{"model_type": "bert", "architectures": ["BertModel"]}'
    (folder / "weightless" / "config.json").write_text(config, encoding="utf-8")
    perceptron(folder / "model.onnx")
    perceptron(folder / "out" / "model.onnx")
    save(folder / "qdq.onnx", QDQ)
    (folder / "truncated.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-1000])
    for name, data in (("lost", "lost.data"), ("inner/outside", "../secret.data")):
        model = onnx.load(folder / "model.onnx")
        for tensor in model.graph.initializer:
            onnx.external_data_helper.set_external_data(tensor, data)
            tensor.ClearField("raw_data")
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / "secret.data").write_bytes(bytes(64 * 64 * 4))
    (folder / "theirs" / "model.onnx").write_text("mine", encoding="utf-8")
    (folder / "file").write_text("mine", encoding="utf-8")
    return folder


class Shell:
    """The command line in a folder of its own, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.cache = "cache"
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and the text on stderr."""
        self._capsys.readouterr()
        code = run([*arguments, "--cache-dir", self.cache])
        output = self._capsys.readouterr()
        assert "Traceback" not in output.err + output.out
        return code, output.err

    def by(self, commands: OneProcess, *arguments: str) -> tuple[int, str]:
        """Return the same from *commands*, which also run stages."""
        said = commands.run([*arguments, "--cache-dir", "cache"], self.folder, os.environ)
        assert "Traceback" not in said.messages + said.out
        return said.code, said.messages


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return Shell(tmp_path, capsys)


MODEL = "--onnx model.onnx -o new"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        # Models; tests/unit/cli/test_compiled_models.py has compiled ones
        ("build -m ./models/none -t fill-mask -o new", 3, ["models/none does not exist"]),
        ("build --onnx none.onnx -o new", 3, ["none.onnx"]),
        ("build -m someone/some-model -o new", 3, ["'someone/some-model'", "HF_HUB_OFFLINE"]),
        ("build -m weightless -o new", 3, ["no weights"]),
        ("build --onnx truncated.onnx -o new", 3, ["truncated.onnx"]),
        ("build --onnx lost.onnx -o new", 3, ["lost.data"]),
        ("build --onnx inner/outside.onnx -o new", 3, ["../secret.data"]),
        ("build --onnx qdq.onnx -o new --no-optimize -p w8a8", 2, ["'qdq.onnx'", "already quantized"]),
        # Options
        (f"build {MODEL} --precision w8a17", 2, ["w8a17", "w8a16"]),
        (f"build {MODEL} --ep qnnn", 2, ["qnnn", "qnn"]),
        (f"build {MODEL} --ep vitisai --compile --no-quant", 2, ["VitisAIExecutionProvider", "not installed"]),
        (f"build {MODEL} --ep dml --device npu", 2, ["npu"]),
        (f"build {MODEL} --bogus", 2, ["--bogus"]),
        (f"build {MODEL} --precision=", 2, ["--precision", "empty"]),
        (f"build {MODEL} --config=", 2, ["--config", "empty"]),
        (f"build {MODEL} --output-dir=", 2, ["--output-dir", "empty"]),
        ("build -c none.yaml -o new", 3, ["none.yaml"]),
        ("build --onnx model.onnx", 2, ["-o"]),
        (f"why quantise {MODEL}", 2, ["quantize"]),
        ("biuld", 2, ["'build'"]),
        # Output folders
        ("build --onnx model.onnx -o file", 1, ["file is a file"]),
        (f"build --onnx model.onnx -o {'x' * 5000}", 1, ["cannot be the output folder"]),
        ("build --onnx model.onnx -o theirs", 2, ["in the way"]),
        ("build --onnx out/model.onnx -o out --rebuild", 2, ["out"]),
    ],
)
def test_mistake_is_refused_and_changes_nothing(
    shell: Shell, inputs: Path, command: str, code: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    shell.cache = str(shell.folder / "cache")
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    found, said = shell(*command.split())
    assert found == code, said
    assert all(word in said.replace("\\", "/") for word in words), said
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before


RANDOM = {"model_type": "bert", "task": "text-classification"}
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("fields", "command", "code", "words"),
    [
        ({"quant": {"sampels": 3}}, "build", 2, ["recipe.yaml:", "quant.sampels", "samples"]),
        ({"quant": {"mode": "banana"}}, "build", 2, ["banana", "static"]),
        ({"quant": {"op_types": ["Conv"]}}, "build", 2, ["did you mean 'op_types_to_quantize'?"]),
        ({"optim": {"gelu_fusionn": True}}, "build", 2, ["gelu_fusionn", "gelu_fusion"]),
        (
            {"quant": {"sampels": 3, "mode": "banana"}, "loader": {"taks": "x"}},
            "build",
            2,
            ["quant.sampels", "banana", "loader.taks"],
        ),
        (
            {"quant": {}, "compile": {"quant_config": {}}},
            "build",
            2,
            ["recipe.yaml:", "compile.quant_config: there is a quant section as well; keep one of the two"],
        ),
        (
            {"ep": "qnn", "compile": {"provider_options": {"soc_mode": "60"}}},
            "build --onnx model.onnx",
            2,
            ["soc_mode", "soc_model"],
        ),
        (
            {"loader": {"user_script": "mine.py"}},
            "build --onnx model.onnx",
            2,
            ["loader.user_script", "ONNX already"],
        ),
        ({"loader": RANDOM, "export": None}, "plan --random-weights", 2, ["export is null", "random weights"]),
        # The model of the command line replaces the random weights of a recipe.
        ({"loader": {**RANDOM, "random_weights": {"config": TINY}}}, "plan -m ./none", 3, ["none does not exist"]),
    ],
)
def test_invalid_recipe_reports_all_problems(
    shell: Shell, fields: dict[str, Any], command: str, code: int, words: list[str]
) -> None:
    perceptron(shell.folder / "model.onnx")
    (shell.folder / "recipe.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    found, said = shell(*command.split(), "-c", "recipe.yaml", "-o", "out")
    assert found == code, said
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("graph", "precision", "told"),
    [
        (
            "y = Relu(x) y = Abs(x)",
            "w8a8",
            "optimize.0 failed: onnxruntime cannot load the model: Duplicate definition of",
        ),
        ("y = Softmax<axis = 7>(x)", "fp32", "Softmax node without a name: 'axis' must be in [-2 , 1]"),
        ("y = other.Thing(x)", "fp32", "without libraries of further operators"),
        (
            "s = Shape(x) i = Gather(s, nine) y = Reshape(x, i)",
            "w8a8",
            "idx=9 must be within the inclusive range [-2,1]",
        ),
        ("y = Add(x, odd)", "w8a8", "Incompatible dimensions"),
        (
            "a = Flatten<axis = 0>(x) b = Cast<to = 8>(a)"
            ' c = StringNormalizer<locale = "xx_XX", case_change_action = "LOWER">(b) y = Cast<to = 1>(c)',
            "fp32",
            "this machine does not have the locale 'xx_XX' of its StringNormalizer. Install it",
        ),
    ],
    ids=["names", "axis", "domain", "index", "shapes", "locale"],
)
def test_library_error_becomes_one_sentence(
    shell: Shell, commands: OneProcess, graph: str, precision: str, told: str
) -> None:
    constants = "<int64[1] nine = {9}, float[3] odd = {1.0, 2.0, 3.0}>"
    text = f"""<ir_version: 8, opset_import: ["" : 17, "other" : 1]> g (float[4, 8] x) => (float[4, 8] y)
        {constants} {{ {graph} }}"""
    save(Path("model.onnx"), text)
    code, said = shell.by(commands, "build", "--onnx", "model.onnx", "-p", precision, "-o", "out")
    assert code == 1
    assert told in said
    raw = ("ONNXRuntimeError", "onnxruntime_src", "::", ".cc:", ".h:", "Error", "Status Message", "<class", "  | ")
    assert not [part for part in raw if part in said], said


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_unsupported_opset_is_refused_with_minimum_opset(shell: Shell, commands: OneProcess, precision: str) -> None:
    save(
        Path("model.onnx"),
        '<ir_version: 4, opset_import: ["" : 6]> g (float[3, 4] x) => (float[3, 4] y) <float[3] f = {2.0, 3.0, 4.0}>'
        " { y = Mul<broadcast = 1, axis = 0>(x, f) }",
    )
    code, said = shell.by(commands, "build", "--onnx", "model.onnx", "-p", precision, "-o", "out")
    assert code == 1
    assert "Could not find an implementation for Mul(6)" in said
    assert "Export it in opset 17 or later: onnxruntime runs models from opset 7 on" in said


def test_declined_clear_removes_nothing_and_empty_cache_dir_is_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    assert run(["cache", "clear", "--cache-dir", str(shell.folder / "cache")]) == 0
    output = capsys.readouterr()
    assert "Nothing was removed" in output.out
    assert "Interrupted" not in output.err
    assert run(["cache", "info", "--cache-dir", ""]) == 2
    monkeypatch.setattr(sys, "stdin", StringIO())
    assert run(["cache", "clear", "--cache-dir", str(shell.folder / "cache")]) == 2
    assert "nothing was removed. Give -y" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["cache", "cache/blobs/out", "x/../cache/out"])
def test_output_folder_inside_cache_is_refused(folder: str, shell: Shell) -> None:
    perceptron(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", folder)
    assert code == 2
    assert f"{Path(folder)} is in the cache folder." in said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes among its files")
def test_named_pipe_as_model_is_refused(shell: Shell) -> None:
    os.mkfifo(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 3
    assert "model.onnx cannot be read: it is not a regular file." in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that are not text")
@pytest.mark.parametrize("place", ["cache", "model", "output"])
def test_non_utf_8_path_is_refused(place: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / b"odd\xff".decode(errors="surrogateescape")
    odd.mkdir()
    model = perceptron((odd if place == "model" else tmp_path) / "model.onnx")
    if place == "cache":  # it is in the current folder
        monkeypatch.chdir(odd)
    output = (odd if place == "output" else tmp_path) / "out"
    code, said = shell("build", "--onnx", str(model), "-o", str(output))
    assert code == 2
    assert "A path contains 'odd\\udcff', which is not valid UTF-8." in said


def test_closed_or_full_stdout_is_handled(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    touch = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').close()", "{outputs.made}"]
    stage = {"command": touch, "outputs": {"made": "made"}}
    Path("recipe.yaml").write_text(yaml.safe_dump({"stages": {"make": stage}}), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["build", "-c", "recipe.yaml", "--cache-dir", "cache"]) == 0
    assert Path("made").is_file()
    if not Path("/dev/full").exists():
        return
    full = open("/dev/full", "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closing it fails as well
    monkeypatch.setattr(sys, "stdout", full)
    code, said = shell("plan", "-c", "recipe.yaml")
    with suppress(OSError):
        full.close()
    assert code == 1
    assert "No space left" in said


BIG = ("build", "--onnx", "big.onnx", "--no-validate", "-o")


@pytest.mark.slow
def test_full_disk_of_output_or_cache_is_reported(
    shell: Shell, commands: OneProcess, small_disk: Callable[[str], Path]
) -> None:
    perceptron(shell.folder / "big.onnx", width=512)
    out = small_disk("1500k") / "out"
    code, said = shell.by(commands, *BIG, str(out))
    assert code == 1
    assert f"The output folder {out} cannot be written: No space left" in said
    assert not out.exists() or list(out.iterdir()) == []
    # With enough space nothing has to run again: the results are in the cache.
    assert shell.by(commands, *BIG, "roomy")[0] == 0
    assert (shell.folder / "roomy" / "model.onnx").exists()

    shutil.rmtree(shell.folder / "cache")
    disk = small_disk("1200k")
    (shell.folder / "cache").symlink_to(disk)
    code, said = shell(*BIG, "out")
    assert code == 1
    assert "is full" in said
    (shell.folder / "cache").unlink()
    shutil.copytree(disk, shell.folder / "cache", ignore=shutil.ignore_patterns("locks"))
    assert shell("cache", "verify")[0] == 0
    assert shell.by(commands, *BIG, "out")[0] == 0


def test_unencodable_output_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    perceptron(shell.folder / "模.onnx")
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), encoding="cp1252", write_through=True))
    code, said = shell("build", "--onnx", "模.onnx", "-o", "模", "--final-only", "--no-validate")
    assert code == 2
    assert "The encoding of the output has no '\\u6a21'. Set PYTHONIOENCODING=utf-8." in said
