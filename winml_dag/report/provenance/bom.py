"""Builds as a CycloneDX 1.6 bill of materials: https://cyclonedx.org/capabilities/mlbom/.

CycloneDX's own library writes it. The result is validated against the library's schema, which allows no unknown fields.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from winml_dag import __version__
from winml_dag.canonical import canonical_json
from winml_dag.errors import InputError
from winml_dag.report.provenance.facts import BuildFacts, Dependency, HashedFile, encodable
from winml_dag.stages import artifact_types

# Prefix of winml_dag's own properties; see docs/buildtypes/build-v1.md.
_OURS = "winml_dag:"
PATH = f"{_OURS}path"
_ROLE = f"{_OURS}role"
_PLACED = f"{_OURS}placed"

_ORDER = (
    *("$schema", "bomFormat", "specVersion", "serialNumber", "version"),
    *("metadata", "components", "dependencies"),
)
_NAMESPACE = uuid.UUID("6f5a1e5c-8d0b-5a5e-9a55-0c9a4a0f1d10")
_MODELS = artifact_types.ANY_MODEL | {artifact_types.MODEL_FOLDER}


def bom_of(name: str, builds: Sequence[BuildFacts]) -> str:
    """Return the bill as JSON, deterministic for the same builds. *name*: the common name of the builds.

    Raises:
        InputError: when the result would be invalid.
    """
    value = encodable(_written(name, builds))
    assert isinstance(value, dict)
    content = {part: inner for part, inner in value.items() if part != "serialNumber"}
    value["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, canonical_json(content))}"
    text = json.dumps({part: value[part] for part in _ORDER if part in value}, indent=2, ensure_ascii=False) + "\n"
    _read_bom(text)
    return text


def _read_bom(text: str) -> dict[str, Any]:
    """Parse the bill *text*, strictly validated against the schema of the version it states.

    Raises:
        InputError: with the problem and its location.
    """
    try:
        value = json.loads(text)
        version = SchemaVersion.from_version(str(value["specVersion"]))
        found = JsonStrictValidator(version).validate_str(text)
    except (ValueError, LookupError, TypeError, NotImplementedError, RecursionError) as error:
        raise InputError(f"This is not a CycloneDX bill of materials in JSON: {str(error).rstrip('.')}.") from None
    if found is not None:
        what: Any = found.data
        where = "/".join(map(str, what.absolute_path)) or "its top"
        raise InputError(f"This is not a valid CycloneDX bill of materials: at {where}: {what.message[:300]}.")
    assert isinstance(value, dict)
    return value


def _written(name: str, builds: Sequence[BuildFacts]) -> dict[str, Any]:
    """Return the output of the library."""
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, name))
    ends = [build.ended for build in builds if build.ended is not None]
    if ends:
        bom.metadata.timestamp = max(ends)
    ourselves = Component(
        type=ComponentType.APPLICATION, name="winml_dag", version=__version__, bom_ref="tool:winml_dag"
    )
    bom.metadata.tools.components.add(ourselves)
    models = [component for build in builds for component in _models(build)]
    files = [file for build in builds for file in _loose_files(build)]
    read = [each for build in builds for each in build.dependencies if each.kind not in _MODELS and not each.is_builtin]
    others = {str(each.bom_ref.value): each for each in (*files, *map(_data, read))}
    bom.components.update([*models, *others.values()])
    whole = Component(
        type=ComponentType.APPLICATION,
        name=name,
        version=_short(canonical_json([[file.sha256 for file in build.outputs] for build in builds])),
        bom_ref="whole",
        description="What is shipped: the output of one build" if len(builds) == 1 else "The outputs of several builds",
    )
    bom.metadata.component = whole
    shipped = {file_ref(file) for build in builds for file in build.outputs}
    bom.register_dependency(whole, [*models, *(each for ref, each in others.items() if ref in shipped)])
    written: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return written


def _short(text: str) -> str:
    return uuid.uuid5(_NAMESPACE, text).hex[:16]


def _models(build: BuildFacts) -> Iterator[Component]:
    """Yield a component for each shipped model, with its files; none for a build without a model."""
    for main in _main_files(build):
        model = build.manifest.of(main.path.rpartition("/")[2])
        sources = list({each.digest: each for each in build.dependencies if each.kind in _MODELS}.values())
        precision, target = model.precision, model.execution_provider
        yield Component(
            type=ComponentType.MACHINE_LEARNING_MODEL,
            name=f"{build.model} {main.component}".strip(),
            version=model.cache_key[:16] or None,
            bom_ref=_model_ref(main),
            description=f"{precision} for {target} ({model.device})",
            hashes=_hashes("sha256", main.sha256),
            licenses=_licenses(sources),
            properties=[
                *_properties(precision=precision, execution_provider=target, device=model.device),
                *_properties(cache_key=model.cache_key, build=build.name),
            ],
            pedigree=Pedigree(
                ancestors=[_ancestor(each, build.model, _model_ref(main)) for each in sources],
                notes=", ".join(stage.id for stage in build.stages),
            ),
            components=[_file(file) for file in build.outputs if file.component == main.component],
        )


def _main_files(build: BuildFacts) -> list[HashedFile]:
    """Return the models without their sidecars: one, or one per component."""
    if build.manifest.model_id == "":
        return []
    names, finals = tuple(build.manifest.components) or ("",), build.manifest.final_artifacts
    found = (file for file in build.outputs if file.path.rpartition("/")[2] in finals and not file.placed)
    return [file for file in found if file.component in names]


def _model_ref(main: HashedFile) -> str:
    return f"model:{main.path}"


def file_ref(file: HashedFile) -> str:
    return f"placed:{file.placed}:{file.path}" if file.placed else f"file:{file.path}"


def _source_ref(dependency: Dependency) -> str:
    return f"source:{dependency.digest.rpartition(':')[2][:24]}"


def _ancestor(source: Dependency, called: str, model: str) -> Component:
    hub = None if source.hub is None else source.hub[1].rpartition("/")
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=source.hub[1] if source.hub else called if source.kind == artifact_types.MODEL_FOLDER else source.called,
        version=source.revision or None,
        bom_ref=f"{model}:{_source_ref(source)}",
        purl=None if hub is None else PackageURL("huggingface", hub[0] or None, hub[2], source.revision),
        licenses=_licenses([source]),
        properties=_properties(source=source.called, kind=source.kind),
        components=_read_files(source, f"{model}:{_source_ref(source)}"),
    )


def _read_files(source: Dependency, ref: str) -> list[Component]:
    return [
        Component(
            type=ComponentType.FILE,
            name=file.name,
            bom_ref=f"{ref}:{file.name}",
            hashes=_hashes(file.algorithm, file.digest),
            properties=_properties(
                size=str(file.size), **({} if file.algorithm == "sha256" else {file.algorithm: file.digest})
            ),
        )
        for file in (source.files if source.folder_digest is None else ())
    ]


def _data(source: Dependency) -> Component:
    whole = source.folder_digest
    return Component(
        type=ComponentType.DATA,
        name=source.hub[1] if source.hub else source.called,
        version=source.revision or None,
        bom_ref=_source_ref(source),
        licenses=_licenses([source]),
        properties=_properties(
            kind=source.kind, files=str(len(source.files)), **({} if whole is None else dict([whole]))
        ),
        components=_read_files(source, _source_ref(source)),
    )


def _loose_files(build: BuildFacts) -> Iterator[Component]:
    """Yield files that belong to no shipped model: intermediates, and outputs of a build without a model."""
    models = {file.component for file in _main_files(build)}
    for file in build.files:
        if not (file.is_output and file.component in models):
            yield _file(file)


def _file(file: HashedFile) -> Component:
    origin = {"stage": file.stage, "component": file.component}
    return Component(
        type=ComponentType.FILE,
        name=file.path,
        bom_ref=file_ref(file),
        hashes=_hashes("sha256", file.sha256),
        properties=_properties(
            path=file.path,
            role="output" if file.is_output else "byproduct",
            size=str(file.size),
            placed=file.placed,
            **origin,
        ),
    )


def _hashes(algorithm: str, digest: str) -> list[Any]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)] if algorithm == "sha256" else []


def _licenses(sources: Sequence[Dependency]) -> list[Any]:
    names = sorted({source.license for source in sources if source.license})
    # As in the model card. An SPDX expression must be the only entry, and a card has one.
    return [LicenseFactory().make_from_string(name) for name in names[:1]]


def _properties(**values: str) -> list[Property]:
    return [Property(name=f"{_OURS}{name}", value=value) for name, value in values.items() if value]


def listed_files(text: str) -> Iterator[HashedFile]:
    """Yield every file in *text*, without its size. Raises the same errors as :func:`_read_bom`."""
    waiting = [_read_bom(text)]
    while waiting:
        component = waiting.pop()
        waiting += component.get("components", ())
        notes = {each["name"]: each.get("value", "") for each in component.get("properties", ()) if "name" in each}
        if PATH in notes:
            hashes = {each["alg"]: each["content"] for each in component.get("hashes", ())}
            sha256, is_output = hashes.get("SHA-256", ""), notes.get(_ROLE) == "output"
            yield HashedFile(notes[PATH], sha256, 0, is_output=is_output, placed=notes.get(_PLACED, ""))
