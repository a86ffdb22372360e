"""``winml-dag inspect`` and ``winml-dag verify``: the contents of a file, and whether a folder is unchanged."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tiny_builds import build_tiny, save_model

from winml_dag.cli.inspect import Inspected, described_json, described_lines
from winml_dag.errors import InputError, WinmlDagError
from winml_dag.onnxmodel.description import describe_model
from winml_dag.pipeline.assess.builtmodel import find_built_model
from winml_dag.pipeline.assess.verification import provenance_of, verify
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.digest import digest_file


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``out``, filled by a build whose stages pass the model on."""
    folder = tmp_path_factory.mktemp("built")
    content = save_model(folder / "tiny.onnx").read_bytes()
    recipe = {"model": "tiny.onnx", "ep": "cpu", "precision": "fp32", "output_dir": "out", "auto": False}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with contextlib.chdir(folder):
        assert not build_tiny(Request(Path("recipe.yaml"), Overrides()), content=lambda _: content).failed
    return folder / "out"


@pytest.fixture
def out(built: Path, folder: Path) -> Path:
    shutil.copytree(built, folder / "out")
    return Path("out")


def test_inspect_output_folder_shows_model_and_provenance(out: Path, says, tells) -> None:
    text = says("inspect", "out")
    assert text.startswith(f"{out / 'model.onnx'}: ")
    for words in (
        "x  float32[1, 4]",
        "1: Relu 1",
        "opset ai.onnx 21",
        "finalize, as it was built",
        "tiny.onnx in fp32 for CPUExecutionProvider (cpu)",
        "all models of out:",
        "optimized.onnx",
    ):
        assert words in text
    found = tells("inspect", "-m", "out")
    assert found["precision"]["name"] == "fp32"
    assert found["provenance"]["made_by"] == "finalize"
    assert found["provenance"]["matches"] is True
    assert [other["name"] for other in found["folder"]] == ["model.onnx", "optimized.onnx"]
    assert found["errors"] == found["warnings"] == []


def test_inspect_reports_model_changed_since_build(out: Path, says, tells) -> None:
    save_model(out / "optimized.onnx", producer_name="somebody")
    found = tells("inspect", "out/optimized.onnx")
    assert found["provenance"]["matches"] is False
    assert "It is not the file that its build made" in found["warnings"][0]
    assert "optimize.0, changed since" in says("inspect", "out/optimized.onnx")
    shutil.copy(out / "optimized.onnx", out / "mine.onnx")
    assert "nobody: build_manifest.json beside it does not list it" in says("inspect", "out/mine.onnx")
    (out / "build_manifest.json").write_text("{")
    assert "warning: out/build_manifest.json is damaged" in says("inspect", "out").replace("\\", "/")


def test_inspect_refuses_missing_damaged_or_ambiguous_model(out: Path, says, tells) -> None:
    assert "There is nothing to inspect" in says("inspect", code=2)
    assert "does not exist" in says("inspect", "none.onnx", code=3)
    (out / "model.onnx").write_bytes((out / "model.onnx").read_bytes()[:-9])
    assert "cut short or damaged" in says("inspect", "out/model.onnx", code=3)
    assert "cut short or damaged" in tells("inspect", "out", code=3)["errors"][0]
    Path("empty").mkdir()
    assert "has no ONNX model" in says("inspect", "empty", code=3)
    for name in ("a.onnx", "b.onnx"):
        save_model(Path("empty") / name)
    assert "several models: a.onnx, b.onnx" in says("inspect", "empty", code=3)


def test_inspect_reports_missing_context_binaries(tmp_path: Path, says, tells) -> None:
    def context(read: str, made: str, binary: str) -> onnx.NodeProto:
        attributes = {"embed_mode": 0, "ep_cache_context": binary}
        return helper.make_node("EPContext", [read], [made], domain="com.microsoft", **attributes)

    last = helper.make_node("Relu", ["w"], ["y"], name="last")
    model = save_model(tmp_path / "m.onnx", context("x", "z", "a.bin"), context("z", "w", "b.bin"), last)
    text = says("inspect", model, code=3)
    assert "a.bin, missing" in text
    assert "left to the CPU: last (Relu)" in text
    found = tells("inspect", model, code=3)
    binary, _ = found["files"]
    expected = {"name": "a.bin", "holds": "binary", "present": False, "size_bytes": None}
    assert {name: binary[name] for name in expected} == expected
    for name, text in zip(("a.bin", "b.bin"), found["errors"], strict=True):
        assert f"{name}, which m.onnx needs, does not exist" in text
        assert text in found["error"]
    assert found["cpu_nodes"] == [{"name": "last", "op_type": "Relu"}]


