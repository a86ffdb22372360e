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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
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
    project.save("sweep.yaml", SWEEP)
    project.says("build", "-c", "sweep.yaml", "-o", "out", "--no-analyze")
    return project


@pytest.fixture(scope="module")
def cell(built: Project) -> Path:
    """The folder of one build. Do not change it."""
    return built.out / "net" / "w8a8"


@pytest.fixture(scope="module")
def documents(cell: Path) -> dict[str, str]:
    """The text of the document of that build in each format."""
    return {format_: documents_of(cell, format_)[0].text for format_ in FORMATS}


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


def written(text: str, folder: Path) -> Path:
    document = folder / "document.json"
    document.write_text(text, encoding="utf-8")
    return document


def document_of(folder: Path, format_: str, place: Path) -> Path:
    return written(documents_of(folder, format_)[0].text, place)


def test_slsa_statement_lists_outputs_and_dependencies(cell: Path, built: Project, documents: dict[str, str]) -> None:
    Statement.copy_from_pb(Parse(documents["slsa"], StatementMessage())).validate()
    value = json.loads(documents["slsa"])
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


def test_sweep_bom_lists_every_model_with_dependencies(built: Project) -> None:
    (document,) = documents_of(built.out, "cyclonedx")
    # Imported here: its grammar of addresses takes three seconds to build, in every process that collects tests.
    from cyclonedx.validation.json import JsonStrictValidator

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
    # What it refers to is in it once.
    named = [each for name, each in fields(value) if name == "bom-ref"]
    referred = [each for name, each in fields(value) if name in ("ref", "dependsOn")]
    assert len(named) == len(set(named))
    assert {name for each in referred for name in (each if isinstance(each, list) else [each])} <= set(named)


def fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of all objects within *value*."""
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from fields(inner)


@pytest.mark.parametrize("format_", FORMATS)
def test_document_of_compiled_model_includes_binary(built_project: Project, tmp_path: Path, format_: str) -> None:
    document = document_of(built_project.out, format_, tmp_path)
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
def test_documents_are_deterministic(
    cell: Path, documents: dict[str, str], format_: str, tmp_path: Path, says: Says
) -> None:
    says("provenance", cell, "--format", format_, "-o", tmp_path / "document.json")
    assert (tmp_path / "document.json").read_text(encoding="utf-8") == documents[format_]
    assert says("provenance", cell, "-f", format_) == documents[format_]


@pytest.mark.parametrize("format_", FORMATS)
def test_changed_or_missing_file_is_detected(
    documents: dict[str, str], out: Path, format_: str, tmp_path: Path, says: Says
) -> None:
    against = ("--against", written(documents[format_], tmp_path))
    assert "Intact: " in says("verify", out, *against)
    quantized = (out / "quantized.onnx").read_bytes()
    (out / "quantized.onnx").write_bytes(b"other")
    assert "changed: " in says("verify", out, *against, code=1), "a by-product"
    (out / "quantized.onnx").write_bytes(quantized)
    (out / "notes.txt").write_text("mine")
    (out / "optimized.onnx").unlink()
    told = says("verify", out, *against)
    assert f"missing by-product: {out / 'optimized.onnx'}" in told
    assert f"not in the document: {out / 'notes.txt'}" in told
    model = out / "model.onnx"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    assert f"changed: {model}" in says("verify", out, *against, code=1)
    assert "Not intact" in says("verify", model, *against, code=1)
    model.unlink()
    told = says("verify", out, *against, "-f", "json", code=1)
    (folder,) = json.loads(told)["folders"]
    assert folder["sound"] is False
    assert folder["format"] == format_
    assert [file["found"] for file in folder["files"] if file["path"] == str(model)] == ["missing"]
    assert (folder["left_out"], folder["extra"]) == (["optimized.onnx"], ["notes.txt"])
    if sys.platform != "win32":  # where links take rights
        model.symlink_to(tmp_path / "document.json")
        assert "a link is in its place" in says("verify", out, *against, code=1)


def test_changed_folder_gets_no_document(out: Path, tmp_path: Path, says: Says) -> None:
    (out / "quantized.onnx").write_bytes(b"other")
    told = says("provenance", out, "-f", "slsa", "-o", tmp_path / "document.json", code=3)
    assert "quantized.onnx is changed" in told
    assert not (tmp_path / "document.json").exists()


@pytest.mark.parametrize("format_", FORMATS)
def test_deleted_intermediate_is_omitted(out: Path, documents: dict[str, str], format_: str) -> None:
    (out / "quantized.onnx").unlink()
    before, after = (
        {each for name, each in fields(value) if name == "name"}
        for value in (json.loads(documents[format_]), told_of(out, format_))
    )
    assert before - after == {"quantized.onnx"}
    if format_ == "slsa":  # Sources that are gone are told by what was noted of them.
        definition = told_of(out, format_)["predicate"]["buildDefinition"]
        made_from = {each["name"]: each for each in definition["resolvedDependencies"]}
        assert made_from["data.npz"]["digest"].keys() == {"xxh3_128"}


def test_each_sweep_build_has_its_own_statement(built: Project, tmp_path: Path, says: Says) -> None:
    assert "2 builds, each with a statement" in says("provenance", built.out, "-f", "slsa", code=2)
    says("provenance", built.out, "-f", "slsa", "-o", tmp_path / "told")
    assert "Intact: " in says(
        "verify", built.out / "net" / "fp32", "--against", tmp_path / "told" / "net" / "fp32.slsa.json"
    )


def test_hub_commit_and_ci_run_are_recorded(out: Path) -> None:
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


def test_equivalent_request_leaves_manifest_unchanged(built: Project) -> None:
    again = ("build", "-m", "net.onnx", "-p", "fp32", "--ep", "cpu", "--no-analyze", "-o", "again")
    built.says(*again)
    before = built.contents("again")["build_manifest.json"]
    asked = json.loads(before)["run"]["asked"]
    assert asked == {
        "recipe": None,
        "options": {"model": "net.onnx", "precision": "fp32", "ep": "cpu", "analyze": False},
    }
    built.says(*again, "--max-optim-iterations", "2")
    assert built.contents("again")["build_manifest.json"] == before


def test_documents_contain_no_local_paths(built: Project, tmp_path: Path) -> None:
    data = ("--input-data", "data.npz")
    far = tmp_path / "far"
    built.says("build", "-m", str(built.folder / "net.onnx"), "--ep", "cpu", "--no-analyze", *data, "-o", str(far))
    for format_ in FORMATS:
        (document,) = documents_of(far, format_)
        assert built.folder.name not in document.text
    asked = told_of(far, "slsa")["predicate"]["buildDefinition"]["externalParameters"]
    assert asked["options"]["model"] == "net.onnx"
    assert asked["options"]["settings"] == {"validate": {"input_data": "data.npz"}}


def test_signed_envelope_is_unwrapped(cell: Path, documents: dict[str, str], tmp_path: Path) -> None:
    payload = base64.b64encode(documents["slsa"].encode()).decode()
    envelope = {"payloadType": "application/vnd.in-toto+json", "payload": payload, "signatures": [{"sig": ""}]}
    for value in (envelope, {"dsseEnvelope": envelope}):
        assert check_against(cell, written(json.dumps(value), tmp_path)).is_intact


def test_files_beside_recipe_are_listed_with_their_place(tmp_path: Path, says: Says) -> None:
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
            document = document_of(at, format_, tmp_path)
            (listed,) = (file for file in read_document(document)[1] if file.is_output)
            assert (listed.path, listed.placed) == ("sub/b ü.txt", "" if at == folder else ".")
            assert check_against(at, document).is_intact
            (folder / "sub" / "b ü.txt").write_text("other")
            assert not check_against(at, document).is_intact
            (folder / "sub" / "b ü.txt").write_text("source")


def test_foreign_file_is_not_replaced(cell: Path, tmp_path: Path, says: Says) -> None:
    (tmp_path / "mine.json").write_text("{}")
    arguments = ("provenance", cell, "-f", "slsa", "-o", tmp_path / "mine.json")
    assert "exists and is not such a document" in says(*arguments, code=2)
    assert (tmp_path / "mine.json").read_text() == "{}"
    says(*arguments, "--overwrite")
    says(*arguments)  # owned now


@pytest.mark.parametrize(("format_", "module"), [("slsa", "in_toto_attestation"), ("cyclonedx", "jsonschema")])
def test_missing_library_names_the_extra(
    cell: Path,
    documents: dict[str, str],
    tmp_path: Path,
    format_: str,
    module: str,
    says: Says,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for arguments in (("provenance", "-f", format_), ("verify", "--against", written(documents[format_], tmp_path))):
        assert "pip install winml_dag[provenance]" in says(*arguments, cell, code=2)


def _edited(document: str, path: str, new: Any) -> str:
    value: Any = json.loads(document)
    place = value
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
        ("slsa", "subject/0/annotations/placed", "../..", "not a safe file name"),
    ],
)
def test_invalid_document_is_refused(
    cell: Path, documents: dict[str, str], tmp_path: Path, says: Says, format_: str, path: str, new: Any, words: str
) -> None:
    document = written(_edited(documents[format_], path, new), tmp_path)
    told = says("verify", cell, "--against", document, code=3)
    assert words in told
    assert str(document) in told


def test_unknown_statement_fields_are_ignored(cell: Path, documents: dict[str, str], tmp_path: Path) -> None:
    text = documents["slsa"]
    for path in ("unheard", "subject/0/unheard", "predicate/unheard", "predicate/runDetails/unheard"):
        text = _edited(text, path, {"said": ["by", 1, "other"]})
    assert check_against(cell, written(text, tmp_path)).is_intact


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100_000, '{"_type": 1}', '{"bomFormat": "CycloneDX"}'])
def test_non_document_is_refused(cell: Path, tmp_path: Path, says: Says, text: str) -> None:
    document = written(text, tmp_path)
    assert "document.json" in says("verify", cell, "--against", document, code=3)
    assert "does not exist" in says("verify", tmp_path / "none", "--against", document, code=3)


_PARTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(is_safe_part)


@settings(max_examples=10, deadline=None)
@given(
    files=st.dictionaries(_PARTS, st.binary(max_size=4), min_size=1, max_size=4),
    folder=st.one_of(st.just(""), _PARTS),
    changed=st.integers(0, 3),
)
def test_files_of_any_name_are_listed_and_verified(
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
    victim = out / listed[changed % len(listed)]
    content = victim.read_bytes()
    for format_ in FORMATS:
        document = document_of(out, format_, out.parent)
        found = check_against(out, document)
        assert found.is_intact
        assert (found.extra, found.left_out) == ((), ())
        victim.write_bytes(content + b"!")
        assert not check_against(out, document).is_intact
        victim.write_bytes(content)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value within *value*."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, each in inner for found in ((*path, name), *_places(each, (*path, name)))]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nonsense_in_manifest_raises_only_input_error(out: Path, data: st.DataObject) -> None:
    kept = (out / "build_manifest.json").read_bytes()
    manifest = json.loads(kept)
    *way, last = data.draw(st.sampled_from(_places(manifest)))
    place = manifest
    for step in way:
        place = place[step]
    nonsense = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([1]) | st.just({"a": [{}]})
    place[last] = data.draw(nonsense | st.just(10**400) | st.just("../../x") | st.just({"kind": {}, "names": 1}))
    try:
        (out / "build_manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        documents_of(out, data.draw(st.sampled_from(FORMATS)))
    except InputError:
        pass  # in a sentence, as all of these are
    finally:
        (out / "build_manifest.json").write_bytes(kept)


@settings(max_examples=60, deadline=None)
@given(name=st.text(max_size=20) | st.sampled_from(["..", "a/../../b", "/dev/zero", "con", "a\\..\\b", "//h/s", "~"]))
def test_document_names_cannot_leave_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
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
