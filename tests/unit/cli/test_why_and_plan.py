"""``why`` and ``plan`` name what changed: the field, the file or the version, with its old and new value."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny_builds import build_tiny, save_model

from winml_dag.canonical import canonical_json
from winml_dag.installed import installed_distributions
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.digest import with_checksum
from winml_dag.store.store import Store

RECIPE = {
    "model": "tiny.onnx",
    "ep": "cpu",
    "precision": "w8a8",
    "quant": {"samples": 10, "calibration_data": "data"},
}


class Project:
    """The current folder with a model, data and a recipe; ``builds`` records results, the rest runs commands."""

    def __init__(self, says: Callable[..., str], tells: Callable[..., dict[str, Any]]) -> None:
        self._says, self._tells = says, tells

    def edit(self, **sections: Any) -> None:
        Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **sections}), encoding="utf-8")

    def edit_samples(self) -> None:
        self.edit(quant={"samples": 20, "calibration_data": "data"})

    def builds(self, out: str = "out", fails: str = "") -> None:
        request = Request(Path("recipe.yaml"), Overrides(), Path(out))
        assert build_tiny(request, fails={fails: "It was told to fail."}).failed == bool(fails)

    def says(self, command: str, *arguments: str, out: str = "out") -> str:
        return self._says(command, *arguments, "-c", "recipe.yaml", "-o", out)

    def why(self, stage: str, out: str = "out") -> list[str]:
        """Return the lines of the reason of *stage*, without the last, which has its key."""
        first, *lines = self.says("why", stage, out=out).splitlines()
        assert first == f"{stage}: would run"
        return [line.strip() for line in lines if "cache key" not in line]

    def json(self, command: str, *arguments: str, out: str = "out") -> dict[str, Any]:
        value = self._tells(command, *arguments, "-c", "recipe.yaml", "-o", out)
        return {stage["stage"]: stage for stage in value["builds"][0]["stages"]}


def save_sample(name: str, number: int = 9) -> None:
    np.savez(Path("data", f"{name}.npz"), x=np.full((1, 4), number, np.float32))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a project after a build, and a copy. Builds are known by their folder, so all tests work in one."""
    folder, copy = (tmp_path_factory.mktemp("project") / name for name in ("folder", "copy"))
    (folder / "data").mkdir(parents=True)
    with contextlib.chdir(folder):
        save_model(folder / "tiny.onnx")
        for number, name in enumerate("abc"):
            save_sample(name, number)
        project = Project(lambda: "", dict)
        project.edit()
        project.builds()
    shutil.copytree(folder, copy)
    return folder, copy


@pytest.fixture
def built(once: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, says, tells) -> Project:
    folder, copy = once
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(folder / "cache"))
    return Project(says, tells)


def test_first_build_is_reported_as_never_built(built: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", "new")
    assert built.why("optimize.0") == ["never built before"]
    assert built.json("plan")["optimize"]["kind"] == "first build"


def test_nothing_to_explain_when_all_is_cached(built: Project) -> None:
    assert built.says("why") == "Nothing would run: everything is cached.\n"
    assert built.says("why", "quantize").splitlines()[:2] == ["quantize: reused", "  up to date"]


def test_changed_field_is_named_with_both_values_and_root(built: Project) -> None:
    built.edit_samples()
    assert built.why("calibrate") == ["quant.samples: 10 -> 20"]
    assert built.why("validate") == [
        "depends on the output of quantize, calibrate",
        "calibrate would run: quant.samples: 10 -> 20",
    ]
    stages = built.json("plan")
    assert stages["calibrate"]["kind"] == "changed"
    assert stages["calibrate"]["changes"] == [{"kind": "config", "name": "quant.samples", "old": 10, "new": 20}]
    assert (stages["validate"]["names"], stages["validate"]["roots"]) == (["quantize", "calibrate"], ["calibrate"])


def test_why_without_stage_explains_every_stage_to_run(built: Project) -> None:
    built.edit(quant={**RECIPE["quant"], "samples": 20}, validate={"min_cosine": 0.5})  # type: ignore[dict-item]
    said = built.says("why")
    heads = [line for line in said.splitlines() if not line.startswith(" ")]
    assert heads == [f"{stage}: would run" for stage in ("calibrate", "quantize", "validate", "finalize")]
    assert "  validate.min_cosine: 0.8 -> 0.5\n" in said
    assert list(built.json("why")) == ["calibrate", "quantize", "validate", "finalize"]
    assert list(built.json("why", "validate")) == ["validate"]


def test_changed_sample_is_named_with_both_digests(built: Project) -> None:
    save_sample("b")
    (line,) = built.why("calibrate")
    (file,) = built.json("why", "calibrate")["calibrate"]["changes"][0]["files"]
    assert (file["how"], file["name"]) == ("changed", "b.npz")
    old, new = file["old"], file["new"]
    assert len(old) == len(new) == len("xxh3-128:") + 32
    assert line == f"input data: b.npz changed ({old[:17]} -> {new.partition(':')[2][:8]})"


def test_changed_model_is_named_by_its_file_name(built: Project) -> None:
    save_model(Path("tiny.onnx"), producer_name="somebody else")
    (line,) = built.why("optimize.0")
    assert line.startswith("input model: tiny.onnx changed (xxh3-128:")


def test_added_removed_and_swapped_samples_are_listed(built: Project) -> None:
    Path("data/a.npz").rename("data/t")
    Path("data/b.npz").rename("data/a.npz")
    Path("data/t").rename("data/b.npz")
    Path("data/c.npz").unlink()
    save_sample("d")
    lines = [f"input data: {what}" for what in ("a.npz and b.npz swapped", "c.npz removed", "d.npz added")]
    assert built.why("calibrate") == lines
    planned = "input data: a.npz and b.npz swapped, c.npz removed, d.npz added"
    assert planned in built.says("plan")
    built.builds()
    manifest = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))
    assert planned in [stage["reason"] for stage in manifest["stages"]]


