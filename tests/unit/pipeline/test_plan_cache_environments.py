"""A plan depends on the environments named for its target, even if nothing runs in them, and on the compiling SDK."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from pipeline_samples import save_model

from winml_dag import file_reading
from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE
from winml_dag.ep.availability import installed
from winml_dag.ep.qairt import CONVERTER, GENERATOR, host_name, library, program
from winml_dag.ep.registry import QNN
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.uptodate import check
from winml_dag.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_reading, "SETTLED_NS", 0)
    monkeypatch.delenv(ENVIRONMENTS_VARIABLE, raising=False)
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    save_model(tmp_path / "model.onnx")
    Path("config.toml").touch()
    venv.create(tmp_path / "other", with_pip=False)
    return Store(tmp_path / "cache")


def install(name: str) -> None:
    packages = next(path for path in Path("other").rglob("site-packages") if path.is_dir())
    (packages / f"{name}-1.0.dist-info").mkdir()


def stands(request: Request, store: Store) -> bool:
    return check(str(store.folder), str(request.words)) is not None


@pytest.mark.parametrize(
    ("named", "overrides", "installs"),
    [
        ("openvino", Overrides(onnx=Path("model.onnx"), ep="openvino", compile=False), "onnxruntime-openvino"),
        ("openvino", Overrides(onnx=Path("model.onnx"), device="gpu", compile=False), "onnxruntime-openvino"),
        ("migraphx", Overrides(onnx=Path("model.onnx"), device="gpu", compile=False), "onnxruntime-migraphx"),
    ],
    ids=["the provider's own", "the preferred provider's", "another one's of the device"],
)
def test_a_provider_that_is_installed_there_ends_a_plan_that_does_without(
    store: Store, named: str, overrides: Overrides, installs: str
) -> None:
    Path("config.toml").write_text(f"[ep.{named}]\nenvironment = 'other'\n", encoding="utf-8")
    request = Request(None, overrides, Path("out"))
    before = plan_request(request, store, download=False).summary
    assert stands(request, store)
    install(installs.replace("-", "_"))
    assert not stands(request, store)
    after = plan_request(request, store, download=False).summary
    assert (before.notices, before.ep) != (after.notices, after.ep)


@pytest.mark.skipif(not installed(QNN), reason="needs onnxruntime-qnn")
@pytest.mark.parametrize("changed", ["sdk.yaml", f"lib/{host_name()}/{library('QnnIr')}"])
def test_another_version_or_library_of_the_sdk_ends_a_plan(store: Store, changed: str) -> None:
    programs, libraries = Path("sdk/bin", host_name()), Path("sdk/lib", host_name())
    for folder, names in (
        (programs, (CONVERTER, program(GENERATOR))),
        (libraries, (library("QnnHtp"), library("QnnHtpNetRunExtensions"))),
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    Path("sdk/sdk.yaml").write_text("version: 2.39.0", encoding="utf-8")
    settings = {"compiler": "qairt", "qnn_sdk_root": "sdk"}
    request = Request(None, Overrides(onnx=Path("model.onnx"), ep="qnn", settings={"compile": settings}), Path("out"))
    before = plan_request(request, store, download=False).graph.nodes
    assert stands(request, store)
    Path("sdk", changed).write_text("version: 2.40.0", encoding="utf-8")
    assert not stands(request, store)
    assert before != plan_request(request, store, download=False).graph.nodes