def test_verify_accepts_unchanged_folder(out: Path, says, tells) -> None:
    (out / "notes.txt").write_text("mine")
    text = says("verify", "out")
    assert f"not of the build: {out / 'notes.txt'}" in text
    assert "Intact: out, 3 of 3 files as built" in text
    found = tells("verify", "out")
    assert found["sound"] is True
    assert found["folders"][0]["extra"] == ["notes.txt"]


def test_verify_lists_every_changed_or_missing_file(out: Path, says) -> None:
    content = bytearray((out / "model.onnx").read_bytes())
    content[-1] ^= 1
    (out / "model.onnx").write_bytes(content)
    (out / "optimized.onnx").unlink()
    settings = json.loads((out / "winml_build_config.json").read_text())
    (out / "winml_build_config.json").write_text(json.dumps({**settings, "precision": "fp16"}))
    text = says("verify", "out", code=1)
    assert f"changed: {out / 'model.onnx'} (xxh3-128:" in text
    assert f"missing, an intermediate: {out / 'optimized.onnx'}" in text
    assert f"changed: {out / 'winml_build_config.json'} (other settings than those of the build)" in text
    assert "Not intact: out, 0 of 3 files as built" in text
    (out / "model.onnx").write_bytes(content + b"!")
    assert f"{len(content) + 1} bytes instead of {len(content)}" in says("verify", "out", code=1)


@pytest.mark.parametrize("found", ["missing", "changed"])
def test_verify_reports_changed_intermediate_without_failing(out: Path, says, tells, found: str) -> None:
    if found == "missing":
        (out / "optimized.onnx").unlink()
    else:
        save_model(out / "optimized.onnx", producer_name="somebody")
    text = says("verify", "out")
    assert f"{found}, an intermediate: {out / 'optimized.onnx'}" in text
    assert "Intact: out, 2 of 3 files as built" in text
    (folder,) = tells("verify", "out")["folders"]
    assert {Path(file["path"]).name: (file["found"], file["intermediate"]) for file in folder["files"]} == {
        "model.onnx": ("sound", False),
        "optimized.onnx": (found, True),
        "winml_build_config.json": ("sound", False),
    }


@pytest.mark.parametrize("name", ["model.onnx", "winml_build_config.json"])
def test_verify_fails_when_shipped_file_is_missing(out: Path, name: str, says) -> None:
    (out / name).unlink()
    assert f"missing: {out / name}" in says("verify", "out", code=1)


def test_verify_fails_for_unfinished_build_folder(out: Path, says) -> None:
    (out / ".winml-dag-new").mkdir()
    (out / ".winml-dag-new" / "journal.json").write_text("{}")
    text = says("verify", "out", code=1)
    assert "unfinished: a build is writing to out, or was killed; build again to finish it" in text
    assert "not of the build" not in text


