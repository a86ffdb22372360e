"""The stages that a tool reaches: packages, execution providers and their libraries, and the stages' own versions.

Packages and libraries are files on the search path, as an installer would leave them; nothing is imported from them.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from model_files import swap
from planned_keys import LIBRARY, Stages, Warm, plugin_of, ranked, reached, stages_of
from reach import BASES, edited
from test_keys_of_configs import STAGES

import winml_dag
from winml_dag.engine.stage import Stage
from winml_dag.ep.registry import QNN, runtime_builds
from winml_dag.installed import installed_distributions
from winml_dag.pipeline import line
from winml_dag.stages import sensitivity

RUNTIME_BUILDS = runtime_builds()
# The stages that a version reaches in "static" and, where that differs, with some kind of data. All others: none.
PACKAGES = {
    "torch": "export",
    "transformers": "export",
    "onnxscript": "export optimize analyze",
    "onnx-ir": "export optimize analyze quantize",
    "onnx": "export optimize analyze calibrate quantize compile validate finalize",
    "numpy": "optimize analyze calibrate quantize validate",
    "onnxruntime": "optimize analyze calibrate quantize compile validate",
    **dict.fromkeys(RUNTIME_BUILDS, "optimize analyze calibrate quantize compile validate"),
    "onnxruntime-qnn": "analyze compile validate",
}
# Packages that reach the ranking of nodes.
PACKAGES_OF_SENSITIVITY = ("onnx-ir", "onnx", "numpy", "onnxruntime", *RUNTIME_BUILDS, "matplotlib")
# Packages that reach normalize, which "static" does not have.
PACKAGES_OF_NORMALIZE = ("onnx", "numpy", "onnxruntime", *RUNTIME_BUILDS)
_TOKENIZER = {
    "transformers": "export calibrate validate",
    "tokenizers": "calibrate validate",
    "sentencepiece": "calibrate validate",
}
_IMAGES = {"transformers": "export calibrate validate", "pillow": "calibrate validate"}
PACKAGES_WITH_DATA: Mapping[str, Mapping[str, str]] = {
    "data.npz": {},
    "data.txt": _TOKENIZER,
    "photo.png": _IMAGES,
    "rows/train.jsonl": {**_TOKENIZER, **_IMAGES},
    "rows.parquet": {**_TOKENIZER, **_IMAGES, "pyarrow": "calibrate validate"},
}
# Imported by the work of a stage but not in its key, because they do not affect its output bytes.
SHAPES_NOTHING = {
    ("export", "numpy"),  # compares the outputs of the exported model with PyTorch's
    ("export", "onnxruntime"),  # runs the exported model for that
    # A digest is the same in every version.
    *((stage, "xxhash") for stage in ("export", "calibrate", "validate", "sensitivity")),
    # Reads winml-cli's tables, whose values are the same in every version.
    ("analyze", "pyarrow"),
    # Locates the user's configuration file.
    *((stage, "platformdirs") for stage in STAGES),
}
_IMPORTED_AS = {
    "onnx_ir": "onnx-ir",
    "PIL": "pillow",
    "google": "onnx",
}  # protobuf comes with onnx, as its errors and messages


@dataclasses.dataclass
class Installation:
    """Installs packages as an installer does, each time in a separate folder at the front of the search path."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def install(self, package: str, version: str) -> None:
        folder = self.folder / f"{package}-{version}"
        (folder / f"{package.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
        self.monkeypatch.syspath_prepend(folder)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    return Installation(tmp_path / "installed", monkeypatch)


@pytest.mark.parametrize("data", [None, *PACKAGES_WITH_DATA])
def test_package_reaches_exactly_its_stages(project: Path, installation: Installation, data: str | None) -> None:
    expected = PACKAGES if data is None else {**PACKAGES, **PACKAGES_WITH_DATA[data]}
    recipe = BASES["static"] if data is None else edited(BASES["text"], "quant.calibration_data", data)
    before = stages_of(recipe, project)
    for package, stages in expected.items():
        installation.install(package, "98.0")
        after = stages_of(recipe, project)
        assert reached(before, after) == set(stages.split()), package
        before = after
    for package in installed_distributions().keys() - expected.keys():
        installation.install(package, "98.0")
    installation.install("something-new", "1.0")
    assert reached(before, stages_of(recipe, project)) == set()


def test_package_reaches_sensitivity_only_if_declared(project: Path, installation: Installation) -> None:
    before = ranked(project)
    for package in {*PACKAGES, *PACKAGES_OF_SENSITIVITY}:
        installation.install(package, "98.0")
        after = ranked(project)
        assert ("sensitivity" in reached(before, after)) == (package in PACKAGES_OF_SENSITIVITY), package
        before = after


def test_package_reaches_normalize_only_if_declared(project: Path, installation: Installation) -> None:
    before = stages_of(BASES["open"], project)
    for package in {*PACKAGES, *PACKAGES_OF_NORMALIZE}:
        installation.install(package, "98.0")
        after = stages_of(BASES["open"], project)
        assert ("normalize" in reached(before, after)) == (package in PACKAGES_OF_NORMALIZE), package
        before = after


def test_every_declared_package_is_in_table() -> None:
    declared = {(name, package) for name, stage in STAGES.items() for package in stage.packages}
    written = {(name, package) for package, stages in PACKAGES.items() for name in stages.split()}
    beside = ("normalize", "sensitivity")
    assert declared - written == {(stage, package) for stage in beside for package in STAGES[stage].packages}
    assert {*STAGES["normalize"].packages} <= {*PACKAGES_OF_NORMALIZE}
    assert {*STAGES["sensitivity"].packages} <= {*PACKAGES_OF_SENSITIVITY}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_declares_every_imported_package(stage: str) -> None:
    """Found in the source of the work and of its imports from this package, anywhere in a file."""
    readers = [item for packages in PACKAGES_WITH_DATA.values() for item in packages.items()]
    # The ranking of nodes reads the same data as validate.
    reader = "validate" if stage == "sensitivity" else stage
    with_data = {package for package, stages in readers if reader in stages.split()}
    known = {*STAGES[stage].packages, *with_data, *(package for name, package in SHAPES_NOTHING if name == stage)}
    found = {_IMPORTED_AS.get(name, name) for name in foreign_imports(STAGES[stage].work.partition(":")[0])}
    assert found - known == set()
    if stage != "finalize":
        assert found & known  # it reads the right files


# Packages below stages, except the engine and the store, which do not affect content.
_ROOMS = ("winml_dag.stages", "winml_dag.onnxmodel", "winml_dag.ep")


def foreign_imports(module: str) -> set[str]:
    """Return top-level names of the packages that *module* and its imports from this package import when they run."""
    found, seen, to_read = set(), {module}, [module]
    while to_read:
        for name in imports_in(source_file(to_read.pop())):
            if name.startswith(_ROOMS) and name not in seen and source_file(name).is_file():
                seen.add(name)
                to_read.append(name)
            elif not name.startswith("winml_dag") and name.partition(".")[0] not in sys.stdlib_module_names:
                found.add(name.partition(".")[0])
    return found


def source_file(module: str) -> Path:
    path = Path(winml_dag.__file__).parents[1].joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imports_in(file: Path) -> tuple[str, ...]:
    """Return the names that the source *file* imports when it runs, anywhere in it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING"
        for inner in ast.walk(outer)
    }
    found: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import) and statement not in for_types:
            found += (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement not in for_types:
            assert statement.module is not None
            found += (statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names))
    return tuple(found)


@pytest.mark.parametrize("stage", STAGES)
def test_stage_version_reaches_only_its_stage(project: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def planned() -> Stages:
        base = "open" if stage == "normalize" else "static"
        return ranked(project) if stage == "sensitivity" else stages_of(BASES[base], project)

    def raised(declared: Stage) -> Stage:
        return dataclasses.replace(declared, version=declared.version + 1)

    before = planned()
    if stage == "sensitivity":
        monkeypatch.setattr(sensitivity, "SENSITIVITY", raised(sensitivity.SENSITIVITY))
    else:
        monkeypatch.setattr(line, "LINE", {**line.LINE, stage: raised(STAGES[stage])})
    monkeypatch.setattr(line, "quantize_stage", lambda _mode: line.LINE["quantize"])
    assert reached(before, planned()) == {stage}


def edit_library(package: Path) -> None:
    (package / LIBRARY).write_bytes(b"a fix from the driver's makers")


def edit_the_first_of_two_libraries_of_one_name(package: Path) -> None:
    (package / "arm64" / LIBRARY).write_bytes(b"a fix for one of them")


def swap_two_libraries_of_one_name(package: Path) -> None:
    swap(package / "arm64" / LIBRARY, package / "x64" / LIBRARY)


def swap_two_libraries(package: Path) -> None:
    swap(package / LIBRARY, package / "backend.dll")


def rename_a_library(package: Path) -> None:
    (package / LIBRARY).rename(package / "renamed.so")


def add_a_library(package: Path) -> None:
    (package / "new.so.1.7").write_bytes(b"new")


def add_a_library_to_a_folder_that_had_none(package: Path) -> None:
    (package / "nothing yet" / "new.so").write_bytes(b"new")


def remove_a_library(package: Path) -> None:
    (package / "backend.dll").unlink()


@pytest.fixture
def package(own_project: Path) -> Path:
    """QNN's package, with more libraries."""
    folder = own_project / "packages" / plugin_of(QNN)
    for name in ("backend.dll", f"arm64/{LIBRARY}", f"x64/{LIBRARY}", "nothing yet/readme.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "edit",
    [
        edit_library,
        edit_the_first_of_two_libraries_of_one_name,
        swap_two_libraries_of_one_name,
        swap_two_libraries,
        rename_a_library,
        add_a_library,
        add_a_library_to_a_folder_that_had_none,
        remove_a_library,
    ],
)
def test_provider_library_reaches_analyze_compile_and_validate(
    own_project: Path, package: Path, edit: Callable[[Path], None]
) -> None:
    warm = {base: Warm(own_project, BASES[base], name=base) for base in ("static", "cpu")}
    before = {base: each.stages() for base, each in warm.items()}
    assert all(each.stands() for each in warm.values())
    edit(package)
    after = {base: each.stages() for base, each in warm.items()}
    assert reached(before["static"], after["static"]) == {"analyze", "compile", "validate"}
    assert reached(before["cpu"], after["cpu"]) == set()
    assert all(reached(after[base], each.cold()) == set() for base, each in warm.items())


def test_library_location_and_neighbours_do_not_reach_keys(
    own_project: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stages_of(BASES["static"], own_project)
    (package / "readme.txt").write_bytes(b"new")
    assert reached(before, stages_of(BASES["static"], own_project)) == set()
    (own_project / "packages").rename(own_project / "elsewhere")
    monkeypatch.syspath_prepend(own_project / "elsewhere")
    assert reached(before, stages_of(BASES["static"], own_project)) == set()
