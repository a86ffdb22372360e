"""Another Python environment, which the user names for a provider, reaches the stages that run there.

The environment consists of files, as an installer would leave them: planning starts nothing in it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_store import MemoryRows
from planned_keys import LIBRARY, Warm, plugin_of, reached, stages_of
from reach import BASES, edited

from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import QNN
from winml_dag.errors import UsageError
from winml_dag.pipeline import host as host_module
from winml_dag.pipeline import uptodate as surroundings
from winml_dag.pipeline.assess.measurement import measuring_node
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.stages.evaluate import EVALUATE
from winml_dag.store.digest import Fingerprints

OPENVINO_BUILD = edited(BASES["float"], "ep", "openvino")
RECIPES = {"openvino": OPENVINO_BUILD, "qnn": BASES["static"], "cpu": BASES["cpu"]}
THERE = {"analyze", "compile", "validate"}

if sys.platform == "win32":
    PYTHON, PACKAGES = "Scripts/python.exe", "Lib/site-packages"
else:
    PYTHON, PACKAGES = "bin/python", "lib/python3.11/site-packages"


def make_environment(folder: Path) -> None:
    packages = folder / PACKAGES
    for name in (PYTHON, f"{PACKAGES}/onnxruntime/__init__.py", f"{PACKAGES}/onnxruntime/capi/{LIBRARY}"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    for name in ("onnxruntime_openvino-1.24.1", "numpy-2.4.6", "of_nobody-1.0"):
        (packages / f"{name}.dist-info").mkdir()
    (folder / "pyvenv.cfg").write_text("version = 3.11.7\ninclude-system-site-packages = false\n")


@pytest.fixture
def environment(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment named in a configuration file next to it."""
    make_environment(own_project / ".venv-openvino")
    (own_project / "config.toml").write_text('[ep.openvino]\nenvironment = ".venv-openvino"\n')
    monkeypatch.setenv(CONFIG_VARIABLE, str(own_project / "config.toml"))
    return own_project / ".venv-openvino"


def install(environment: Path, package: str, version: str) -> None:
    packages = environment / PACKAGES
    (old,) = packages.glob(f"{package}-*.dist-info")
    old.rename(packages / f"{package}-{version}.dist-info")


def another_build_of_onnxruntime(environment: Path) -> None:
    install(environment, "onnxruntime_openvino", "1.25.0")


def another_package_that_the_work_uses(environment: Path) -> None:
    install(environment, "numpy", "2.5.0")


def the_same_version_with_another_library(environment: Path) -> None:
    (environment / PACKAGES / "onnxruntime" / "capi" / LIBRARY).write_bytes(b"a fix from the driver's makers")


def a_library_more(environment: Path) -> None:
    (environment / PACKAGES / "onnxruntime" / "capi" / "new.so").write_bytes(b"new")


def another_package(environment: Path) -> None:
    install(environment, "of_nobody", "2.0")


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (another_build_of_onnxruntime, THERE),
        # compile itself does not use numpy
        (another_package_that_the_work_uses, {"analyze", "validate"}),
        (the_same_version_with_another_library, THERE),
        (a_library_more, THERE),
        (another_package, set()),
    ],
)
def test_environment_change_reaches_exactly_its_stages(
    own_project: Path, environment: Path, edit: Callable[[Path], None], expected: set[str]
) -> None:
    warm = {name: Warm(own_project, recipe, name=name) for name, recipe in RECIPES.items()}
    before = {name: each.stages() for name, each in warm.items()}
    assert all(each.stands() for each in warm.values())
    edit(environment)
    after = {name: each.stages() for name, each in warm.items()}
    assert {name for name in warm if reached(before[name], after[name])} == ({"openvino"} if expected else set())
    assert reached(before["openvino"], after["openvino"]) == expected
    assert all(reached(after[name], each.cold()) == set() for name, each in warm.items())