def test_package_is_named_with_both_versions(built: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = installed_distributions()["onnxruntime"]
    installed = tmp_path / "packages" / "onnxruntime-99.1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 99.1\n")
    monkeypatch.syspath_prepend(installed.parent)
    assert f"onnxruntime {real} -> 99.1" in built.why("optimize.0")


def test_changed_stage_output_is_named_by_file_and_time(built: Project) -> None:
    built.edit_samples()
    built.builds(fails="validate")
    model, ranges, gave, *_ = built.why("validate")
    assert model.startswith("input model: quantized.onnx changed (xxh3-128:")
    assert ranges.startswith("input ranges: calibration_ranges.json changed (xxh3-128:")
    assert gave.startswith("quantize gave this model when it ran at 20")


def test_new_folder_is_compared_with_nearest_record(built: Project) -> None:
    built.edit_samples()
    stages = json.loads(Path("out/build_manifest.json").read_text(encoding="utf-8"))["stages"]
    key = next(stage["cache_key"] for stage in stages if stage["name"] == "calibrate")
    head, *changes = built.why("calibrate", out="other")
    assert head.startswith(f"never built like this; nearest is {key[:8]} (made 20")
    assert head.endswith(" by winml_dag 0.1.0):")
    assert changes == ["quant.samples: 10 -> 20"]
    stage = built.json("plan", out="other")["calibrate"]
    assert (stage["kind"], stage["nearest"]["cache_key"]) == ("first build", key)
    assert stage["reason"] == f"{head} quant.samples: 10 -> 20"


def test_nearer_record_of_other_folder_is_mentioned(built: Project) -> None:
    built.edit_samples()
    built.builds("other")
    save_sample("c")
    field, file, nearer = built.why("calibrate")
    assert field == "quant.samples: 10 -> 20"
    assert file.startswith("input data: c.npz changed")
    assert nearer.startswith("more similar than the last build here is ")
    assert nearer.partition("): ")[2] == file


def test_skipped_stage_gives_reason(built: Project) -> None:
    assert built.says("why", "export").splitlines() == ["export: skipped", "  the model is ONNX already"]
    assert built.json("why", "export")["export"]["kind"] == "skipped"


def test_record_without_file_list_is_still_compared(built: Project) -> None:
    for path in Path("cache/records").rglob("*.json"):
        key = path.parent.name + path.stem
        store = Store(Path("cache"))
        record = store.records.read_file(key)
        value = {name: inner for name, inner in record.to_json().items() if name != "input_files"}
        path.write_text(with_checksum(key, canonical_json(value)), encoding="utf-8")
        store.index.remove("record", [key])
        store.close()
    assert built.says("why") == "Nothing would run: everything is cached.\n"
    save_sample("b")
    assert built.why("calibrate") == ["input data changed"]
