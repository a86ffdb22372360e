"""Which files a build puts into its output folder, and under which names.

The names are winml-cli's, so that whatever picks up its results finds ours. The names of a stage's files are fixed, so
that equal work has equal bytes. In a folder with several components each file gets the name of its component before its
own. What refers to others by their names is written anew then: a model whose weights, or whose binary, lie beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.errors import StoreError
from winml_dag.pipeline.search import round_of
from winml_dag.stages.calibrate import RANGES_FILE
from winml_dag.stages.sensitivity import PICTURE_FILE, REPORT_FILE
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file

if TYPE_CHECKING:
    from winml_dag.engine.events import StageResult
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.buildgraph import BuildGraph
    from winml_dag.store.store import Store

MODEL = "model.onnx"
EXPORTED = "export.onnx"
NORMALIZED = "normalized.onnx"
OPTIMIZED = "optimized.onnx"
QUANTIZED = "quantized.onnx"
COMPILED = "compiled.onnx"
HIERARCHY = "export_htp_metadata.json"
ANALYSIS = "analyze_result.json"
MANIFEST = "build_manifest.json"
BUILD_CONFIG = "winml_build_config.json"
RANGES = RANGES_FILE
# Beside a single quantized model, after its name.
REPORTS = (REPORT_FILE, PICTURE_FILE)

# What each stage leaves in the output folder, by output slot. A stage that is not here leaves nothing there.
PUBLISHED_OUTPUTS: dict[str, tuple[str, ...]] = {
    "export": ("model", "hierarchy"),
    "normalize": ("model",),
    "optimize": ("model",),
    "analyze": ("result",),
    "quantize": ("model",),
    "compile": ("model",),
    "finalize": ("model",),
    "sensitivity": ("report",),
}

STAGE_FILE: dict[str, str] = {
    "export": EXPORTED,
    "normalize": NORMALIZED,
    "optimize": OPTIMIZED,
    "analyze": ANALYSIS,
    "quantize": QUANTIZED,
    "compile": COMPILED,
    "finalize": MODEL,
}


def prefixed(name: str, component: str) -> str:
    """What the file *name* of *component* is called, in a folder with those of others; without one, *name*."""
    return f"{component}_{name}" if component else name


def is_ours(node: Node) -> bool:
    """Whether *node* is one of the stages of every build, and not a recipe's own; both may put files into the recipe's
    folder.
    """
    return node.folder is None or node.stage.work.startswith("winml_dag.stages.")


def beside_output(output_file: str, name: str) -> str:
    """What the file *name* of a report is called beside the one file that a build is for."""
    return f"{output_file[: -len('.onnx')]}_{name.removeprefix('export_')}"


def component_of(node: Node, components: Collection[str]) -> str:
    """Which of the *components* of a build *node* is about; empty where it is about all, or there are none."""
    first = node.id.partition(".")[0]
    return first if first in components else ""


def reports(node: Node) -> tuple[str, ...]:
    """What *node* gives that lies beside the one file that a build is for, under names made of that file's."""
    if node.stage.name == "sensitivity":
        return REPORTS
    return (HIERARCHY,) if node.stage.name == "export" and _wants_hierarchy(node.config) else ()


def _wants_hierarchy(config: JsonObject) -> bool:
    """Of several components, all have one when one has."""
    components = config.get("components")
    if isinstance(components, Mapping):
        return any(_wants_hierarchy(each) for each in components.values() if isinstance(each, Mapping))
    export = config["export"]
    return isinstance(export, Mapping) and bool(export["enable_hierarchy_tags"])


