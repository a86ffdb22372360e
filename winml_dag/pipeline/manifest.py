"""``build_manifest.json``: the provenance of one build, and the list of files in its folder that are owned.

The fields are those that winml-cli's Python API writes, plus each stage's key, its inputs and outputs by digest, and
why it ran. A manifest is only rewritten when something about the build or its files has changed; times do not count.

Each stage, source and file is on its own line, so that a build of some of 4000 stages can replace only those lines
(:func:`with_part`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject, JsonValue, json_hash
from winml_dag.engine.events import StageResult
from winml_dag.engine.stage import Node
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, parse_json, read_bytes, read_json
from winml_dag.pipeline.buildgraph import MODEL, BuildGraph, prefixed
from winml_dag.pipeline.layout import (
    MANIFEST,
    FinishedBuild,
    component_of,
    folder_in,
    is_builtin,
    is_carried_on,
    published_outputs,
)
from winml_dag.pipeline.search import Searched, searches
from winml_dag.store.artifact import Artifact, FileEntry

if TYPE_CHECKING:
    from winml_dag.pipeline.documents import BuildManifest

SCHEMA_VERSION = 1

# Fields about the run rather than the result: manifests that differ only in these are equivalent.
_OF_THE_RUN = frozenset({"timestamp", "elapsed_seconds", "analysis_timestamp", "run"})
_OF_THE_STAGE_RUN = frozenset({"cached", "reason", "elapsed_seconds", "made_at", "made_by", "log"})

_LINE_BY_LINE = frozenset({"sources", "stages", "files"})

# Metrics at the level of the stage's name, as in winml-cli's manifests; all others are under ``metrics``.
_PROMOTED = (
    "nodes_quantized",
    "nodes_skipped",
    "nodes_skipped_reasons",
    "calibration_time_seconds",
    "qdq_insertion_time_seconds",
    "postproc_time_seconds",
    "weight_type",
    "activation_type",
    "size_before_bytes",
    "size_after_bytes",
    "ep_context_partitions",
    "nodes_on_cpu",
    "cpu_nodes",
    "edge_quantization_nodes",
    "ep_sdk_version",
    "ep_compatibility_info",
    "binary_size_bytes",
    "compile_time_seconds",
)


@dataclass(frozen=True)
class Manifest:
    """A manifest as read from a folder: the files that it lists, and its whole content as JSON.

    ``files`` are in the same folder; ``placed`` are the files that a recipe's stages wrote to its ``folder``, by stage.
    """

    files: tuple[FileEntry, ...]
    placed: Mapping[str, tuple[FileEntry, ...]]
    value: JsonObject

    @property
    def folder(self) -> str | None:
        found = self.value.get("folder")
        return found if isinstance(found, str) else None

    @cached_property
    def build(self) -> BuildManifest:
        """The whole manifest as a typed value."""
        # Imported here: a build whose plan is current does not need pydantic.
        from winml_dag.pipeline.documents import BuildManifest

        return BuildManifest.model_validate(self.value)

    def placed_in(self, folder: Path, output_dir: Path) -> Mapping[str, tuple[FileEntry, ...]]:
        """Return ``placed`` if *folder*, that of the recipe, is the one in the manifest of *output_dir*, else nothing.

        The manifest may be untrusted, so the caller provides the folder.
        """
        # Otherwise the manifest is that of another recipe, or was moved: its files are not here.
        return self.placed if self.folder == folder_in(folder, output_dir) else {}

    def says_the_same_as(self, other: JsonObject) -> bool:
        return _lasting(self.value) == _lasting(other)


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in *folder*; None if there is none or it has another format: then no file there is owned."""
    try:
        return load_manifest(folder)
    except InputError:
        return None


