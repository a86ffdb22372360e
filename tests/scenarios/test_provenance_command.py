"""Provenance documents of builds: they are correct, their own libraries accept them, and a folder is checked
with them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import Parse
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage
from oneprocess import OneProcess
from onnx_samples import perceptron, samples
from scenario import Project

from winml_dag.cli import run
from winml_dag.errors import InputError, StoreError
from winml_dag.names import is_safe_part
from winml_dag.pipeline.manifest import manifest_text
from winml_dag.report.provenance.against import check_against, read_document
from winml_dag.report.provenance.document import documents_of
from winml_dag.report.provenance.facts import without_places
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_file

SWEEP: dict[str, Any] = {
    "ep": "cpu",
    "quant": {"calibration_data": "data.npz"},
    "matrix": {"model": ["net.onnx"], "precision": ["fp32", "w8a8"]},
}
FORMATS = ("slsa", "cyclonedx")
Says = Callable[..., str]


@pytest.fixture(scope="module")
def built(commands: OneProcess | None, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A sweep of two cells. Do not change it."""
    project = Project(tmp_path_factory.mktemp("told"), commands)
    perceptron(project.folder / "net.onnx", width=16, classes=4)
    samples(project.folder / "data.npz", width=16)
    (project.folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP), encoding="utf-8")
    finished = project.run("build", "-c", "sweep.yaml", "-o", "out", "--no-analyze")
    assert finished.returncode == 0, finished.stderr
    return project


@pytest.fixture
def cell(built: Project) -> Path:
    """The folder of one build. Do not change it."""
    return built.out / "net" / "w8a8"


@pytest.fixture
def out(built: Project, tmp_path: Path) -> Path:
    """A copy of that build, without its sources."""
    shutil.copytree(built.out / "net" / "w8a8", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    def says(*arguments: str | Path, code: int = 0) -> str:
        capsys.readouterr()
        assert run([str(each) for each in arguments]) == code
        told, messages = capsys.readouterr()
        return told + messages

    return says


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def told_of(folder: Path, format_: str) -> dict[str, Any]:
    (document,) = documents_of(folder, format_)
    value: dict[str, Any] = json.loads(document.text)
    return value


def document_of(folder: Path, format_: str, place: Path) -> Path:
    (document,) = documents_of(folder, format_)
    place.write_text(document.text, encoding="utf-8")
    return place


def test_a_statement_tells_what_came_out_and_what_it_was_made_from(cell: Path, built: Project) -> None:
    (document,) = documents_of(cell, "slsa")
    Statement.copy_from_pb(Parse(document.text, StatementMessage())).validate()
    value = json.loads(document.text)
    Parse(json.dumps(value["predicate"]), Provenance())

    assert [(each["name"], each["digest"]["sha256"]) for each in value["subject"]] == [
        ("model.onnx", sha256(cell / "model.onnx"))
    ]
    definition, details = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    said = definition["externalParameters"]["recipe"]
    assert (said["says"]["precision"], said["says"]["ep"]) == ("w8a8", "cpu")
    assert said["digest"] == f"sha256:{sha256(built.folder / 'sweep.yaml')}"
    decided = json.loads((cell / "winml_build_config.json").read_text())
    assert definition["internalParameters"]["settings"] == without_places(decided)
    made_from = {each["name"]: each["digest"] for each in definition["resolvedDependencies"] if "digest" in each}
    assert made_from["export.onnx"] == {"sha256": sha256(built.folder / "net.onnx")}
    assert made_from["data.npz"] == {"sha256": sha256(built.folder / "data.npz")}
    assert len(made_from["onnxruntime"]["wheelRecord"]) == 64
    byproducts = {each["name"]: each["digest"].get("sha256") for each in details["byproducts"]}
    for name in ("optimized.onnx", "quantized.onnx", "build_manifest.json", "winml_build_config.json"):
        assert byproducts[name] == sha256(cell / name)
    manifest = json.loads((cell / "build_manifest.json").read_text())
    assert details["metadata"]["finishedOn"][:19] == manifest["timestamp"][:19]
    assert details["metadata"]["startedOn"] <= details["metadata"]["finishedOn"]
    assert details["builder"]["version"]["winml_dag"]


def test_a_bill_of_a_sweep_has_every_model_with_what_it_was_made_from(built: Project) -> None:
    (document,) = documents_of(built.out, "cyclonedx")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.text) is None
    value = json.loads(document.text)
    components = {each["bom-ref"]: each for each in value["components"]}
    models = [each for each in components.values() if each["type"] == "machine-learning-model"]
    assert {each["bom-ref"] for each in models} == {"model:net/fp32/model.onnx", "model:net/w8a8/model.onnx"}
    small = components["model:net/w8a8/model.onnx"]
    assert small["hashes"] == [{"alg": "SHA-256", "content": sha256(built.out / "net" / "w8a8" / "model.onnx")}]
    (source,) = small["pedigree"]["ancestors"]
    assert source["components"][0]["hashes"][0]["content"] == sha256(built.folder / "net.onnx")
    assert {each["name"]: each["value"] for each in small["properties"]}["winml_dag:precision"] == "w8a8"
    (data,) = (each for each in components.values() if each["type"] == "data")
    assert data["components"][0]["hashes"][0]["content"] == sha256(built.folder / "data.npz")


