"""A build whose stages all have results, and the files that its output folder gets.

With several components, whose file names are prefixed, a model that refers to other files by name (weights or a binary
next to it) is rewritten.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from winml_dag.engine.events import StageResult
from winml_dag.errors import StoreError
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, prefixed
from winml_dag.pipeline.layout import RANGES, beside_output, is_builtin, is_carried_on, published_outputs, reports
from winml_dag.pipeline.search import folded
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Published:
    """``files``: all files of the output folder; ``rewritten``: the content of those that are not stored results."""

    files: tuple[FileEntry, ...]
    rewritten: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def results(self) -> tuple[FileEntry, ...]:
        """The files that the store has."""
        return tuple(entry for entry in self.files if entry.name not in self.rewritten)


# Files of one output, and the names of those that have another one in the folder.
_Named: TypeAlias = tuple[tuple[FileEntry, ...], Mapping[str, str]]


@dataclass(frozen=True)
class FinishedBuild:
    """A build, or the part of one that was brought up to date, with the results of its stages, by id."""

    planned: BuildGraph
    results: Mapping[str, StageResult]
    store: Store
    elapsed_seconds: float = 0.0

    @property
    def summary(self) -> BuildSummary:
        return self.planned.summary

    @cached_property
    def like(self) -> Mapping[str, str]:
        """The id of the stage that each repeated round of a search repeats."""
        return folded(self.results.values()).like

    @cached_property
    def published(self) -> Published:
        """The files of the output folder; a file that several stages share (a sidecar) is listed once.

        For a build of a single file: that file, the files that belong to it, and reports named after it.

        Raises:
            StoreError: when two stages output different files with the same name.
            BlobDamaged: when a model that has to be rewritten cannot be fetched.
        """
        found: dict[str, FileEntry] = {}
        rewritten: dict[str, bytes] = {}
        for files, names in self._named_files():
            entries, texts = self._in_the_folder(files, names)
            rewritten |= texts
            for entry in entries:
                if found.setdefault(entry.name, entry) != entry:
                    raise StoreError(f"Two stages write different files named {entry.name}.")
        return Published(tuple(sorted(found.values())), rewritten)

    def needed_files(self) -> Iterator[FileEntry]:
        """Yield the files of the store that the output folder needs, unchanged or rewritten."""
        for files, _ in self._named_files():
            yield from files

    def _named_files(self) -> Iterator[_Named]:
        one = self.summary.output_file
        return self._files_of_all() if one is None else self._files_of_one(one)

    def _files_of_all(self) -> Iterator[_Named]:
        summary = self.summary
        ours = [result for result in self.results.values() if is_builtin(result.node)]
        for result in ours:
            assert result.record is not None
            if any(is_carried_on(result.node, other.node) for other in ours):
                continue
            for slot, component in published_outputs(result.node, summary.settings, summary.components):
                if not self.planned.shows(result.node, slot):
                    continue
                files = result.record.outputs[slot].files
                yield files, {entry.name: prefixed(entry.name, component) for entry in files}

    def _files_of_one(self, name: str) -> Iterator[_Named]:
        models = {component: path.name for component, path in self.summary.models_by_component.items()}
        for node_id, result in self.results.items():
            assert result.record is not None
            files = tuple(entry for artifact in result.record.outputs.values() for entry in artifact.files)
            if node_id in self.planned.finals:
                # finalize has named the model, and its companion files refer to it by name. Ranges are one file.
                yield files, {RANGES: name}
                continue
            for slot, artifact in result.record.outputs.items():
                beside = models.get(slot.removesuffix("_hierarchy"), name)
                chosen = tuple(entry for entry in artifact.files if entry.name in reports(result.node))
                yield chosen, {entry.name: beside_output(beside, entry.name) for entry in chosen}

    def _in_the_folder(
        self, files: tuple[FileEntry, ...], others: Mapping[str, str]
    ) -> tuple[list[FileEntry], dict[str, bytes]]:
        """Return *files* under their published names, and the content of a model that is rewritten."""
        names = {entry.name: others.get(entry.name, entry.name) for entry in files}
        entries = [replace(entry, name=names[entry.name]) for entry in files]
        models = [entry for entry in files if entry.name.endswith(".onnx")]
        if len(files) < 2 or len(models) != 1 or all(name == known for name, known in names.items()):
            return entries, {}
        entry, content = self._rewritten(models[0], names)
        return [entry if known.name == entry.name else known for known in entries], {entry.name: content}

    def _rewritten(self, model: FileEntry, names: Mapping[str, str]) -> tuple[FileEntry, bytes]:
        """Return *model* under its new name, with references to other files replaced by their new *names*."""
        # Imported here: only a composite model needs it.
        from winml_dag.onnxmodel.sidecar import write_renamed

        others = {name: known for name, known in names.items() if name != model.name}
        with tempfile.TemporaryDirectory(prefix="winml-dag-") as folder:
            self.store.fetch(Artifact.of([model]), Path(folder))
            written = Path(folder) / "renamed.onnx"
            write_renamed(Path(folder) / model.name, written, others)
            digest, content = digest_file(written), written.read_bytes()
        return FileEntry(names[model.name], digest, len(content)), content