def published_outputs(node: Node, settings: JsonObject, components: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """The output slots of *node*, one of ours, whose files lie in the output folder of a build with *settings*, each
    with the component whose name is put before those of its files.
    """
    stage, component = node.stage.name, component_of(node, components)
    if stage == "calibrate":
        if _shows_ranges(settings, component):
            yield "ranges", component
    elif stage == "export" and components:
        yield from ((prefixed(slot, each), each) for each in components for slot in PUBLISHED_OUTPUTS[stage])
    else:
        # finalize knows the final name itself.
        yield from ((slot, "" if stage == "finalize" else component) for slot in PUBLISHED_OUTPUTS.get(stage, ()))


def _shows_ranges(settings: JsonObject, component: str = "") -> bool:
    if component:
        components = settings.get("components")
        own = components.get(component) if isinstance(components, Mapping) else None
        settings = own if isinstance(own, Mapping) else {}
    quant = settings.get("quant")
    return isinstance(quant, Mapping) and bool(quant.get("save_calibration"))


def is_carried_on(node: Node, other: Node) -> bool:
    """Whether *other* does more of the same with what *node* puts out: then only the end of it is visible."""
    mine, its = round_of(node), round_of(other)
    if mine is not None and its is not None:
        return mine[0] == its[0] and mine[1] < its[1]
    read = other.inputs.values()
    return other.stage.name == node.stage.name and any(node.output(slot) in read for slot in node.stage.outputs)


# Names that a build may write, whatever its recipe: none of them may be a file of somebody else's.
RESERVED = (MODEL, EXPORTED, NORMALIZED, OPTIMIZED, QUANTIZED, COMPILED, HIERARCHY, ANALYSIS, MANIFEST, BUILD_CONFIG)


def reserved(settings: JsonObject, components: Collection[str] = ()) -> tuple[str, ...]:
    """The same, of a build with *settings*."""
    if not components:
        return (*RESERVED, RANGES) if _shows_ranges(settings) else RESERVED
    shown = {each: (RANGES,) if _shows_ranges(settings, each) else () for each in components}
    whole = (MANIFEST, BUILD_CONFIG)
    of_each = [name for name in RESERVED if name not in whole]
    return (*(prefixed(name, each) for each in components for name in (*of_each, *shown[each])), *whole)


@dataclass(frozen=True)
class Published:
    """``files``: all that belong into the output folder; ``rewritten``: the content of those that are no results word
    for word.
    """

    files: tuple[FileEntry, ...]
    rewritten: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def results(self) -> tuple[FileEntry, ...]:
        """Those that the store has."""
        return tuple(entry for entry in self.files if entry.name not in self.rewritten)


def published_files(planned: BuildGraph, results: Mapping[str, StageResult], store: Store) -> Published:
    """The files that belong into the output folder; one that several stages share (a sidecar) is there once. Of a build
    for one file, that one and what belongs to it, and reports under names like its own.

    Raises:
        StoreError: when two stages put out different files of one name.
        BlobDamaged: when a model that has to be written anew cannot be fetched.
    """
    found: dict[str, FileEntry] = {}
    rewritten: dict[str, bytes] = {}
    one = planned.summary.output_file
    for named in _files_of_all(planned, results) if one is None else _files_of_one(planned, results, one):
        entries, texts = _in_the_folder(named, store)
        rewritten |= texts
        for entry in entries:
            if found.setdefault(entry.name, entry) != entry:
                raise StoreError(f"Two stages put out different files named {entry.name}.")
    return Published(tuple(sorted(found.values())), rewritten)


def needed_files(planned: BuildGraph, results: Mapping[str, StageResult]) -> Iterator[FileEntry]:
    """What of the store goes into the output folder, word for word or written anew."""
    one = planned.summary.output_file
    for named in _files_of_all(planned, results) if one is None else _files_of_one(planned, results, one):
        yield from named.files


def wanted_reports(planned: BuildGraph) -> Iterator[str]:
    """What lies beside the one file that a build is for, or beside those of its components, under names like theirs."""
    yield from _reports(planned, wanted=True)


def outdated_reports(planned: BuildGraph) -> Iterator[str]:
    """What an earlier build for this file has put beside it, maybe, and this one does not."""
    yield from _reports(planned, wanted=False)


@dataclass(frozen=True)
class _Named:
    """Files of one output, and the name of each in the folder."""

    files: tuple[FileEntry, ...]
    names: Mapping[str, str] = field(default_factory=dict)


def _files_of_all(planned: BuildGraph, results: Mapping[str, StageResult]) -> Iterator[_Named]:
    summary = planned.summary
    ours = [result for result in results.values() if is_ours(result.node)]
    for result in ours:
        assert result.record is not None
        if any(is_carried_on(result.node, other.node) for other in ours):
            continue
        for slot, component in published_outputs(result.node, summary.settings, summary.components):
            if not planned.shows(result.node, slot):
                continue
            files = result.record.outputs[slot].files
            yield _Named(files, {entry.name: prefixed(entry.name, component) for entry in files})


def _files_of_one(planned: BuildGraph, results: Mapping[str, StageResult], name: str) -> Iterator[_Named]:
    models = {component: path.name for component, path in planned.summary.models_by_component.items()}
    for node_id, result in results.items():
        assert result.record is not None
        files = tuple(entry for artifact in result.record.outputs.values() for entry in artifact.files)
        if node_id in planned.finals:
            # finalize has named the model, and what belongs to it refers to it by name. Ranges are one file.
            yield _Named(files, {RANGES: name})
            continue
        for slot, artifact in result.record.outputs.items():
            beside = models.get(slot.removesuffix("_hierarchy"), name)
            chosen = tuple(entry for entry in artifact.files if entry.name in reports(result.node))
            yield _Named(chosen, {entry.name: beside_output(beside, entry.name) for entry in chosen})


def _reports(planned: BuildGraph, *, wanted: bool) -> Iterator[str]:
    summary = planned.summary
    assert summary.output_file is not None
    names = [path.name for path in summary.models_by_component.values()] or [summary.output_file]
    for node in planned.graph.nodes:
        if is_ours(node):
            of_node = reports(node)
            if node.stage.name == "export" and not wanted:
                of_node = () if of_node else (HIERARCHY,)
            elif not wanted:
                of_node = ()
            yield from (beside_output(name, report) for name in names for report in of_node)


def _in_the_folder(named: _Named, store: Store) -> tuple[list[FileEntry], dict[str, bytes]]:
    """The entries of *named* under their names there, and the content of a model that refers to others by theirs."""
    names = {entry.name: named.names.get(entry.name, entry.name) for entry in named.files}
    entries = [replace(entry, name=names[entry.name]) for entry in named.files]
    models = [entry for entry in named.files if entry.name.endswith(".onnx")]
    if len(named.files) < 2 or len(models) != 1 or all(name == known for name, known in names.items()):
        return entries, {}
    model = models[0]
    entry, content = _rewritten(model, names, store)
    return [entry if known.name == entry.name else known for known in entries], {entry.name: content}


def _rewritten(model: FileEntry, names: Mapping[str, str], store: Store) -> tuple[FileEntry, bytes]:
    """*model* as it is under its new name, in which it calls others by their *names*."""
    # Imported here: only a composite model needs it.
    from winml_dag.onnxmodel.renamed import write_renamed

    others = {name: known for name, known in names.items() if name != model.name}
    with tempfile.TemporaryDirectory(prefix="winml-dag-") as folder:
        store.fetch(Artifact.of([model]), Path(folder))
        written = Path(folder) / "renamed.onnx"
        write_renamed(Path(folder) / model.name, written, others)
        digest, content = digest_file(written), written.read_bytes()
    return FileEntry(names[model.name], digest, len(content)), content