def references(value: Any) -> set[str]:
    """Return everything that a bill refers to."""
    if isinstance(value, dict):
        own = {text for name, text in value.items() if name == "ref" and isinstance(text, str)}
        own |= set(value["dependsOn"]) if "dependsOn" in value else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def names(value: Any) -> list[str]:
    """Return everything in a bill that can be referred to."""
    if isinstance(value, dict):
        own = [value["bom-ref"]] if "bom-ref" in value else []
        return own + [name for inner in value.values() for name in names(inner)]
    return [name for inner in value for name in names(inner)] if isinstance(value, list) else []


def test_what_a_bill_refers_to_is_in_it_once(built: Project) -> None:
    value = told_of(built.out, "cyclonedx")
    assert len(names(value)) == len(set(names(value)))
    assert references(value) <= set(names(value))


@pytest.mark.parametrize("format_", FORMATS)
def test_a_compiled_model_is_told_with_its_binary(built_project: Project, tmp_path: Path, format_: str) -> None:
    document = document_of(built_project.out, format_, tmp_path / "document.json")
    listed = {file.path: file for file in read_document(document)[1]}
    assert listed["model_qnn.bin"].is_output
    assert not listed["compiled_qnn.bin"].is_output
    assert listed["model_qnn.bin"].sha256 == sha256(built_project.out / "model_qnn.bin")
    assert check_against(built_project.out, document).is_intact
    text = document.read_text(encoding="utf-8")
    assert all(
        re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.%-]+", found) for found in re.findall(r'"(pkg:pypi/[^"#]+@[^"]*)"', text)
    )
    if format_ == "slsa":
        assert "qnn library libQnnHtp.so" in text  # a tool identified by content, and no distribution


