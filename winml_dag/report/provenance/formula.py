"""How a build went, as a workflow in the formulation of a bill of materials: a task for each stage that was not left
out, with what it read and put out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.report.provenance.facts import BuildFacts, duration, time_of, time_text
from winml_dag.report.provenance.statement import invocation_of
from winml_dag.report.told import at, object_at, text_at

_TASK_TYPES = {"analyze": "lint", "validate": "test", "sensitivity": "test"}


def workflow_of(build: BuildFacts, sources: Mapping[str, str], files: Mapping[str, Sequence[str]]) -> JsonObject:
    """*sources*: by name the component of each source; *files*: by stage the components of its files in the folder."""
    ref = f"workflow:{build.name or '.'}"
    began, ended = build.began, build.ended
    ids = [text_at(stage, "id") for stage in build.stages]
    tasks: list[JsonValue] = [_task(stage, ref, sources, files) for stage in build.stages]
    order: list[JsonValue] = [
        {"ref": f"{ref}:{text_at(stage, 'id')}", "dependsOn": [f"{ref}:{name}" for name in needed]}
        for stage in build.stages
        if (needed := sorted(set(_makers(stage)) & set(ids)))
    ]
    return {
        "bom-ref": ref,
        "uid": text_at(build.value, "run", "ci", "run") or invocation_of(build),
        "name": build.name or "build",
        "taskTypes": ["build"],
        "tasks": tasks,
        **({"taskDependencies": order} if order else {}),
        **({} if began is None else {"timeStart": time_text(began)}),
        **({} if ended is None else {"timeEnd": time_text(ended)}),
    }


def _task(
    stage: JsonObject, workflow: str, sources: Mapping[str, str], files: Mapping[str, Sequence[str]]
) -> JsonObject:
    name, kind = text_at(stage, "id"), text_at(stage, "name")
    read = [text_at(given, "name") for given in object_at(stage, "inputs").values() if _is_source(given)]
    given = [sources[source] for source in read if source in sources]
    given += [ref for maker in _makers(stage) for ref in files.get(maker, ())]
    inputs: list[JsonValue] = [{"resource": {"ref": ref}} for ref in dict.fromkeys(given)]
    outputs: list[JsonValue] = [{"type": "artifact", "resource": {"ref": ref}} for ref in files.get(name, ())]
    ended = time_of(text_at(stage, "made_at"))
    properties: dict[str, JsonValue] = {
        "version": at(stage, "version"),
        "config": at(stage, "config"),
        "reused": at(stage, "cached"),
        "made_by": at(stage, "made_by"),
    }
    return {
        "bom-ref": f"{workflow}:{name}",
        "uid": text_at(stage, "cache_key") or name,
        "name": name,
        "taskTypes": [_TASK_TYPES.get(kind, "build")],
        **({"inputs": inputs} if inputs else {}),
        **({"outputs": outputs} if outputs else {}),
        **({} if ended is None else {"timeStart": time_text(ended - duration(stage)), "timeEnd": time_text(ended)}),
        "properties": [
            {"name": f"winml_dag:{key}", "value": value if isinstance(value, str) else canonical_json(value)}
            for key, value in properties.items()
            if value is not None
        ],
    }


def _makers(stage: JsonObject) -> Iterator[str]:
    """The ids of the stages that *stage* reads from."""
    for given in object_at(stage, "inputs").values():
        if not _is_source(given):
            yield text_at(given, "from")


def _is_source(given: JsonValue) -> bool:
    return text_at(given, "from") == "source"
