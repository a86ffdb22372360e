"""A cached plan is valid as long as none of its inputs has changed: then it equals a new one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import xxhash
from pipeline_samples import save_model

from winml_dag import file_reading
from winml_dag.engine import keys
from winml_dag.pipeline import uptodate
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.plan import plan_build
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.plan_text import load_plan, plan_text, text_of
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.pipeline.uptodate import check, file_of
from winml_dag.store.store import Store

RECIPE = """
model: model
loader: {task: text-classification}
ep: cpu
precision: w8a8
quant: {calibration_data: data}
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store next to a project: a model folder, data, a recipe. Recently written files count as settled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    put_model(tmp_path / "model")
    (tmp_path / "data" / "more").mkdir(parents=True)
    np.savez(tmp_path / "data" / "a.npz", input_ids=np.zeros((1, 8), np.int32))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return Store(tmp_path / "cache")


LinkFolder = Callable[[Path, Path], None]


@pytest.fixture
def link() -> LinkFolder:
    """Makes a link to a folder."""

    def make(at: Path, to: Path) -> None:
        try:
            at.symlink_to(to, target_is_directory=True)
        except OSError:
            pytest.skip("links need a permission here")

    return make


REQUEST = Request(Path("recipe.yaml"), Overrides(), Path("out"))


def fresh(request: Request, store: Store) -> BuildGraph:
    return plan_build(build_of(request, store.folder, download=False), store.fingerprints)


def load(request: Request, store: Store) -> BuildGraph | None:
    stands = check(str(store.folder), str(request.words))
    return None if stands is None else load_plan(stands, store)


def text(planned: BuildGraph) -> bytes:
    files = sorted({text_of(file.path) for source in planned.graph.sources.values() for file in source.files})
    return plan_text(planned, {path: place for place, path in enumerate(files)})


def same(one: BuildGraph, other: BuildGraph) -> bool:
    """Return whether both are equal in everything that a run, a report or a manifest uses."""
    return text(one) == text(other) and one.sources == other.sources


def test_an_unchanged_plan_stands_and_is_the_one_that_would_be_made(store: Store) -> None:
    assert load(REQUEST, store) is None
    plan_request(REQUEST, store, download=False)
    loaded = load(REQUEST, store)
    assert loaded is not None
    assert same(loaded, fresh(REQUEST, store))


def test_what_a_plan_needs_of_the_machine_is_remembered_with_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    request = Request(Path("recipe.yaml"), Overrides(ep="qnn"), Path("out"))
    planned = plan_request(request, store, download=False)
    remembered = load(request, store)
    assert remembered is not None
    needs = {node.id: (node.pools, node.stage.memory, node.stage.alone) for node in remembered.graph.nodes}
    assert needs == {node.id: (node.pools, node.stage.memory, node.stage.alone) for node in planned.graph.nodes}
    assert needs["validate"][0] == ("npu",)
    assert needs["export"][1].base_bytes > 0


def edit_recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE + "optim: {gelu_fusion: true}\n")


def edit_weights(folder: Path) -> None:
    (folder / "model" / "model.safetensors").write_bytes(b"MODEL")


def edit_architecture(folder: Path) -> None:
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (folder / "model" / "config.json").write_text(json.dumps(config))


def add_other_weights(folder: Path) -> None:
    """A shard index takes precedence over a single file."""
    (folder / "model" / "part.safetensors").write_bytes(b"part")
    index = {"weight_map": {"a": "part.safetensors"}}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))


def add_data(folder: Path) -> None:
    np.savez(folder / "data" / "b.npz", input_ids=np.ones((1, 8), np.int32))


def edit_data(folder: Path) -> None:
    np.savez(folder / "data" / "a.npz", input_ids=np.ones((1, 8), np.int32))


def add_data_below(folder: Path) -> None:
    np.savez(folder / "data" / "more" / "c.npz", input_ids=np.ones((1, 8), np.int32))


@pytest.mark.parametrize(
    "edit",
    [edit_recipe, edit_weights, edit_architecture, add_other_weights, add_data, edit_data, add_data_below],
)
def test_an_edit_of_what_it_was_made_from_ends_it(store: Store, tmp_path: Path, edit: Callable[[Path], None]) -> None:
    before = plan_request(REQUEST, store, download=False)
    edit(tmp_path)
    assert load(REQUEST, store) is None
    after = plan_request(REQUEST, store, download=False)
    assert not same(before, after)
    assert same(after, fresh(REQUEST, store))


def test_another_request_has_a_plan_of_its_own(store: Store) -> None:
    plan_request(REQUEST, store, download=False)
    assert load(Request(Path("recipe.yaml"), Overrides(precision="fp16"), Path("out")), store) is None
    assert load(Request(Path("recipe.yaml"), Overrides(), Path("elsewhere")), store) is None