def load_manifest(folder: Path) -> Manifest:
    """Return the manifest in *folder*.

    Raises:
        InputError: when it cannot be read or has another format than builds write.
    """
    path = folder / MANIFEST
    try:
        return _parsed(read_bytes(path, MOST_BYTES_OF_MANY))
    except InputError as error:
        why = error.message
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}."
    except ValueError as error:
        why = f"is damaged: it is not JSON ({error})."
    except StoreError as error:
        why = f"is damaged: {error}"
    except (KeyError, TypeError, AttributeError):
        why = "is damaged: its stages or files are not what a build writes."
    raise InputError(f"{path} {why}", advice="Build again with --overwrite: what stages made is in the cache.")


@lru_cache(maxsize=1)  # a build reads the manifest in its folder up to five times
def _parsed(text: bytes) -> Manifest:
    value = parse_json(text.decode())
    version = value.get("schema_version") if isinstance(value, dict) else None
    if version is None:
        raise InputError("is not of this program: it has no schema_version.")
    if version != SCHEMA_VERSION:
        raise InputError(f"has schema_version {version!r}, and this version of winml-dag reads {SCHEMA_VERSION} only.")
    stages = (stage for stage in value["stages"] if "placed" in stage)
    placed = {str(stage["id"]): Artifact.from_json(stage["placed"]).files for stage in stages}
    return Manifest(Artifact.from_json(value["files"]).files, placed, value)


def is_of_winml_cli(folder: Path) -> bool:
    """Whether the manifest in *folder* was written by winml-cli, which lists stages but no files."""
    try:
        value = read_json(folder / MANIFEST, MOST_BYTES_OF_MANY)
    except (OSError, ValueError):
        return False
    of_a_build = isinstance(value, dict) and value.get("schema_version") == SCHEMA_VERSION
    return of_a_build and isinstance(value.get("stages"), list) and "files" not in value


def make_manifest(done: FinishedBuild) -> JsonObject:
    """Return the manifest of a finished build."""
    planned, build = done.planned, done.summary
    stages = list(_stages(done))
    settings = build.settings
    if planned.final is None:
        # Without a model, the settings are the config hash of each stage.
        settings = {str(stage["id"]): stage["config_hash"] for stage in stages}
    folder = planned.folder
    return {
        "schema_version": SCHEMA_VERSION,
        "source": build.origin,
        **({} if planned.final is None else _of_model(done)),
        "config_hash": json_hash(settings),
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(),
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        "notices": list(build.notices),
        **({} if folder is None else {"folder": folder_in(folder, build.output_dir)}),
        "sources": {name: artifact.to_json() for name, artifact in sorted(planned.sources.items())},
        "stages": stages,
        "files": [entry.to_json() for entry in done.published.files],
    }


def _of_model(done: FinishedBuild) -> JsonObject:
    # Imported here, as below: a build of a recipe's own stages alone has no quality.
    from winml_dag.pipeline.stageresults import quality_json

    build, results, finals = done.summary, done.results, done.planned.finals
    components = _components(done)
    keys: JsonObject = {name: results[node_id].cache_key for name, node_id in zip(components, finals, strict=False)}
    return {
        "model_id": build.model_id,
        "task": build.task,
        "precision": build.precision,
        "quality": None if components else quality_json(list(results.values()), build.precision),
        "execution_provider": build.execution_provider,
        "device": build.device,
        "cache_key": json_hash(keys) if components else results[finals[0]].cache_key,
        "final_artifact": None if components else MODEL,
        **({"components": components} if components else {}),
        **_of_search(searches(results.values())),
    }


def _components(done: FinishedBuild) -> dict[str, JsonValue]:
    """Return the fields of each component of a composite model, which replace those of a single model."""
    from winml_dag.pipeline.stageresults import quality_json

    names, results = done.summary.components, done.results
    return {
        name: {
            **entry,
            "quality": quality_json(
                [result for result in results.values() if component_of(result.node, names) == name], entry["precision"]
            ),
            "cache_key": results[final].cache_key,
            "final_artifact": prefixed(MODEL, name),
        }
        for (name, entry), final in zip(names.items(), done.planned.finals, strict=False)
    }


