"""A cached plan is valid as long as none of its inputs has changed: then it equals a new one."""

from __future__ import annotations

import json
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import xxhash
from pipeline_samples import changed_before, put_sdk, save_model

from winml_dag import file_reading
from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE
from winml_dag.ep.availability import installed
from winml_dag.ep.qairt import host_name, library
from winml_dag.ep.registry import QNN
from winml_dag.installed import forget_installed
from winml_dag.pipeline import plan as pipeline_plan
from winml_dag.pipeline import plan_cache, uptodate
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
REQUEST = Request(Path("recipe.yaml"), Overrides(), Path("out"))
OUT = Path("out")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store next to a project: a model folder, data, a recipe. Recently written files count as settled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    put_project(tmp_path)
    return Store(tmp_path / "cache")


def put_project(folder: Path) -> None:
    put_model(folder / "model")
    (folder / "data" / "more").mkdir(parents=True)
    put_data(folder / "data" / "a.npz", 0)
    save_model(folder / "m.onnx", doc_string=folder.name)
    (folder / "recipe.yaml").write_text(RECIPE)


def put_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (folder / "model.safetensors").write_bytes(f"{folder}"[-9:].encode())


def put_data(path: Path, value: int) -> None:
    np.savez(path, input_ids=np.full((1, 8), value, np.int32))


def link(at: Path, to: Path) -> None:
    """Make a link to a folder."""
    try:
        at.symlink_to(to, target_is_directory=True)
    except OSError:
        pytest.skip("links need a permission here")


def fresh(request: Request, store: Store) -> BuildGraph:
    return plan_build(build_of(request, store.folder, download=False), store.fingerprints)


def load(request: Request, store: Store) -> BuildGraph | None:
    stands = check(str(store.folder), str(request.words))
    return None if stands is None else load_plan(stands, store)


def ended_by(edit: Callable[[], object], store: Store, request: Request = REQUEST) -> tuple[BuildGraph, BuildGraph]:
    """Return the plan that stands until *edit*, and the one after it."""
    before = plan_request(request, store, download=False)
    assert load(request, store) is not None
    edit()
    assert load(request, store) is None
    return before, plan_request(request, store, download=False)


def text(planned: BuildGraph) -> bytes:
    files = sorted({text_of(file.path) for source in planned.graph.sources.values() for file in source.files})
    return plan_text(planned, {path: place for place, path in enumerate(files)})


def same(one: BuildGraph, other: BuildGraph) -> bool:
    """Return whether both are equal in everything that a run, a report or a manifest uses."""
    return text(one) == text(other) and one.sources == other.sources


def test_unchanged_plan_is_loaded_and_equals_a_new_one(store: Store) -> None:
    assert load(REQUEST, store) is None
    plan_request(REQUEST, store, download=False)
    loaded = load(REQUEST, store)
    assert loaded is not None
    assert same(loaded, fresh(REQUEST, store))
    for other in (
        Request(REQUEST.recipe, Overrides(precision="fp16"), OUT),
        Request(REQUEST.recipe, Overrides(), Path()),
    ):
        assert load(other, store) is None


def test_machine_requirements_are_cached_with_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    request = Request(REQUEST.recipe, Overrides(ep="qnn"), OUT)
    planned = plan_request(request, store, download=False)
    remembered = load(request, store)
    assert remembered is not None
    needs = {node.id: (node.pools, node.stage.memory, node.stage.alone) for node in remembered.graph.nodes}
    assert needs == {node.id: (node.pools, node.stage.memory, node.stage.alone) for node in planned.graph.nodes}
    assert needs["validate"][0] == ("npu",)
    assert needs["export"][1].base_bytes > 0


def edit_architecture() -> None:
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    Path("model/config.json").write_text(json.dumps(config))


def add_other_weights() -> None:
    """A shard index takes precedence over a single file."""
    Path("model/part.safetensors").write_bytes(b"part")
    index = {"weight_map": {"a": "part.safetensors"}}
    Path("model/model.safetensors.index.json").write_text(json.dumps(index))


