"""What a manifest records about its build: CI runs, wheels, and locations of sources; and its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.engine.stage import Source, SourceFile
from winml_dag.installed import distribution_version
from winml_dag.pipeline.build_info import asked_for, record_digest, source_json, wheel_records
from winml_dag.pipeline.manifest import manifest_text, with_part
from winml_dag.pipeline.request import Overrides
from winml_dag.recipe.load import load_recipe
from winml_dag.stages import artifact_types
from winml_dag.store.remote.ci import CiRun, ci_run

COMMIT = "0123456789abcdef0123456789abcdef01234567"

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "org/models",
    "GITHUB_WORKFLOW_REF": "org/models/.github/workflows/build.yml@refs/heads/main",
    "GITHUB_RUN_ID": "12",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_SHA": COMMIT,
}
AZURE = {
    "TF_BUILD": "True",
    "SYSTEM_COLLECTIONURI": "https://dev.azure.com/org/",
    "SYSTEM_TEAMPROJECT": "My Models",
    "SYSTEM_DEFINITIONID": "3",
    "BUILD_BUILDID": "44",
    "BUILD_REPOSITORY_URI": "https://somebody:secret@dev.azure.com/org/models/_git/models",
    "BUILD_SOURCEVERSION": COMMIT,
}
GITLAB = {
    "GITLAB_CI": "true",
    "CI_PROJECT_URL": "https://gitlab.com/org/models",
    "CI_JOB_URL": "https://gitlab.com/org/models/-/jobs/7",
    "CI_RUNNER_ID": "9",
    "CI_COMMIT_SHA": COMMIT,
}


def test_ci_run_urls_are_recorded_per_system() -> None:
    repository = "https://github.com/org/models"
    workflow = f"{repository}/.github/workflows/build.yml@refs/heads/main"
    assert ci_run(GITHUB) == CiRun(workflow, f"{repository}/actions/runs/12/attempts/2", repository, COMMIT)
    project = "https://dev.azure.com/org/My%20Models"
    azure = ci_run(AZURE)
    assert azure is not None
    assert (azure.builder, azure.run) == (
        f"{project}/_build?definitionId=3",
        f"{project}/_build/results?buildId=44",
    )
    assert azure.repository == "https://dev.azure.com/org/models/_git/models"  # without a password
    gitlab = "https://gitlab.com/org/models"
    assert ci_run(GITLAB) == CiRun(f"{gitlab}/-/runners/9", f"{gitlab}/-/jobs/7", gitlab, COMMIT)


@pytest.mark.parametrize("environment", [{}, {"CI": "true"}, {"GITHUB_ACTIONS": "true"}, {"TF_BUILD": "True"}])
def test_unidentified_ci_system_has_no_run(environment: dict[str, str]) -> None:
    assert ci_run(environment) is None


_WHEEL = ("pkg/__init__.py,sha256=aa,1", 'pkg/"a, b".py,sha256=bb,2', "pkg-1.0.dist-info/METADATA,sha256=cc,3")
_INSTALLERS = (
    "pkg/__pycache__/__init__.cpython-311.pyc,,",
    "../../../bin/pkg,sha256=dd,4",
    "pkg-1.0.dist-info/INSTALLER,sha256=ee,5",
    "pkg-1.0.dist-info/RECORD,,",
    "pkg-1.0.dist-info/REQUESTED,sha256=ff,0",
    "pkg-1.0.dist-info/direct_url.json,sha256=00,9",
)


@settings(max_examples=20)
@given(lines=st.permutations([*_WHEEL, *_INSTALLERS]), added=st.sets(st.sampled_from(_INSTALLERS)))
def test_installer_lines_do_not_change_record_digest(lines: list[str], added: set[str]) -> None:
    kept = [line for line in lines if line in _WHEEL or line in added]
    assert record_digest("\r\n".join(kept)) == record_digest("\n".join(_WHEEL))


@settings(max_examples=10)
@given(place=st.integers(0, len(_WHEEL) - 1))
def test_changed_wheel_file_changes_record_digest(place: int) -> None:
    changed = [line.replace("sha256=", "sha256=x") if at == place else line for at, line in enumerate(_WHEEL)]
    assert record_digest("\n".join(changed)) != record_digest("\n".join(_WHEEL))


def test_only_exact_installed_version_has_wheel_record() -> None:
    version = distribution_version("numpy")
    assert version is not None
    assert wheel_records({"numpy": version}).keys() == {"numpy"}
    assert wheel_records({"numpy": "0.0.1", "nothing-of-that-name": "1.0"}) == {}


def _source(folder: Path, *names: str, kind: str = artifact_types.MODEL_FOLDER) -> Source:
    return Source("source", kind, tuple(SourceFile(name, folder / name) for name in names))


def test_source_location_is_relative_to_output(tmp_path: Path) -> None:
    out = tmp_path / "out"
    environ = source_json(_source(tmp_path / "data", "a.npy", "sub/b.npy", kind="calibration data"), out)
    assert environ == {"kind": "calibration data", "folder": "../data"}
    renamed = Source("model", "onnx", (SourceFile("export.onnx", tmp_path / "net.onnx"),))
    assert source_json(renamed, out) == {"kind": "onnx", "folder": "..", "names": {"export.onnx": "net.onnx"}}


@pytest.mark.parametrize(
    ("card", "license_"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n", "apache-2.0"),
        ("---\nlicense: 'mit'\n---\n", "mit"),
        ("# A model\nlicense: mit\n", None),
        ("---\nlicense: [mit, gpl]\n---\n", None),
    ],
)
def test_hub_source_records_commit_and_license(tmp_path: Path, card: str, license_: str | None) -> None:
    folder = tmp_path / "models--org--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(card)
    environ = source_json(_source(folder, "config.json"), tmp_path / "out")
    assert environ["hub"] == {"kind": "models", "name": "org/name", "revision": COMMIT}
    assert "folder" not in environ  # the location of the hub cache is specific to this machine
    assert environ.get("license") == license_


def test_recipe_and_options_are_recorded_as_written(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: net.onnx\nquant: {samples: 4}\nstages: {own: {command: [cp, a, b]}}\n")
    asked = asked_for(load_recipe(recipe), Overrides(ep="cpu", onnx=Path("a/b.onnx"), quant=False))
    assert asked["options"] == {"ep": "cpu", "onnx": "a/b.onnx", "quant": False}
    environ = asked["recipe"]
    assert isinstance(environ, dict)
    assert environ["file"] == "recipe.yaml"
    assert environ["says"] == {"model": "net.onnx", "quant": {"samples": 4}}


NAMES = st.text("abc-_/0.", min_size=1, max_size=6)


def manifest(stages: dict[str, str], sources: dict[str, str], time: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "timestamp": time,
        "elapsed_seconds": 1.5,
        "notices": [],
        "sources": {name: [{"name": name, "digest": digest}] for name, digest in sources.items()},
        "stages": [{"id": name, "name": "command", "cache_key": key} for name, key in stages.items()],
        "files": [],
    }


@settings(max_examples=40)
@given(
    stages=st.dictionaries(NAMES, NAMES, max_size=5),
    sources=st.dictionaries(NAMES.map("x/{}".format), NAMES, max_size=5),
    data=st.data(),
)
def test_manifest_part_replaces_only_its_own_lines(
    stages: dict[str, str], sources: dict[str, str], data: st.DataObject
) -> None:
    part_stages = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(stages, NAMES)))
    part_sources = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(sources, NAMES)))
    whole = manifest_text(manifest(stages, sources, "before"))
    found = with_part(whole, manifest(part_stages, part_sources, "after"))
    says_more = (stages | part_stages, sources | part_sources) != (stages, sources)
    when = "after" if says_more else "before"
    assert found == manifest_text(manifest(stages | part_stages, sources | part_sources, when))


def test_manifest_is_json_with_one_line_per_stage() -> None:
    value = manifest({"one": "1", "two": "2"}, {"a/b": "c"}, "now")
    text = manifest_text(value).decode()
    assert json.loads(text) == value
    assert [line for line in text.splitlines() if '"id"' in line] == [
        '{"id": "one", "name": "command", "cache_key": "1"},',
        '{"id": "two", "name": "command", "cache_key": "2"}',
    ]
