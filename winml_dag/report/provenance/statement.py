"""One build as SLSA provenance v1 in an in-toto Statement v1: https://slsa.dev/spec/v1.1/provenance.

docs/buildtypes/build-v1.md, which the build type refers to, describes each parameter. Messages are those of in-toto's
own library, and every statement is read back and checked before it is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, Parse, ParseDict, ParseError  # type: ignore[import-untyped]
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import STATEMENT_TYPE_URI, Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.errors import InputError
from winml_dag.pipeline.documents import Stage
from winml_dag.report.provenance.facts import (
    BuildFacts,
    Dependency,
    HashedFile,
    Tool,
    encodable,
    time_text,
    without_places,
)

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "pkg:pypi/winml-dag#docs/buildtypes/build-v1.md"
# For builds started by a person, on a machine that cannot be vouched for.
LOCAL_BUILDER = "pkg:pypi/winml-dag"

_ORDER = ("_type", "subject", "predicateType", "predicate")


def statement_of(build: BuildFacts) -> str:
    """Return the statement as JSON, deterministic for the same build.

    Raises:
        InputError: when the result would be invalid, for example for a build without outputs.
    """
    value = {
        "_type": STATEMENT_TYPE_URI,
        "subject": [_of_file(file) for file in build.outputs],
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(build),
    }
    text = json.dumps({name: _ordered(encodable(value[name])) for name in _ORDER}, indent=2, ensure_ascii=False) + "\n"
    _parse(text, strict=True)
    return text


def _parse(text: str, *, strict: bool = False) -> tuple[Any, Any]:
    """Parse the statement *text* and its predicate, and validate everything in them.

    The formats require readers to ignore unknown fields; *strict*, for writers, rejects them.

    Raises:
        InputError: with the problem.
    """
    try:
        message = Parse(text, StatementMessage(), ignore_unknown_fields=not strict)
        Statement.copy_from_pb(message).validate()
        if message.predicate_type != PREDICATE_TYPE:
            raise ValueError(f"its predicate is of the type {message.predicate_type}, not {PREDICATE_TYPE}")
        provenance = ParseDict(MessageToDict(message.predicate), Provenance(), ignore_unknown_fields=not strict)
        _check(provenance)
    except (ParseError, ValueError, RecursionError) as error:
        raise InputError(
            f"This is not SLSA provenance v1 in an in-toto Statement v1: {str(error).rstrip('.')}."
        ) from None
    return message, provenance


def _check(provenance: Any) -> None:
    """Check what the SLSA specification requires beyond its schema. Raises ValueError."""
    definition, details = provenance.build_definition, provenance.run_details
    if not definition.build_type:
        raise ValueError("buildDefinition.buildType is missing")
    if not definition.HasField("external_parameters"):
        raise ValueError("buildDefinition.externalParameters is missing")
    if not details.builder.id:
        raise ValueError("runDetails.builder.id is missing")
    for descriptor in (*definition.resolved_dependencies, *details.byproducts):
        ResourceDescriptor.copy_from_pb(descriptor).validate()


def _predicate(build: BuildFacts) -> JsonObject:
    run = build.manifest.run
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "recipe": without_places(run.asked.recipe),
                "options": without_places(run.asked.options),
            },
            "internalParameters": {
                **({"settings": without_places(build.settings)} if build.settings else {}),
                "target": {name: build.value.get(name) for name in ("execution_provider", "device")},
                "stages": [_stage(stage) for stage in build.stages],
            },
            **({"resolvedDependencies": found} if (found := [*map(_filled, _dependencies(build))]) else {}),
        },
        "runDetails": {
            "builder": {
                "id": run.ci.builder or LOCAL_BUILDER,
                "version": {
                    "winml_dag": run.made_by.removeprefix("winml_dag "),
                    **({"python": run.python} if run.python else {}),
                },
            },
            "metadata": _metadata(build),
            "byproducts": [*map(_filled, _byproducts(build))],
        },
    }


def _stage(stage: Stage) -> JsonObject:
    return {
        "id": stage.id,
        "stage": stage.name,
        "version": stage.version,
        "config": stage.config,
        "cacheKey": stage.cache_key,
        "toolchain": stage.toolchain,
        # When and by whom the stage was run: before this build, if it was reused.
        "madeAt": stage.made_at,
        "madeBy": stage.made_by,
        "reused": stage.cached,
    }


def _metadata(build: BuildFacts) -> JsonObject:
    began, ended = build.began, build.ended
    return {
        # Otherwise derived from the manifest, so that it is reproducible.
        "invocationId": build.manifest.run.ci.run
        or f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{BUILD_TYPE} {canonical_json(build.value)}')}",
        **({} if began is None else {"startedOn": time_text(began)}),
        **({} if ended is None else {"finishedOn": time_text(ended)}),
    }


def _dependencies(build: BuildFacts) -> Iterator[JsonObject]:
    ci, asked = build.manifest.run.ci, build.manifest.run.asked
    if ci.repository:
        yield {
            "name": "repository",
            "uri": f"git+{ci.repository}{f'@{ci.revision}' if ci.revision else ''}",
            **({"digest": {"gitCommit": ci.revision}} if ci.revision else {}),
        }
    if asked.recipe_file.digest.startswith("sha256:"):
        digest = {"sha256": asked.recipe_file.digest.removeprefix("sha256:")}
        yield {"name": asked.recipe_file.file, "digest": digest, "annotations": {"role": "recipe"}}
    for dependency in build.dependencies:
        yield from _of_dependency(dependency)
    for tool in build.tools:
        yield _of_tool(tool)


def _of_tool(tool: Tool) -> JsonObject:
    if tool.purl:
        digest = {"wheelRecord": tool.record} if tool.record else {}
        return {"name": tool.name, "uri": tool.purl, "digest": digest, "annotations": {"role": "tool"}}
    if tool.digest is not None:
        return {"name": tool.name, "digest": dict([tool.digest]), "annotations": {"role": "tool"}}
    return {"name": tool.name, "annotations": {"role": "tool", "value": tool.version}}


def _of_dependency(dependency: Dependency) -> Iterator[JsonObject]:
    shared: JsonObject = {"role": dependency.kind, "source": dependency.called}
    if dependency.hub is not None:
        yield {
            "name": dependency.hub[1],
            "uri": hub_address(dependency.hub, dependency.revision),
            "digest": {"gitCommit": dependency.revision},
            "annotations": shared,
        }
    if (whole := dependency.folder_digest) is not None:
        many: JsonObject = {**shared, "files": len(dependency.files)}
        yield {"name": dependency.called, "digest": dict([whole]), "annotations": many}
        return
    for file in dependency.files:
        yield {"name": file.name, "digest": {file.algorithm: file.digest}, "annotations": {**shared, "size": file.size}}


def hub_address(hub: tuple[str, str], revision: str) -> str:
    """Return the address of a commit in pip's format."""
    kind, name = hub
    return f"git+https://huggingface.co/{'datasets/' if kind == 'datasets' else ''}{name}@{revision}"