EDITS: dict[str, Callable[[], object]] = {
    "the recipe": lambda: Path("recipe.yaml").write_text(RECIPE + "optim: {gelu_fusion: true}\n"),
    "the weights": lambda: Path("model/model.safetensors").write_bytes(b"MODEL"),
    "the architecture": edit_architecture,
    "other weights": add_other_weights,
    "more data": lambda: put_data(Path("data/b.npz"), 1),
    "data": lambda: put_data(Path("data/a.npz"), 1),
    "data below": lambda: put_data(Path("data/more/c.npz"), 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edit_of_any_input_invalidates_plan(store: Store, edit: Callable[[], object]) -> None:
    before, after = ended_by(edit, store)
    assert not same(before, after)
    assert same(after, fresh(REQUEST, store))


def test_installed_or_changed_package_invalidates_plan(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)

    def install() -> None:
        (packages / "onnxruntime-99.0.dist-info").mkdir()
        forget_installed()

    _, after = ended_by(install, store)
    assert after.graph.node("quantize").toolchain["onnxruntime"] == "99.0"
    forget_installed()


def test_changed_program_code_invalidates_plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_by(lambda: monkeypatch.setattr(uptodate, "_code_state", lambda: "edited"), store)


def test_changed_hub_model_invalidates_plan(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another commit, or by a local folder that takes the place of a hub id of the same name."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--name"
    for commit in ("aaa", "bbb"):
        put_model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa")
    request = Request(None, Overrides(model="org/name"), OUT)
    ended_by(lambda: (repository / "refs" / "main").write_text("bbb"), store, request)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert load(request, store) is None


def test_changed_external_data_invalidates_plan(store: Store) -> None:
    model = onnx.load(save_model(Path("m.onnx"), "MatMul", (1, 64), np.ones((64, 64))))
    onnx.save_model(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    data = Path("m.data").read_bytes()
    request = Request(None, Overrides(onnx=Path("m.onnx")), OUT)
    ended_by(lambda: Path("m.data").write_bytes(b"1" + data[1:]), store, request)
    Path("m.data").unlink()
    assert load(request, store) is None


def test_edit_behind_link_and_parent_path_invalidates_plan(store: Store, tmp_path: Path) -> None:
    """``link/../model`` is next to the folder that the link leads to, not next to the link."""
    project = tmp_path / "project"
    (project / "recipes").mkdir(parents=True)
    for name in ("model", "data"):
        (tmp_path / name).rename(project / name)
    recipe = RECIPE.replace(": model", ": ../model").replace("data}", "../data}")
    (project / "recipes" / "recipe.yaml").write_text(recipe)
    link(tmp_path / "link", project / "recipes")
    request = Request(Path("link/recipe.yaml"), Overrides(), OUT)
    ended_by(lambda: (project / "model" / "model.safetensors").write_bytes(b"MODEL"), store, request)


def test_retargeted_output_link_invalidates_plan(store: Store, tmp_path: Path) -> None:
    """The settings written there name the model relative to that folder."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far" / "away").mkdir(parents=True)
    link(tmp_path / "out", tmp_path / "near")

    def lead_away() -> None:
        (tmp_path / "out").unlink()
        link(tmp_path / "out", tmp_path / "far" / "away")

    _, after = ended_by(lead_away, store)
    assert after.summary.settings["model"] == "../../model"


@pytest.mark.parametrize(
    ("named", "options", "installs"),
    [
        ("openvino", {"ep": "openvino"}, "onnxruntime_openvino"),
        ("openvino", {"device": "gpu"}, "onnxruntime_openvino"),
        ("migraphx", {"device": "gpu"}, "onnxruntime_migraphx"),
    ],
    ids=["the provider's own", "the preferred provider's", "another one's of the device"],
)
def test_provider_installed_in_named_environment_invalidates_plan(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, options: dict[str, Any], installs: str
) -> None:
    monkeypatch.delenv(ENVIRONMENTS_VARIABLE, raising=False)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    venv.create("other", with_pip=False)
    Path("config.toml").write_text(f"[ep.{named}]\nenvironment = 'other'\n", encoding="utf-8")
    packages = next(path for path in Path("other").rglob("site-packages") if path.is_dir())
    request = Request(None, Overrides(onnx=Path("m.onnx"), compile=False, **options), OUT)
    before, after = ended_by(lambda: (packages / f"{installs}-1.0.dist-info").mkdir(), store, request)
    assert (before.summary.notices, before.summary.ep) != (after.summary.notices, after.summary.ep)


@pytest.mark.skipif(not installed(QNN), reason="needs onnxruntime-qnn")
@pytest.mark.parametrize("changed", ["sdk.yaml", f"lib/{host_name()}/{library('QnnIr')}"])
def test_changed_sdk_version_or_library_invalidates_plan(store: Store, changed: str) -> None:
    put_sdk(Path("sdk"))
    settings = {"compiler": "qairt", "qnn_sdk_root": "sdk"}
    request = Request(None, Overrides(onnx=Path("m.onnx"), ep="qnn", settings={"compile": settings}), OUT)
    before, after = ended_by(lambda: Path("sdk", changed).write_text("version: 2.40.0"), store, request)
    assert before.graph.nodes != after.graph.nodes


def switch_link() -> None:
    Path("new").symlink_to("v2", target_is_directory=True)
    Path("new").replace("here")


def rename_folder(name: str = "v1") -> None:
    Path(name).rename("away")
    Path(name.replace("v1", "v2")).rename(name)


MODEL = Request(None, Overrides(onnx=Path("here/m.onnx"), precision="fp32", ep="cpu"), OUT)


@pytest.mark.parametrize(
    ("request_", "change"),
    [
        (REQUEST, switch_link),
        (REQUEST, rename_folder),
        (REQUEST, lambda: rename_folder("v1/data")),
        (MODEL, switch_link),
        (MODEL, rename_folder),
    ],
    ids=["folder, link", "folder, renamed", "folder, data renamed", "--onnx, link", "--onnx, renamed"],
)
@pytest.mark.parametrize(
    ("module", "name"), [(pipeline_plan, "plan_build"), (plan_cache, "save_plan")], ids=["meanwhile", "at the end"]
)
def test_path_retargeted_during_planning_invalidates_plan(
    store: Store, request_: Request, change: Callable[[], None], module: Any, name: str
) -> None:
    """Everything counts as old, however new it is, as on a file system with a late clock."""
    for version in ("v1", "v2"):
        put_project(Path(version))
        Path(version, "script.py").write_text(f"# {version}")
    put_data(Path("v2/data/b.npz"), 2)
    link(Path("here"), Path("v1"))
    recipe = RECIPE.replace(": model", ": here/model").replace("data}", "here/data}")
    Path("recipe.yaml").write_text(recipe.replace("{task", "{user_script: here/script.py, task"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_reading, "SETTLED_NS", -(10**18))
        with changed_before(module, name, change):
            plan_request(request_, store, download=False)
        assert load(request_, store) is None
        plan_request(request_, store, download=False)
        assert load(request_, store) is not None


def test_plan_of_recently_written_files_is_not_cached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file written within a tick of a coarse clock could have changed unnoticed during planning."""
    monkeypatch.setattr(file_reading, "SETTLED_NS", 2 * 10**9)
    monkeypatch.setattr(file_reading, "settled_ns", lambda _: 2 * 10**9)
    plan_request(REQUEST, store, download=False)
    assert load(REQUEST, store) is None


def test_damaged_cache_entry_is_ignored(store: Store) -> None:
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


def test_invalid_header_values_with_valid_checksum_do_not_break_planning(store: Store) -> None:
    """The cache folder may have been written by others."""
    expected = plan_request(REQUEST, store, download=False)
    file = Path(file_of(str(store.folder), str(REQUEST.words)))
    first, rest = file.read_bytes()[16:].split(b"\n", 1)
    header = json.loads(first)
    for name in header:
        for nonsense in ({"a": 1}, [1], "text"):
            if header[name] == nonsense:
                continue
            body = json.dumps({**header, name: nonsense}).encode() + b"\n" + rest
            file.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + body)
            assert same(plan_request(REQUEST, store, download=False), expected), name