def test_verify_checks_single_file(out: Path, says) -> None:
    (out / "optimized.onnx").write_bytes(b"other")
    assert "1 of 1 file as built" in says("verify", "out/model.onnx")
    assert "changed: " in says("verify", "out/optimized.onnx", code=1)
    save_model(out / "mine.onnx")
    assert "does not list mine.onnx" in says("verify", "out/mine.onnx", code=3)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda stage: stage["outputs"]["model"].update(digest="sha256:" + "0" * 64), "another digest than its files"),
        (lambda stage: stage["config"].update(more=1), "another config_hash than its config makes"),
        (lambda stage: stage["inputs"]["model"].update(digest="sha256:" + "1" * 64), "reads other bytes as model"),
        (
            lambda stage: stage["toolchain"].update(onnxruntime="99"),
            "another cache_key than its version, config, inputs",
        ),
        (lambda stage: stage.update(version=99), "another cache_key"),
        (lambda stage: stage["config"].update(more="\udce9"), "another config_hash"),
        (lambda stage: stage["toolchain"].update(onnxruntime="\udce9"), "another cache_key"),
    ],
)
def test_verify_detects_inconsistent_edited_manifest(
    out: Path, edit: Callable[[dict[str, Any]], None], words: str, says
) -> None:
    path = out / "build_manifest.json"
    manifest = json.loads(path.read_text())
    edit(next(stage for stage in manifest["stages"] if stage.get("id") == "optimize.0"))
    path.write_text(json.dumps(manifest))
    assert words in says("verify", "out", code=1)


_ANYTHING = st.sampled_from([None, -1, 1e308, True, "x", "../y", "\udce9", [], {}, ["a"], {"a": 1}, 10**400])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(inner)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corrupted_manifest_raises_only_winml_dag_errors(out: Path, data: st.DataObject) -> None:
    path = out / "build_manifest.json"
    whole = path.read_bytes()
    manifest = json.loads(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        inside, key = data.draw(st.sampled_from([*_places(manifest)]))
        inside[key] = copy.deepcopy(data.draw(_ANYTHING))  # another may be put into it
    path.write_text(json.dumps(manifest))
    try:
        for look in (lambda: verify(out), lambda: provenance_of(out / "model.onnx"), lambda: find_built_model(out)):
            with suppress(WinmlDagError):
                look()
    finally:
        path.write_bytes(whole)


def test_verify_detects_edited_file_and_manifest_entry(out: Path, says) -> None:
    """Somebody replaces a model and its entry in the list of files, but not the output of finalize."""
    save_model(out / "model.onnx", producer_name="somebody")
    path = out / "build_manifest.json"
    manifest = json.loads(path.read_text())
    entry = next(entry for entry in manifest["files"] if entry["name"] == "model.onnx")
    entry.update(digest=digest_file(out / "model.onnx"), size=(out / "model.onnx").stat().st_size)
    path.write_text(json.dumps(manifest))
    assert "model.onnx has another digest among the files than finalize wrote" in says("verify", "out", code=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged: it is not JSON"),
        ("{}", "is not of this program: it has no schema_version"),
        ('{"schema_version": 2}', "has schema_version 2, and this version of winml-dag reads 1 only"),
        ('{"schema_version": 1}', "is damaged"),
        ('{"schema_version": 1, "stages": [], "files": [{"name": "../a"}]}', "is damaged: A file in a record"),
    ],
)
def test_verify_refuses_invalid_manifest(out: Path, text: str, words: str, says, tells) -> None:
    (out / "build_manifest.json").write_text(text)
    assert words in says("verify", "out", code=3)
    assert words in tells("verify", "out", code=3)["errors"][0]


def test_verify_refuses_folder_without_manifest(out: Path, says) -> None:
    (out / "build_manifest.json").unlink()
    assert "so its expected contents are unknown" in says("verify", "out", code=3)
    assert "so the expected model.onnx is unknown" in says("verify", "out/model.onnx", code=3)