def _of_search(found: Sequence[Searched]) -> JsonObject:
    """Return the results of analyze: for a model of several components, the discoveries of all."""
    lint = {one.line.removesuffix("."): one.metrics.get("lint", {}) for one in found}
    return {
        "analyze_iterations": max((one.iterations for one in found), default=0),
        "analyze_unsupported_node_count": sum(one.count("unsupported") for one in found),
        "analyze_details": {
            "lint": lint.get("", lint),
            "autoconf": {name: True for one in found for name in one.discovered},
            "autoconf_not_converged": any(one.left for one in found),
        },
        # The result file has no timestamp, since its content would change with every run.
        "analysis_timestamp": next((one.last.record.made_at for one in found if one.last.record), None),
    }


def manifest_text(value: JsonObject) -> bytes:
    return ("{\n" + ",\n".join(_lines_of(name, inner) for name, inner in value.items()) + "\n}\n").encode()


def with_part(text: bytes, part: Mapping[str, Any]) -> bytes:
    """Update the manifest *text* of a whole build with *part*, the manifest of the stages that were brought up to date.

    Its stages and sources replace those with the same name, and the rest stays. If they are equivalent, *text* is
    returned unchanged.
    """
    lines = {f"{_dumped(name)}: ": f"{_dumped(name)}: {_dumped(files)}" for name, files in part["sources"].items()}
    lines |= {f'{{"id": {_dumped(stage["id"])}, ': _dumped(stage) for stage in part["stages"]}
    # Earlier lines that begin like that of a source are about the build.
    begin = text.find(b'\n"sources": ') + 1
    places = [*_places(text, lines, begin)]
    if all(_says_the_same(text[place].decode(), line) for place, line in places):
        return text
    of_run = {f"{_dumped(name)}: ": _lines_of(name, part[name]) for name in ("timestamp", "elapsed_seconds")}
    pieces, done = [], 0
    for place, line in sorted([*_places(text, of_run, 0), *places], key=lambda found: found[0].start):
        pieces += [text[done : place.start], line.encode()]
        done = place.stop
    return b"".join([*pieces, text[done:]])


def _places(text: bytes, lines: Mapping[str, str], begin: int) -> Iterator[tuple[slice, str]]:
    """Yield where the first line after *begin* is that begins with each name of *lines*, without a comma at its end.

    Both have the same order, so each search continues where the last one ended: 5 MB of text take 5 ms to search.
    """
    at = begin
    for name, line in lines.items():
        beginning = f"\n{name}".encode()
        if (before := text.find(beginning, at)) < 0:
            before = text.find(beginning, begin)
        if before >= 0:
            at = text.find(b"\n", before + 1)
            yield slice(before + 1, at - text.endswith(b",", before, at)), line


def _says_the_same(line: str, other: str) -> bool:
    if line == other or not line.startswith('{"id": '):
        return line == other
    return _lasting_of_stage(json.loads(line)) == _lasting_of_stage(json.loads(other))


def _lines_of(name: str, value: JsonValue) -> str:
    if name not in _LINE_BY_LINE or not value:
        return f"{_dumped(name)}: {_dumped(value)}"
    if isinstance(value, Mapping):
        brackets, lines = "{}", [f"{_dumped(key)}: {_dumped(inner)}" for key, inner in value.items()]
    else:
        assert isinstance(value, list | tuple)
        brackets, lines = "[]", [_dumped(inner) for inner in value]
    return f"{_dumped(name)}: {brackets[0]}\n" + ",\n".join(lines) + f"\n{brackets[1]}"


