"""``why`` and ``plan`` name what changed: the field, the file or the version, with its old and new value.

The builds are real except for the work of their stages, which runs in this process: each output depends on its inputs,
so that an edit propagates as it would in reality.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from memory_executor import MemoryExecutor
from onnx import TensorProto, helper

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.cli import run
from winml_dag.engine import keys
from winml_dag.engine.stage import Node, Workspace
from winml_dag.errors import StageError
from winml_dag.pipeline.build import build
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.run import Driver
from winml_dag.store.digest import digest_bytes, with_checksum
from winml_dag.store.store import Store

RECIPE = {
    "model": "tiny.onnx",
    "ep": "cpu",
    "precision": "w8a8",
    "quant": {"samples": 10, "calibration_data": "data"},
}


class Project:
    """A folder with a model, data and a recipe; ``builds`` records results, ``says`` runs the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = folder / "data"
        self._capsys = capsys
        self.fails = ""

    def edit(self, **sections: Any) -> None:
        Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **sections}), encoding="utf-8")

    def builds(self, out: str = "out") -> None:
        store = Store(Path("cache"))
        planned = plan_request(Request(Path("recipe.yaml"), Overrides(), Path(out)), store, download=False)
        result = build(planned, Driver(store, executor=MemoryExecutor(self._work)))
        store.close()
        assert result.failed == bool(self.fails)

    def says(self, command: str, *arguments: str, out: str = "out") -> str:
        self._capsys.readouterr()
        assert run([command, *arguments, "-c", "recipe.yaml", "-o", out, "--cache-dir", "cache"]) == 0
        return self._capsys.readouterr().out

    def why(self, stage: str, out: str = "out") -> list[str]:
        """Return the lines of the reason of *stage*, without the last, which has its key."""
        first, *lines = self.says("why", stage, out=out).splitlines()
        assert first == f"{stage}: would run"
        return [line.strip() for line in lines if "cache key" not in line]

    def json(self, command: str, *arguments: str, out: str = "out") -> dict[str, Any]:
        value = json.loads(self.says(command, *arguments, "--format", "json", out=out))
        return {stage["stage"]: stage for stage in value["builds"][0]["stages"]}

    def _work(self, node: Node, workspace: Workspace) -> JsonObject:
        if node.stage.name == self.fails:
            raise StageError("It was told to fail.")
        inputs = [
            path.read_bytes().hex() for name in sorted(workspace.inputs) for path in _files(workspace.inputs[name])
        ]
        text = canonical_json([node.stage.name, node.config, inputs])
        for slot, folder in workspace.outputs.items():
            (folder / node.stage.published.get(slot, f"{slot}.json")).write_text(
                f"{slot} {digest_bytes(text.encode(), 'xxh3-128')}"
            )
        return {}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and its data."""
    folder = tmp_path_factory.mktemp("made")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "tiny.onnx")
    (folder / "data").mkdir()
    for number, name in enumerate("abc"):
        np.savez(folder / "data" / f"{name}.npz", x=np.full((1, 4), number, np.float32))
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, capsys)
    project.edit()
    return project


@pytest.fixture
def built(project: Project) -> Project:
    project.builds()
    return project


def test_a_first_build_says_so(project: Project) -> None:
    assert project.why("optimize.0") == ["never built before"]
    assert project.json("plan")["optimize"]["kind"] == "first build"


def test_nothing_to_explain_when_all_is_known(built: Project) -> None:
    assert built.says("why") == "Nothing would run: everything is cached.\n"
    assert built.says("why", "quantize").splitlines()[:2] == ["quantize: reused", "  up to date"]


def test_a_field_is_named_with_both_values_and_who_waits_names_the_root(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    assert built.why("calibrate") == ["quant.samples: 10 -> 20"]
    assert built.why("validate") == [
        "depends on the output of quantize, calibrate",
        "calibrate would run: quant.samples: 10 -> 20",
    ]
    stages = built.json("plan")
    assert stages["calibrate"]["kind"] == "changed"
    assert stages["calibrate"]["changes"] == [{"kind": "config", "name": "quant.samples", "old": 10, "new": 20}]
    assert (stages["validate"]["names"], stages["validate"]["roots"]) == (["quantize", "calibrate"], ["calibrate"])


def test_without_a_stage_every_one_that_would_run_is_explained(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20}, validate={"min_cosine": 0.5})  # type: ignore[dict-item]
    said = built.says("why")
    heads = [line for line in said.splitlines() if not line.startswith(" ")]
    assert heads == [f"{stage}: would run" for stage in ("calibrate", "quantize", "validate", "finalize")]
    assert "  validate.min_cosine: 0.8 -> 0.5\n" in said
    assert list(built.json("why")) == ["calibrate", "quantize", "validate", "finalize"]
    assert list(built.json("why", "validate")) == ["validate"]


def test_a_sample_that_changed_is_named_with_both_digests(built: Project) -> None:
    np.savez(built.data / "b.npz", x=np.full((1, 4), 9, np.float32))
    (line,) = built.why("calibrate")
    (file,) = built.json("why", "calibrate")["calibrate"]["changes"][0]["files"]
    assert (file["how"], file["name"]) == ("changed", "b.npz")
    old, new = file["old"], file["new"]
    assert len(old) == len(new) == len("xxh3-128:") + 32
    assert line == f"input data: b.npz changed ({old[:17]} -> {new.partition(':')[2][:8]})"


def test_a_model_that_changed_is_named_as_its_owner_calls_it(built: Project) -> None:
    model = onnx.load("tiny.onnx")
    model.producer_name = "somebody else"
    onnx.save(model, "tiny.onnx")
    (line,) = built.why("optimize.0")
    assert line.startswith("input model: tiny.onnx changed (xxh3-128:")


def test_samples_that_came_went_or_swapped_are_named_each(built: Project) -> None:
    (built.data / "a.npz").rename(built.data / "t")
    (built.data / "b.npz").rename(built.data / "a.npz")
    (built.data / "t").rename(built.data / "b.npz")
    (built.data / "c.npz").unlink()
    np.savez(built.data / "d.npz", x=np.full((1, 4), 9, np.float32))
    lines = [f"input data: {what}" for what in ("a.npz and b.npz swapped", "c.npz removed", "d.npz added")]
    assert built.why("calibrate") == lines
    planned = "input data: a.npz and b.npz swapped, c.npz removed, d.npz added"
    assert planned in built.says("plan")
    built.builds()
    manifest = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))
    assert planned in [stage["reason"] for stage in manifest["stages"]]


def test_data_that_is_new_or_gone_is_said_to_be(built: Project) -> None:
    built.edit(quant={"samples": 10})
    assert "input data is gone" in built.why("calibrate")
    built.builds()
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    assert "input data is new" in built.why("calibrate")


def test_a_package_is_named_with_both_versions(built: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = keys.installed_distributions()["onnxruntime"]
    installed = tmp_path / "packages" / "onnxruntime-99.1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 99.1\n")
    monkeypatch.syspath_prepend(installed.parent)
    assert f"onnxruntime {real} -> 99.1" in built.why("optimize.0")


def test_an_output_of_a_stage_is_named_by_its_file_and_when_it_was_given(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    built.fails = "validate"
    built.builds()
    model, ranges, gave, *_ = built.why("validate")
    assert model.startswith("input model: quantized.onnx changed (xxh3-128:")
    assert ranges.startswith("input ranges: calibration_ranges.json changed (xxh3-128:")
    assert gave.startswith("quantize gave this model when it ran at 20")


def test_a_new_folder_names_the_nearest_record_and_what_differs(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    stages = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))["stages"]
    key = next(stage["cache_key"] for stage in stages if stage["name"] == "calibrate")
    head, *changes = built.why("calibrate", out="other")
    assert head.startswith(f"never built like this; nearest is {key[:8]} (made 20")
    assert head.endswith(" by winml_dag 0.1.0):")
    assert changes == ["quant.samples: 10 -> 20"]
    stage = built.json("plan", out="other")["calibrate"]
    assert (stage["kind"], stage["nearest"]["cache_key"]) == ("first build", key)
    assert stage["reason"] == f"{head} quant.samples: 10 -> 20"


def test_a_nearer_record_of_another_folder_is_mentioned(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    built.builds("other")
    np.savez(built.data / "c.npz", x=np.full((1, 4), 9, np.float32))
    field, file, nearer = built.why("calibrate")
    assert field == "quant.samples: 10 -> 20"
    assert file.startswith("input data: c.npz changed")
    assert nearer.startswith("more similar than the last build here is ")
    assert nearer.partition("): ")[2] == file


def test_a_stage_that_is_left_out_says_why(built: Project) -> None:
    assert built.says("why", "export").splitlines() == ["export: skipped", "  the model is ONNX already"]
    assert built.json("why", "export")["export"]["kind"] == "skipped"


def test_a_record_of_before_files_were_noted_is_still_compared(built: Project) -> None:
    for path in Path("cache/records").rglob("*.json"):
        key = path.parent.name + path.stem
        store = Store(Path("cache"))
        record = store.records.read_file(key)
        value = {name: inner for name, inner in record.to_json().items() if name != "input_files"}
        path.write_text(with_checksum(key, canonical_json(value)), encoding="utf-8")
        store.index.remove("record", [key])
        store.close()
    assert built.says("why") == "Nothing would run: everything is cached.\n"
    np.savez(built.data / "b.npz", x=np.full((1, 4), 9, np.float32))
    assert built.why("calibrate") == ["input data changed"]


def test_explaining_imports_nothing_heavy(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20})  # type: ignore[dict-item]
    script = (
        "import sys\nfrom winml_dag.cli import run\n"
        "run(['why', '-c', 'recipe.yaml', '-o', 'other', '--cache-dir', 'cache'])\n"
        "print(*sorted(m.partition('.')[0] for m in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "nearest is" in done.stdout
    heavy = {"torch", "transformers", "onnx", "onnxruntime", "onnxscript", "numpy", "networkx", "rich"}
    assert not heavy & set(done.stderr.split())