def test_verify_checks_outputs_of_command_stages(tmp_path: Path, says) -> None:
    (tmp_path / "a.txt").write_text("source")
    recipe = {
        "stages": {"copy": {"command": ["cp", "{inputs.text}", "{outputs.copy}"],
                            "inputs": {"text": "a.txt"}, "outputs": {"copy": "sub/b.txt"}}}
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["build", "-q", "-c", str(tmp_path / "recipe.yaml"), "--cache-dir", str(tmp_path / "cache")]
    says(*arguments)
    assert "1 of 1 file as built" in says("verify", str(tmp_path))
    (tmp_path / "sub" / "b.txt").write_text("edited")
    assert f"changed: {tmp_path / 'sub' / 'b.txt'}" in says("verify", str(tmp_path), code=1)


def _everything() -> bytes:
    """Return a model with everything that is inspected: Q/DQ, blocks, an EPContext node, a branch, external weights."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "n"]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.UINT8, [2, 2], [1, 2, 3, 4])
    constants = [weight, helper.make_tensor("s", TensorProto.FLOAT, [1], [0.5])]
    constants += [helper.make_tensor("z", TensorProto.UINT16, [1], [0])]
    outside = TensorProto(name="e", data_type=1, dims=[2], data_location=1)
    for key, text in (("location", "m.data"), ("offset", "8"), ("length", "8")):
        outside.external_data.add(key=key, value=text)
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["n"])], "inner", [], [y])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
        helper.make_node("Add", ["d", "d"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["r"]),
        helper.make_node("MatMul", ["q", "d"], ["m"]),
        helper.make_node("MatMulNBits", ["m", "w", "s"], ["b"], domain="com.microsoft", K=4, N=4, bits=4),
        helper.make_node("EPContext", ["b"], ["c"], domain="com.microsoft", embed_mode=0, ep_cache_context="m.bin"),
        helper.make_node("If", ["c"], ["y"], then_branch=inner),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [*constants, outside])
    model: bytes = helper.make_model(graph, producer_name="p").SerializeToString()
    return model


_EVERYTHING = _everything()


@settings(max_examples=50, deadline=None)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6))
@example(flips=[(0.5, 1), (0.796875, 67)])  # what names the two files that are missing
def test_corrupted_model_is_described_or_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]]
) -> None:
    content = bytearray(_EVERYTHING)
    for where, bits in flips:
        content[int(where * len(content))] ^= bits
    path = tmp_path_factory.getbasetemp() / "flipped.onnx"
    path.write_bytes(content)
    try:
        inspected = Inspected(describe_model(path, for_npu=True))
    except InputError as error:
        assert path.name in str(error)  # noqa: PT017  (both ways are right)
    else:
        assert all(isinstance(line, str) for line in described_lines(inspected, 5))
        assert all(isinstance(text, str) for text in json.loads(json.dumps(described_json(inspected, 5)))["errors"])


def test_inspect_reports_nodes_without_inputs_or_outputs(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(_EVERYTHING)
    for node in model.graph.node:
        del node.input[:], node.output[:]
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    inspected = Inspected(describe_model(tmp_path / "m.onnx"))
    assert "No node makes y" in " ".join(described_lines(inspected, 5))


def test_inspect_escapes_control_characters(tmp_path: Path) -> None:
    model = onnx.load(save_model(tmp_path / "m.onnx"))
    model.graph.node[0].op_type = "Relu\x1b[2J"
    model.metadata_props.add(key="characters", value="a\nb\u202ec")
    onnx.save(model, tmp_path / "m.onnx")
    lines = [*described_lines(Inspected(describe_model(tmp_path / "m.onnx")), 5)]
    assert any("Relu\\x1b[2J" in line for line in lines)
    assert any("characters = a\\nb\\u202ec" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_oversized_tensor_dimensions_are_reported_as_damage(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(_EVERYTHING)
    model.graph.initializer[0].dims[:] = [2**62] * 40
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="damaged"):
        describe_model(tmp_path / "m.onnx")


def test_read_only_commands_import_no_heavy_modules(built: Path) -> None:
    Path("sweep.yaml").write_text(f"{{model: {built.parent / 'tiny.onnx'}, matrix: {{precision: [fp32, w8a8]}}}}")
    recipe = str(built.parent / "recipe.yaml")
    commands = [
        ["inspect", str(built)],
        ["verify", str(built)],
        ["why", "-c", recipe, "-o", "other", "--min-cosine", "0.5", "--cache-dir", str(built.parent / "cache")],
        ["plan", "-c", "sweep.yaml"],
    ]
    code = (
        f"import sys\nfrom winml_dag.cli import run\nassert [run(words) for words in {commands}] == [0] * 4\n"
        "heavy = {'onnx', 'numpy', 'onnxruntime', 'onnxscript', 'torch', 'transformers', 'networkx', 'rich',\n"
        "         'cyclonedx', 'in_toto_attestation', 'google.protobuf'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "nearest is" in done.stdout