@pytest.mark.usefixtures("environment", "settled")
def test_host_change_reaches_stages_compiled_for_it(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QNN compiles for the chip that an option names."""
    warm = {name: Warm(own_project, recipe, name=name) for name, recipe in RECIPES.items()}
    before = {name: each.stages() for name, each in warm.items()}
    assert all(each.stands() for each in warm.values())
    other = dataclasses.replace(host_module.this_host(), processor="of another kind")
    monkeypatch.setattr(host_module, "this_host", lambda: other)
    monkeypatch.setattr(surroundings, "_machine", lambda: "started another time")
    after = {name: each.stages() for name, each in warm.items()}
    assert {name: reached(before[name], after[name]) for name in warm} == {
        "openvino": THERE,
        "qnn": set(),
        "cpu": set(),
    }


def test_driver_reaches_only_stages_of_its_device(
    own_project: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment.is_dir()
    recipes = {device: edited(OPENVINO_BUILD, "device", device) for device in ("npu", "cpu")}
    keys = []
    for driver in ("1.0", "2.0"):
        host = dataclasses.replace(host_module.this_host(), accelerators=(f"NPU, driver {driver}",))
        monkeypatch.setattr(host_module, "this_host", lambda host=host: host)
        keys.append({device: stages_of(recipe, own_project) for device, recipe in recipes.items()})
    assert reached(keys[0]["npu"], keys[1]["npu"]) == THERE
    assert reached(keys[0]["cpu"], keys[1]["cpu"]) == set()


@pytest.mark.usefixtures("environment")
def test_local_package_does_not_reach_stages_of_environment(
    own_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: stages_of(recipe, own_project) for name, recipe in RECIPES.items()}
    for package in ("onnxruntime", "onnxruntime_qnn", "onnxruntime_gpu", "numpy", "onnx"):
        (tmp_path / "here" / f"{package}-98.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "here")
    (own_project / "packages" / plugin_of(QNN) / LIBRARY).write_bytes(b"a fix for the other provider")
    after = {name: stages_of(recipe, own_project) for name, recipe in RECIPES.items()}
    assert not reached(before["openvino"], after["openvino"]) & THERE
    assert reached(before["openvino"], after["openvino"])  # stages that run here
    assert reached(before["qnn"], after["qnn"]) >= THERE


def test_environment_location_does_not_reach_keys(
    own_project: Path, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stages_of(OPENVINO_BUILD, own_project)
    environment.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=r"ep\.openvino\.environment in .*config\.toml names .*which is not there"):
        stages_of(OPENVINO_BUILD, own_project)
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, f"openvino={tmp_path / 'moved'}")
    assert reached(before, stages_of(OPENVINO_BUILD, own_project)) == set()


@pytest.mark.usefixtures("settled")
def test_configuration_change_invalidates_plan(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initially OpenVINO is a plugin here."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own_project / "settings"))
    monkeypatch.setenv("LOCALAPPDATA", str(own_project / "settings"))
    make_environment(own_project / "other")
    warm = Warm(own_project, OPENVINO_BUILD)
    here = warm.stages()
    assert warm.stands()
    file = own_project / "settings" / "winml_dag" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"[ep.openvino]\nenvironment = {str(own_project / 'other')!r}\n")
    there = warm.stages()
    assert reached(here, there) == THERE
    assert warm.stands()
    file.unlink()
    assert reached(here, warm.stages()) == set()
    assert warm.stands()
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, f"openvino={own_project / 'other'}")
    assert reached(there, warm.stages()) == set()


def test_measurement_uses_environment_of_provider(environment: Path) -> None:
    (environment / PACKAGES / "transformers-98.0.dist-info").mkdir()
    fingerprints, target = Fingerprints(MemoryRows()), resolve_target("openvino", "cpu")
    node = measuring_node(EVALUATE, {}, {}, target, fingerprints, packages=["transformers"])
    assert node.interpreter == environment / PYTHON
    assert node.toolchain["transformers"] == "98.0"
    assert node.toolchain["onnxruntime-openvino"] == "1.24.1"
    assert "onnxruntime" not in node.toolchain
    assert f"openvino library {LIBRARY}" in node.toolchain
    here = measuring_node(EVALUATE, {}, {}, resolve_target("cpu", None), fingerprints, packages=["transformers"])
    assert here.interpreter is None
    assert here.toolchain.keys() == {*EVALUATE.packages, "transformers"}
    assert here.toolchain["transformers"] != "98.0"


@pytest.mark.usefixtures("settled")
def test_cached_plan_keeps_interpreter(own_project: Path, environment: Path) -> None:
    warm = Warm(own_project, OPENVINO_BUILD)
    warm.stages()
    assert warm.stands()
    graph = plan_request(warm.request, warm.store, download=False).graph
    assert {node.stage.name: node.interpreter for node in graph.nodes if node.interpreter} == dict.fromkeys(
        THERE, environment / PYTHON
    )