def _byproducts(build: BuildFacts) -> Iterator[JsonObject]:
    for file in build.byproducts:
        yield _of_file(file)
    for stage in build.stages:
        algorithm, _, digest = stage.log.digest.partition(":")
        if digest:
            annotations: JsonObject = {"role": "log", "stage": stage.id, "size": stage.log.size}
            yield {
                "name": f"{stage.id}.log",
                "digest": {algorithm.replace("-", "_"): digest},
                "annotations": annotations,
            }


def _of_file(file: HashedFile) -> JsonObject:
    notes = {"stage": file.stage, "component": file.component, "placed": file.placed}
    role = "output" if file.is_output else "byproduct"
    annotations: JsonObject = {"size": file.size, "role": role, **{name: text for name, text in notes.items() if text}}
    return {"name": file.path, "digest": {"sha256": file.sha256}, "annotations": annotations}


def _filled(descriptor: JsonObject) -> JsonObject:
    """Return *descriptor* without empty fields, which the format does not know."""
    return {name: value for name, value in descriptor.items() if value not in ("", {})}


def listed_files(text: str) -> Iterator[HashedFile]:
    """Yield every file in *text*, without its size. Raises the same errors as :func:`_parse`."""
    statement, provenance = _parse(text)
    byproducts = provenance.run_details.byproducts if provenance.build_definition.build_type == BUILD_TYPE else ()
    for is_output, descriptors in ((True, statement.subject), (False, byproducts)):
        for each in descriptors:
            notes = each.annotations.fields
            if is_output or notes["role"].string_value == "byproduct":
                placed = notes["placed"].string_value
                yield HashedFile(each.name, each.digest.get("sha256", ""), 0, is_output=is_output, placed=placed)


def _ordered(value: JsonValue) -> JsonValue:
    """Return *value* with sorted names, and whole numbers as integers: the format knows one kind of number."""
    if isinstance(value, Mapping):
        return {name: _ordered(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_ordered(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