def _dumped(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _stages(done: FinishedBuild) -> Iterator[JsonObject]:
    for step in done.planned.steps:
        if step.skipped is not None:
            named = {"id": step.id, "name": step.stage} if done.summary.components else {"name": step.stage}
            yield {**named, "status": "skipped", "reason": step.skipped, "elapsed_seconds": 0.0}
        elif step.id not in done.like:
            yield _stage(done, done.results[step.id])


def _stage(done: FinishedBuild, result: StageResult) -> JsonObject:
    record = result.record
    assert record is not None
    node = result.node
    # A generator: the thousands of stages that a user may have read none of it.
    others = (other.node for name, other in done.results.items() if name not in done.like)
    carried_on = node.folder is None and any(is_carried_on(node, other) for other in others)
    metrics = dict(record.metrics)
    promoted = {name: metrics.pop(name) for name in _PROMOTED if name in metrics}
    # winml-cli has one stage for calibrate and quantize, with the calibration time in it.
    is_calibrated = node.stage.name == "quantize" and node.folder is None and "ranges" in node.inputs
    if is_calibrated:
        from winml_dag.pipeline.stageresults import calibration_step

        if (calibration := calibration_step(list(done.results.values()))) is not None:
            promoted["calibration_time_seconds"] = calibration.calibration_time_seconds
    return {
        "id": node.id,
        "name": node.stage.name,
        "status": "completed",
        **_filenames(done.planned, node, record.outputs, carried_on=carried_on),
        # The duration of the original run; for a cached result, `cached` is true.
        "elapsed_seconds": record.elapsed_seconds,
        **promoted,
        "cached": result.status != "ran",
        "reason": str(result.reason),
        "cache_key": record.cache_key,
        "version": record.key_inputs.version,
        "config_hash": record.config_hash,
        "config": record.key_inputs.config,
        "inputs": {slot: _input(done, name) for slot, name in sorted(node.inputs.items())},
        "outputs": {
            slot: {"digest": artifact.digest, "size": artifact.size, "files": artifact.to_json()}
            for slot, artifact in sorted(record.outputs.items())
        },
        **({} if node.folder is None else {"placed": [entry.to_json() for entry in node.placed_files(record.outputs)]}),
        "toolchain": record.key_inputs.toolchain,
        "metrics": metrics,
        "made_at": record.made_at,
        "made_by": record.made_by,
        "log": None if record.log is None else {"digest": record.log.digest, "size": record.log.size},
    }


def _filenames(
    planned: BuildGraph, node: Node, outputs: Mapping[str, Artifact], *, carried_on: bool
) -> dict[str, JsonValue]:
    """Return the file in the output folder that identifies a stage, if any; for a shared export, one per component."""
    summary = planned.summary
    shown = [
        prefixed(file.name, component)
        for slot, component in published_outputs(node, summary.settings, summary.components)
        if is_builtin(node) and not carried_on and planned.shows(node, slot)
        for file in outputs[slot].files
    ]
    main = next(iter(node.stage.published.values()), "")
    if node.stage.name == "export" and summary.components:
        exported = (prefixed(main, name) for name in summary.components)
        return {"filename": None, "filenames": [name for name in exported if name in shown]}
    name = prefixed(main, component_of(node, summary.components))
    return {"filename": name if name in shown else None}


def _input(done: FinishedBuild, name: str) -> JsonObject:
    planned = done.planned
    artifact = planned.sources.get(name)
    if artifact is not None:
        return {"from": "source", "name": name, "digest": artifact.digest, "size": artifact.size}
    if (given := planned.given.get(name)) is not None:
        maker_id, _, slot = name.rpartition(".")
        return {"from": maker_id, "name": slot, "digest": given.digest, "size": given.size}
    maker = planned.graph.makers[name]
    record = done.results[maker.id].record
    assert record is not None
    slot = maker.slot_of(name)
    made = record.outputs[slot]
    return {"from": done.like.get(maker.id, maker.id), "name": slot, "digest": made.digest, "size": made.size}


def _lasting(value: JsonObject) -> JsonValue:
    stages = value.get("stages")
    if not isinstance(stages, list | tuple):
        return None
    return {
        **{name: inner for name, inner in value.items() if name not in _OF_THE_RUN},
        "stages": [_lasting_of_stage(stage) for stage in stages if isinstance(stage, Mapping)],
    }


def _lasting_of_stage(stage: JsonObject) -> JsonObject:
    return {name: inner for name, inner in stage.items() if name not in _OF_THE_STAGE_RUN}
