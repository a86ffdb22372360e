"""Common mistakes: each gives its exit code and a sentence that names it, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from oneprocess import OneProcess
from onnx import TensorProto, helper, numpy_helper

from winml_dag.cli import run


class Shell:
    """The command line in a separate folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and the text on stderr."""
        self._capsys.readouterr()
        code = run([*arguments, "--cache-dir", "cache"])
        output = self._capsys.readouterr()
        assert "Traceback" not in output.err + output.out
        return code, output.err

    def by(self, commands: OneProcess, *arguments: str) -> tuple[int, str]:
        """Return the same from *commands*, which also run stages."""
        said = commands.run([*arguments, "--cache-dir", "cache"], self.folder, os.environ)
        assert "Traceback" not in said.messages + said.out
        return said.code, said.messages

    def recipe(self, **fields: object) -> str:
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
        return "recipe.yaml"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return Shell(tmp_path, capsys)


def float_model(path: Path, *, external: bool = False) -> Path:
    """Save y = x W + b, with weights large enough to be stored externally."""
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32), "weight")
    bias = numpy_helper.from_array(np.ones(64, np.float32), "bias")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["xw"]), helper.make_node("Add", ["xw", "bias"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [weight, bias],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    if external:
        onnx.save_model(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save_model(model, path)
    return path


def qdq_model(path: Path) -> Path:
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    zero = numpy_helper.from_array(np.array(0, np.uint8), "zero")
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        ],
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [scale, zero],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def compiled_model(path: Path) -> Path:
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", ep_cache_context=b"binary", embed_mode=1, source="QNN"
    )
    graph = helper.make_graph(
        [node],
        "compiled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_a_missing_model_folder(shell: Shell) -> None:
    code, said = shell("build", "-m", "./models/none", "-t", "fill-mask", "-o", "out")
    assert code == 3
    assert "models/none does not exist" in said.replace("\\", "/")


def test_a_missing_onnx_file(shell: Shell) -> None:
    code, said = shell("build", "--onnx", "none.onnx", "-o", "out")
    assert code == 3
    assert "none.onnx" in said


def test_a_hub_id_that_is_not_in_the_local_cache_without_network(shell: Shell) -> None:
    code, said = shell("build", "-m", "someone/some-model", "-o", "out")
    assert code == 3
    assert "'someone/some-model'" in said
    assert "HF_HUB_OFFLINE" in said


def test_a_folder_without_weights(shell: Shell) -> None:
    folder = shell.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}', encoding="utf-8")
    code, said = shell("build", "-m", "model", "-o", "out")
    assert code == 3
    assert "no weights" in said


def test_a_truncated_model(shell: Shell) -> None:
    path = float_model(shell.folder / "model.onnx")
    path.write_bytes(path.read_bytes()[:-1000])
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 3
    assert "model.onnx" in said


@pytest.mark.parametrize(
    ("graph", "precision", "told"),
    [
        (
            "y = Relu(x) y = Abs(x)",
            "w8a8",
            "optimize.0 failed: onnxruntime cannot load the model: Duplicate definition of",
        ),
        ("y = Softmax<axis = 7>(x)", "fp32", "Softmax node without a name: 'axis' must be in [-2 , 1]"),
        ("y = other.Thing(x)", "fp32", "other:Thing(-1) is not a registered function/op"),
        (
            "s = Shape(x) i = Gather(s, nine) y = Reshape(x, i)",
            "w8a8",
            "idx=9 must be within the inclusive range [-2,1]",
        ),
        ("y = Add(x, odd)", "w8a8", "Incompatible dimensions"),
    ],
    ids=["names", "axis", "domain", "index", "shapes"],
)
def test_what_a_library_says_of_a_model_is_told_as_a_sentence(
    shell: Shell, commands: OneProcess | None, graph: str, precision: str, told: str
) -> None:
    constants = "<int64[1] nine = {9}, float[3] odd = {1.0, 2.0, 3.0}>"
    text = f"""<ir_version: 8, opset_import: ["" : 17, "other" : 1]> g (float[4, 8] x) => (float[4, 8] y)
        {constants} {{ {graph} }}"""
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    build = ("build", "--onnx", "model.onnx", "-p", precision, "-o", "out")
    code, said = shell(*build) if commands is None else shell.by(commands, *build)
    assert code == 1
    assert told in said
    for raw in (
        "ONNXRuntimeError",
        "onnxruntime_src",
        "::",
        ".cc:",
        ".h:",
        "Error",
        "Status Message",
        "<class",
        "  | ",
    ):
        assert raw not in said, said


def test_missing_external_data(shell: Shell) -> None:
    float_model(shell.folder / "model.onnx", external=True)
    (shell.folder / "model.onnx.data").unlink()
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 3
    assert "model.onnx.data" in said


def test_external_data_outside_of_the_models_folder(shell: Shell) -> None:
    (shell.folder / "inner").mkdir()
    path = float_model(shell.folder / "inner" / "model.onnx", external=True)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret.data"
    path.write_bytes(model.SerializeToString())
    (shell.folder / "secret.data").write_bytes(bytes(64 * 65 * 4))
    code, said = shell("build", "--onnx", "inner/model.onnx", "-o", "out")
    assert code == 3
    assert "../secret.data" in said


@pytest.mark.parametrize(
    ("arguments", "done"),
    [
        ((), "optimized"),
        (("--no-optimize", "--precision", "w8a8"), "quantized"),
        (("--no-optimize", "--precision", "fp16"), "quantized"),
        (("--no-optimize", "--no-quant", "--compile", "--ep", "qnn"), "compiled again"),
    ],
)
def test_a_compiled_model_is_refused_by_every_stage_that_would_change_it(
    shell: Shell, arguments: tuple[str, ...], done: str
) -> None:
    compiled_model(shell.folder / "compiled.onnx")
    code, said = shell("build", "--onnx", "compiled.onnx", "-o", "out", *arguments)
    assert code == 2
    assert f"EPContext nodes hold the binary of QNNExecutionProvider, which cannot be {done}." in said
    assert "that it was compiled from" in said


@pytest.mark.parametrize("arguments", [("--precision", "w8a8"), ("--quant",)])
def test_a_quantized_model_is_not_quantized_again(shell: Shell, arguments: tuple[str, ...]) -> None:
    qdq_model(shell.folder / "qdq.onnx")
    code, said = shell("build", "--onnx", "qdq.onnx", "-o", "out", "--no-optimize", *arguments)
    assert code == 2
    assert "'qdq.onnx'" in said
    assert "already quantized" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--precision", "w8a17"), ("w8a17", "w8a16")),
        (("--ep", "qnnn"), ("qnnn", "qnn")),
        (("--ep", "vitisai", "--compile", "--no-quant"), ("VitisAIExecutionProvider", "not installed")),
        (("--ep", "dml", "--device", "npu"), ("npu",)),
        (("--bogus",), ("--bogus",)),
        (("-p", ""), ("--precision", "empty")),
        (("-c", ""), ("--config", "empty")),
        (("-o", ""), ("--output-dir", "empty")),
    ],
)
def test_options_that_cannot_be(shell: Shell, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    float_model(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out", *arguments)
    assert code == 2
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"quant": {"sampels": 3}}, ("recipe.yaml:", "quant.sampels", "samples")),
        ({"quant": {"mode": "banana"}}, ("banana", "static")),
        ({"ep": "qnn", "compile": {"provider_options": {"soc_mode": "60"}}}, ("soc_mode", "soc_model")),
        (
            {"quant": {}, "compile": {"quant_config": {}}},
            ("recipe.yaml:", "compile.quant_config: there is a quant section as well; keep one of the two"),
        ),
        ({"optim": {"gelu_fusionn": True}}, ("gelu_fusionn", "gelu_fusion")),
        ({"loader": {"user_script": "mine.py"}}, ("loader.user_script", "ONNX already")),
    ],
)
def test_recipes_that_cannot_be(shell: Shell, fields: dict[str, object], words: tuple[str, ...]) -> None:
    float_model(shell.folder / "model.onnx")
    code, said = shell("build", "-c", shell.recipe(**fields), "--onnx", "model.onnx", "-o", "out")
    assert code == 2
    for word in words:
        assert word in said


def test_random_weights_are_for_a_model_that_is_exported(shell: Shell) -> None:
    recipe = shell.recipe(loader={"task": "text-classification", "model_type": "bert"}, export=None)
    code, said = shell("plan", "-c", recipe, "--random-weights", "-o", "out")
    assert code == 2
    assert "export is null" in said
    assert "random weights" in said


def test_every_mistake_in_a_recipe_is_told_at_once(shell: Shell) -> None:
    recipe = shell.recipe(quant={"sampels": 3, "mode": "banana"}, loader={"taks": "x"})
    code, said = shell("build", "-c", recipe, "-o", "out")
    assert code == 2
    assert {"quant.sampels", "banana", "loader.taks"} <= {word.strip("':;") for word in said.split()}


def test_a_missing_recipe_and_a_missing_output_folder(shell: Shell) -> None:
    assert shell("build", "-c", "none.yaml", "-o", "out")[0] == 3
    float_model(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx")
    assert code == 2
    assert "-o" in said


def test_an_unknown_stage_and_an_unknown_command(shell: Shell) -> None:
    float_model(shell.folder / "model.onnx")
    code, said = shell("why", "quantise", "--onnx", "model.onnx", "-o", "out")
    assert code == 2
    assert "quantize" in said
    code, said = shell("biuld")
    assert code == 2
    assert "'build'" in said


def test_a_cache_that_is_not_to_be_cleared_after_all(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("n\n"))
    assert run(["cache", "clear", "--cache-dir", str(shell.folder / "cache")]) == 0
    output = capsys.readouterr()
    assert "Nothing was removed" in output.out
    assert "Interrupted" not in output.err


def test_a_cache_folder_without_a_name() -> None:
    assert run(["cache", "info", "--cache-dir", ""]) == 2


def test_an_output_folder_that_is_a_file(shell: Shell) -> None:
    float_model(shell.folder / "model.onnx")
    (shell.folder / "out").write_text("mine", encoding="utf-8")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 1
    assert "out is a file" in said
    assert (shell.folder / "out").read_text(encoding="utf-8") == "mine"


def test_an_output_folder_with_a_name_that_no_folder_can_have(shell: Shell) -> None:
    float_model(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "x" * 5000)
    assert code == 1
    assert "cannot be the output folder" in said


@pytest.mark.parametrize("folder", ["cache", "cache/blobs/out", "x/../cache/out"])
def test_an_output_folder_in_the_cache(folder: str, shell: Shell) -> None:
    float_model(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", folder)
    assert code == 2
    assert f"{Path(folder)} is in the cache folder." in said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes among its files")
def test_a_model_that_is_a_named_pipe(shell: Shell) -> None:
    os.mkfifo(shell.folder / "model.onnx")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 3
    assert "model.onnx cannot be read: it is not a regular file." in said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names that are not text")
@pytest.mark.parametrize("place", ["cache", "model", "output"])
def test_a_path_that_is_not_text(place: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / b"odd\xff".decode(errors="surrogateescape")
    odd.mkdir()
    model = float_model((odd if place == "model" else tmp_path) / "model.onnx")
    if place == "cache":  # it is in the current folder
        monkeypatch.chdir(odd)
    output = (odd if place == "output" else tmp_path) / "out"
    code, said = shell("build", "--onnx", str(model), "-o", str(output))
    assert code == 2
    assert "A path contains 'odd\\udcff', which is not valid UTF-8." in said


def test_a_build_without_stdout(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    float_model(shell.folder / "model.onnx")
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["build", "--onnx", "model.onnx", "-o", "out", "--cache-dir", "cache"]) == 0
    assert (shell.folder / "out" / "model.onnx").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_goes_to_a_full_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    float_model(shell.folder / "model.onnx")
    full = open("/dev/full", "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closing it fails as well
    monkeypatch.setattr(sys, "stdout", full)
    code, said = shell("plan", "--onnx", "model.onnx", "-o", "out")
    with suppress(OSError):
        full.close()
    assert code == 1
    assert "No space left" in said


def test_a_file_of_somebody_elses_in_the_way_is_not_overwritten(shell: Shell) -> None:
    float_model(shell.folder / "model.onnx")
    (shell.folder / "out").mkdir()
    (shell.folder / "out" / "model.onnx").write_text("mine", encoding="utf-8")
    code, said = shell("build", "--onnx", "model.onnx", "-o", "out")
    assert code == 2
    assert "in the way" in said
    assert (shell.folder / "out" / "model.onnx").read_text(encoding="utf-8") == "mine"


def test_the_input_in_the_output_folder_is_never_overwritten(shell: Shell) -> None:
    (shell.folder / "out").mkdir()
    path = float_model(shell.folder / "out" / "model.onnx")
    before = path.read_bytes()
    code, _ = shell("build", "--onnx", "out/model.onnx", "-o", "out", "--rebuild")
    assert code == 2
    assert path.read_bytes() == before


@pytest.mark.usefixtures("shell")
def test_an_error_in_json_format_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "--onnx", "none.onnx", "-o", "out", "--format", "json", "--cache-dir", "cache"]) == 3
    output = capsys.readouterr()
    value = json.loads(output.out)
    assert value["builds"] == []
    assert "none.onnx" in value["error"]


def test_the_model_of_the_command_line_replaces_the_random_weights_of_a_recipe(shell: Shell) -> None:
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    loader = {"task": "text-classification", "model_type": "bert", "random_weights": {"config": config}}
    (shell.folder / "random.json").write_text(json.dumps({"loader": loader, "precision": "fp32"}))
    assert run(["plan", "-c", "random.json", "-m", "./none", "-o", "out", "--cache-dir", "cache"]) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a given size, such as ``300k``."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if sys.platform == "win32" or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system takes Linux and root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def big_model(path: Path) -> Path:
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "big",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 512])],
        [weight],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.slow
def test_a_full_disk_under_the_output_folder(shell: Shell, small_disk: Callable[[str], Path]) -> None:
    big_model(shell.folder / "input.onnx")
    out = small_disk("1500k") / "out"
    code, said = shell("build", "--onnx", "input.onnx", "-o", str(out))
    assert code == 1
    assert f"The output folder {out} cannot be written: No space left" in said
    assert not out.exists() or list(out.iterdir()) == []
    # With enough space nothing has to run again: the results are in the cache.
    code, _ = shell("build", "--onnx", "input.onnx", "-o", "roomy")
    assert code == 0
    assert (shell.folder / "roomy" / "model.onnx").exists()


@pytest.mark.slow
def test_a_full_disk_under_the_cache(shell: Shell, small_disk: Callable[[str], Path]) -> None:
    big_model(shell.folder / "input.onnx")
    disk = small_disk("1200k")
    (shell.folder / "cache").symlink_to(disk)
    code, said = shell("build", "--onnx", "input.onnx", "-o", "out")
    assert code == 1
    assert "is full" in said
    (shell.folder / "cache").unlink()
    shutil.copytree(disk, shell.folder / "cache", ignore=shutil.ignore_patterns("locks"))
    assert shell("cache", "verify")[0] == 0
    assert shell("build", "--onnx", "input.onnx", "-o", "out")[0] == 0