@pytest.mark.parametrize("format_", FORMATS)
def test_the_same_build_gives_the_same_bytes(cell: Path, format_: str, tmp_path: Path, says: Says) -> None:
    for name in ("one", "two"):
        says("provenance", cell, "--format", format_, "-o", tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert says("provenance", cell, "-f", format_) == (tmp_path / "one").read_text(encoding="utf-8")


@pytest.mark.parametrize("format_", FORMATS)
def test_a_changed_or_missing_output_is_found(cell: Path, out: Path, format_: str, tmp_path: Path, says: Says) -> None:
    document = document_of(cell, format_, tmp_path / "document.json")
    assert "Intact: " in says("verify", out, "--against", document)
    (out / "notes.txt").write_text("mine")
    (out / "optimized.onnx").unlink()
    told = says("verify", out, "--against", document)
    assert f"missing by-product: {out / 'optimized.onnx'}" in told
    assert f"not in the document: {out / 'notes.txt'}" in told
    content = bytearray((out / "model.onnx").read_bytes())
    content[-1] ^= 1
    (out / "model.onnx").write_bytes(content)
    assert f"changed: {out / 'model.onnx'}" in says("verify", out, "--against", document, code=1)
    assert "Not intact" in says("verify", out / "model.onnx", "--against", document, code=1)
    (out / "model.onnx").unlink()
    told = says("verify", out, "--against", document, "-f", "json", code=1)
    (folder,) = json.loads(told)["folders"]
    assert folder["sound"] is False
    assert folder["format"] == format_
    assert [file["found"] for file in folder["files"] if file["path"] == str(out / "model.onnx")] == ["missing"]
    assert (folder["left_out"], folder["extra"]) == (["optimized.onnx"], ["notes.txt"])


@pytest.mark.parametrize("format_", FORMATS)
def test_a_changed_by_product_is_found_too(cell: Path, out: Path, format_: str, tmp_path: Path, says: Says) -> None:
    document = document_of(cell, format_, tmp_path / "document.json")
    (out / "quantized.onnx").write_bytes(b"other")
    assert "changed: " in says("verify", out, "--against", document, code=1)


@pytest.mark.skipif(sys.platform == "win32", reason="links take rights there")
def test_a_link_is_no_file_of_a_build(cell: Path, out: Path, tmp_path: Path, says: Says) -> None:
    document = document_of(cell, "slsa", tmp_path / "document.json")
    (out / "model.onnx").unlink()
    (out / "model.onnx").symlink_to(cell / "model.onnx")
    assert "a link is in its place" in says("verify", out, "--against", document, code=1)


def test_of_a_folder_that_is_not_as_it_was_built_nothing_is_told(out: Path, tmp_path: Path, says: Says) -> None:
    (out / "quantized.onnx").write_bytes(b"other")
    told = says("provenance", out, "-f", "slsa", "-o", tmp_path / "document.json", code=3)
    assert "quantized.onnx is changed" in told
    assert not (tmp_path / "document.json").exists()


@pytest.mark.parametrize("format_", FORMATS)
def test_an_intermediate_that_was_deleted_is_left_out(out: Path, format_: str) -> None:
    names = _names(told_of(out, format_))
    (out / "quantized.onnx").unlink()
    assert names - _names(told_of(out, format_)) == {"quantized.onnx"}


def _names(value: Any) -> set[str]:
    """Return all names in a document."""
    if isinstance(value, list):
        return {name for each in value for name in _names(each)}
    if not isinstance(value, dict):
        return set()
    own = {value["name"]} if isinstance(value.get("name"), str) else set()
    return own | {name for each in value.values() for name in _names(each)}


def test_each_build_of_a_sweep_has_a_statement_that_is_about_its_own_folder(
    built: Project, tmp_path: Path, says: Says
) -> None:
    assert "2 builds, each with a statement" in says("provenance", built.out, "-f", "slsa", code=2)
    says("provenance", built.out, "-f", "slsa", "-o", tmp_path / "told")
    assert "Intact: " in says(
        "verify", built.out / "net" / "fp32", "--against", tmp_path / "told" / "net" / "fp32.slsa.json"
    )


def test_sources_that_are_gone_are_told_by_what_was_noted_of_them(out: Path) -> None:
    value = told_of(out, "slsa")
    made_from = {each["name"]: each for each in value["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert made_from["data.npz"]["digest"].keys() == {"xxh3_128"}


@pytest.mark.parametrize("format_", FORMATS)
def test_an_older_manifest_tells_less(out: Path, format_: str, tmp_path: Path) -> None:
    manifest = json.loads((out / "build_manifest.json").read_text())
    for stage in manifest["stages"]:
        stage.pop("log", None)
    del manifest["run"]
    (out / "build_manifest.json").write_bytes(manifest_text(manifest))
    assert check_against(out, document_of(out, format_, tmp_path / "document.json")).is_intact


def test_a_commit_of_the_hub_and_a_run_of_ci_are_told(out: Path) -> None:
    commit, repository = "0123456789abcdef0123456789abcdef01234567", "https://github.com/org/models"
    manifest = json.loads((out / "build_manifest.json").read_text())
    (model,) = (name for name in manifest["sources"] if name.endswith("net.onnx"))
    hub = {"kind": "models", "name": "org/net", "revision": commit}
    manifest["run"]["sources"][model] = {"kind": "onnx", "hub": hub, "license": "apache-2.0"}
    ci = {
        "builder": f"{repository}/ci.yml",
        "run": f"{repository}/runs/1",
        "repository": repository,
        "revision": commit,
    }
    manifest["run"]["ci"] = ci
    (out / "build_manifest.json").write_bytes(manifest_text(manifest))

    predicate = told_of(out, "slsa")["predicate"]
    found = {
        each["uri"]: each.get("digest")
        for each in predicate["buildDefinition"]["resolvedDependencies"]
        if "uri" in each
    }
    assert found[f"git+{repository}@{commit}"] == {"gitCommit": commit}
    assert found[f"git+https://huggingface.co/org/net@{commit}"] == {"gitCommit": commit}
    assert predicate["runDetails"]["builder"]["id"] == ci["builder"]
    assert predicate["runDetails"]["metadata"]["invocationId"] == ci["run"]
    components = told_of(out, "cyclonedx")["components"]
    (shipped,) = (each for each in components if each["type"] == "machine-learning-model")
    assert shipped["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert shipped["pedigree"]["ancestors"][0]["purl"] == f"pkg:huggingface/org/net@{commit}"


def test_asking_otherwise_for_the_same_build_changes_no_manifest(built: Project) -> None:
    again = ("build", "-m", "net.onnx", "-p", "fp32", "--ep", "cpu", "--no-analyze", "-o", "again")
    assert built.run(*again).returncode == 0
    before = built.contents("again")["build_manifest.json"]
    asked = json.loads(before)["run"]["asked"]
    assert asked == {
        "recipe": None,
        "options": {"model": "net.onnx", "precision": "fp32", "ep": "cpu", "analyze": False},
    }
    assert built.run(*again, "--max-optim-iterations", "2").returncode == 0
    assert built.contents("again")["build_manifest.json"] == before


def test_where_things_lay_is_not_told(built: Project, tmp_path: Path) -> None:
    data = ("--input-data", "data.npz")
    far = tmp_path / "far"
    again = built.run(
        "build", "-m", str(built.folder / "net.onnx"), "--ep", "cpu", "--no-analyze", *data, "-o", str(far)
    )
    assert again.returncode == 0, again.stderr
    for format_ in FORMATS:
        (document,) = documents_of(far, format_)
        assert built.folder.name not in document.text
    asked = told_of(far, "slsa")["predicate"]["buildDefinition"]["externalParameters"]
    assert asked["options"]["model"] == "net.onnx"
    assert asked["options"]["settings"] == {"validate": {"input_data": "data.npz"}}


def test_a_signed_envelope_is_read_as_the_statement_in_it(cell: Path, tmp_path: Path) -> None:
    (statement,) = documents_of(cell, "slsa")
    payload = base64.b64encode(statement.text.encode()).decode()
    envelope = {"payloadType": "application/vnd.in-toto+json", "payload": payload, "signatures": [{"sig": ""}]}
    for name, value in {"envelope": envelope, "bundle": {"dsseEnvelope": envelope}}.items():
        (tmp_path / name).write_text(json.dumps(value))
        assert check_against(cell, tmp_path / name).is_intact


def test_files_in_the_folder_of_a_recipe_are_told_where_they_lie(tmp_path: Path, says: Says) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "a.txt").write_text("source")
    copy = {"command": ["cp", "{inputs.text}", "{outputs.copy}"]}
    stages = {"copy": {**copy, "inputs": {"text": "a.txt"}, "outputs": {"copy": "sub/b ü.txt"}}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))
    elsewhere = tmp_path / "elsewhere"
    for arguments in ((), ("-o", str(elsewhere))):
        says("build", "-q", "-c", folder / "recipe.yaml", "--cache-dir", tmp_path / "cache", *arguments)
    for format_ in FORMATS:
        for at in (folder, elsewhere):
            document = document_of(at, format_, tmp_path / f"{at.name}.{format_}")
            (listed,) = (file for file in read_document(document)[1] if file.is_output)
            assert (listed.path, listed.placed) == ("sub/b ü.txt", "" if at == folder else ".")
            assert check_against(at, document).is_intact
    (folder / "sub" / "b ü.txt").write_text("other")
    for format_ in FORMATS:
        for at in (folder, elsewhere):
            assert not check_against(at, tmp_path / f"{at.name}.{format_}").is_intact


def test_a_file_of_somebody_elses_is_not_replaced(cell: Path, tmp_path: Path, says: Says) -> None:
    (tmp_path / "mine.json").write_text("{}")
    arguments = ("provenance", cell, "-f", "slsa", "-o", tmp_path / "mine.json")
    assert "exists and is not such a document" in says(*arguments, code=2)
    assert (tmp_path / "mine.json").read_text() == "{}"
    says(*arguments, "--overwrite")
    says(*arguments)  # owned now


@pytest.mark.parametrize(("format_", "module"), [("slsa", "in_toto_attestation"), ("cyclonedx", "jsonschema")])
def test_without_the_libraries_the_extra_is_named(
    cell: Path, tmp_path: Path, format_: str, module: str, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = document_of(cell, format_, tmp_path / "document.json")
    monkeypatch.setitem(sys.modules, module, None)
    assert "pip install winml_dag[provenance]" in says("provenance", cell, "-f", format_, code=2)
    assert "pip install winml_dag[provenance]" in says("verify", cell, "--against", document, code=2)


def _edited(value: dict[str, Any], path: str, new: Any) -> str:
    place: Any = value
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = new
    return json.dumps(value)


@pytest.mark.parametrize(
    ("format_", "path", "new", "words"),
    [
        ("slsa", "_type", "https://in-toto.io/Statement/v0.1", "Wrong statement type"),
        ("slsa", "subject", [], "At least one subject"),
        ("slsa", "subject/0/digest", {}, "At least one digest"),
        ("slsa", "subject/0/digest", {"sha1": "00"}, "no SHA-256 for model.onnx"),
        ("slsa", "subject/0/digest/sha256", "00", "no SHA-256 for model.onnx"),
        ("slsa", "predicateType", "https://slsa.dev/provenance/v0.2", "not https://slsa.dev/provenance/v1"),
        ("slsa", "predicate/buildDefinition/buildType", "", "buildType is missing"),
        ("slsa", "predicate/runDetails/builder/id", "", "builder.id is missing"),
        ("cyclonedx", "specVersion", "99", "not a CycloneDX bill of materials"),
        ("cyclonedx", "bomFormat", "SPDX", "neither a statement"),
        ("cyclonedx", "unheard", 1, "unheard"),
        ("cyclonedx", "components/0/type", "unheard", "components/0/type"),
        ("cyclonedx", "components", [], "lists no file"),
        ("slsa", "subject/0/name", "../outside.txt", "not a safe file name"),
        ("slsa", "subject/0/name", "/etc/passwd", "not a safe file name"),
        ("slsa", "subject/0/name", "C:\\outside.txt", "not a safe file name"),
        ("slsa", "subject/0/annotations/placed", "../..", "not a safe file name"),
    ],
)
def test_a_document_that_is_not_as_its_format_wants_it_is_refused(
    cell: Path, tmp_path: Path, says: Says, format_: str, path: str, new: Any, words: str
) -> None:
    document = tmp_path / "document.json"
    document.write_text(_edited(told_of(cell, format_), path, new))
    told = says("verify", cell, "--against", document, code=3)
    assert words in told
    assert str(document) in told


@pytest.mark.parametrize("path", ["unheard", "subject/0/unheard", "predicate/unheard", "predicate/runDetails/unheard"])
def test_what_a_later_version_of_a_statement_says_besides_is_ignored(cell: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "later.json").write_text(_edited(told_of(cell, "slsa"), path, {"said": ["by", 1, "other"]}))
    assert check_against(cell, tmp_path / "later.json").is_intact


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100_000, '{"_type": 1}', '{"bomFormat": "CycloneDX"}'])
def test_what_is_no_document_is_refused_in_a_sentence(cell: Path, tmp_path: Path, says: Says, text: str) -> None:
    (tmp_path / "document.json").write_text(text)
    assert "document.json" in says("verify", cell, "--against", tmp_path / "document.json", code=3)
    assert "does not exist" in says("verify", tmp_path / "none", "--against", tmp_path / "document.json", code=3)


_PARTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(is_safe_part)


@settings(max_examples=25, deadline=None)
@given(
    files=st.dictionaries(_PARTS, st.binary(max_size=4), min_size=1, max_size=4),
    folder=st.one_of(st.just(""), _PARTS),
    changed=st.integers(0, 3),
)
def test_files_of_any_name_are_told_and_found(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], folder: str, changed: int
) -> None:
    # Case-insensitively unique, and different from the manifest's name.
    assume(len({name.casefold() for name in (*files, "build_manifest.json")}) > len(files))
    out = tmp_path_factory.mktemp("names") / "out"
    (out / folder).mkdir(parents=True)
    listed = [f"{folder}/{name}" if folder else name for name in files]
    entries = []
    for name, content in zip(listed, files.values(), strict=True):
        (out / name).write_bytes(content)
        entries.append(FileEntry(name, digest_file(out / name), len(content)).to_json())
    head = {"schema_version": 1, "source": "stages", "timestamp": "2026-01-02T03:04:05+00:00", "elapsed_seconds": 1.0}
    manifest = {**head, "notices": [], "sources": {}, "stages": [], "files": entries}
    (out / "build_manifest.json").write_bytes(manifest_text(manifest))
    documents = [document_of(out, format_, out.parent / format_) for format_ in FORMATS]
    for document in documents:
        found = check_against(out, document)
        assert found.is_intact
        assert (found.extra, found.left_out) == ((), ())
    victim = out / listed[changed % len(listed)]
    victim.write_bytes(victim.read_bytes() + b"!")
    for document in documents:
        assert not check_against(out, document).is_intact


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value within *value*."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, each in inner for found in ((*path, name), *_places(each, (*path, name)))]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_that_says_nonsense_is_told_or_refused_in_a_sentence(out: Path, data: st.DataObject) -> None:
    kept = (out / "build_manifest.json").read_bytes()
    manifest = json.loads(kept)
    *way, last = data.draw(st.sampled_from(_places(manifest)))
    place = manifest
    for step in way:
        place = place[step]
    nonsense = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([1]) | st.just({"a": [{}]})
    place[last] = data.draw(nonsense | st.just(10**400) | st.just("../../x") | st.just({"kind": {}, "names": 1}))
    try:
        (out / "build_manifest.json").write_bytes(manifest_text(manifest))
        for format_ in FORMATS:
            documents_of(out, format_)
    except InputError:
        pass  # in a sentence, as all of these are
    finally:
        (out / "build_manifest.json").write_bytes(kept)


@settings(max_examples=60, deadline=None)
@given(name=st.text(max_size=20) | st.sampled_from(["..", "a/../../b", "/dev/zero", "con", "a\\..\\b", "//h/s", "~"]))
def test_no_name_in_a_document_leads_out_of_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "inside" / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    subject = {"name": name, "digest": {"sha256": "0" * 64}}
    definition = {"buildType": "a:b", "externalParameters": {}}
    predicate = {"buildDefinition": definition, "runDetails": {"builder": {"id": "a:b"}}}
    statement = {"_type": "https://in-toto.io/Statement/v1", "subject": [subject]}
    value = {**statement, "predicateType": "https://slsa.dev/provenance/v1", "predicate": predicate}
    document = folder.parent / "document.json"
    document.write_text(json.dumps(value), encoding="utf-8")
    try:
        found = check_against(folder, document)
    except (InputError, StoreError):
        return
    (file,) = found.files
    assert folder in file.path.parents
    assert ".." not in file.path.parts