def test_a_package_that_is_installed_or_changed_ends_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    plan_request(REQUEST, store, download=False)
    assert load(REQUEST, store) is not None
    (packages / "onnxruntime-99.0.dist-info").mkdir()
    keys._listed_here.cache_clear()
    assert load(REQUEST, store) is None
    quantize = next(node for node in plan_request(REQUEST, store, download=False).graph.nodes if node.id == "quantize")
    assert quantize.toolchain["onnxruntime"] == "99.0"
    keys._listed_here.cache_clear()


def test_this_programs_own_code_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_request(REQUEST, store, download=False)
    monkeypatch.setattr(uptodate, "_code_state", lambda: "edited")
    assert load(REQUEST, store) is None


def put_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (folder / "model.safetensors").write_bytes(folder.name.encode())


@pytest.mark.parametrize("edit", ["another commit", "a local folder"])
def test_a_model_of_the_hub_that_became_another_ends_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """A local folder takes the place of a hub id of the same name."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--name"
    for commit in ("aaa", "bbb"):
        put_model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa")
    request = Request(None, Overrides(model="org/name"), Path("out"))
    plan_request(request, store, download=False)
    assert load(request, store) is not None
    if edit == "another commit":
        (repository / "refs" / "main").write_text("bbb")
    else:
        (tmp_path / "org" / "name").mkdir(parents=True)
    assert load(request, store) is None


def test_an_onnx_model_that_gets_other_external_data_ends_it(store: Store, tmp_path: Path) -> None:
    model = onnx.load(save_model(tmp_path / "m.onnx", "MatMul", (1, 64), np.ones((64, 64))))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    request = Request(None, Overrides(onnx=Path("m.onnx")), Path("out"))
    plan_request(request, store, download=False)
    assert load(request, store) is not None
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "m.data").write_bytes(data)
    assert load(request, store) is None
    (tmp_path / "m.data").unlink()
    assert load(request, store) is None


def test_an_edit_behind_a_link_and_back_up_ends_it(store: Store, tmp_path: Path, link: LinkFolder) -> None:
    """``link/../model`` is next to the folder that the link leads to, not next to the link."""
    project = tmp_path / "project"
    (project / "recipes").mkdir(parents=True)
    for name in ("model", "data"):
        (tmp_path / name).rename(project / name)
    (project / "recipes" / "recipe.yaml").write_text(
        RECIPE.replace(": model", ": ../model").replace("data}", "../data}")
    )
    link(tmp_path / "link", project / "recipes")
    request = Request(Path("link/recipe.yaml"), Overrides(), Path("out"))
    plan_request(request, store, download=False)
    assert load(request, store) is not None
    edit_weights(project)
    assert load(request, store) is None


def test_an_output_folder_that_is_a_link_to_another_place_ends_it(
    store: Store, tmp_path: Path, link: LinkFolder
) -> None:
    """The settings written there name the model relative to that folder."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    link(tmp_path / "out", tmp_path / "near")
    plan_request(REQUEST, store, download=False)
    assert load(REQUEST, store) is not None
    (tmp_path / "out").unlink()
    link(tmp_path / "out", tmp_path / "far" / "away")
    assert plan_request(REQUEST, store, download=False).summary.settings["model"] == "../../model"


def test_what_has_not_come_to_rest_is_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file written within a tick of a coarse clock could have changed unnoticed during planning."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 2 * 10**9)
    monkeypatch.setattr(file_reading, "settled_ns", lambda _: 2 * 10**9)
    plan_request(REQUEST, store, download=False)
    assert load(REQUEST, store) is None


def test_a_damaged_note_counts_as_none(store: Store) -> None:
    plan_request(REQUEST, store, download=False)
    file = Path(file_of(str(store.folder), str(REQUEST.words)))
    sound = file.read_bytes()
    for place in range(0, len(sound), 211):
        file.write_bytes(sound[:place])
        assert load(REQUEST, store) is None
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        assert load(REQUEST, store) is None
    file.write_bytes(sound)
    assert load(REQUEST, store) is not None


def test_a_note_with_a_right_checksum_and_nonsense_in_it_counts_as_none(store: Store) -> None:
    """The cache folder may have been written by others."""
    plan_request(REQUEST, store, download=False)
    file = Path(file_of(str(store.folder), str(REQUEST.words)))
    first, rest = file.read_bytes()[16:].split(b"\n", 1)
    header = json.loads(first)
    for name in header:
        for nonsense in ({"a": 1}, [1], -1, None, "text"):
            if header[name] == nonsense:
                continue
            body = json.dumps({**header, name: nonsense}).encode() + b"\n" + rest
            file.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + body)
            plan_request(REQUEST, store, download=False)
