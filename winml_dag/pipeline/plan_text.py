"""The plan in an entry of the plan cache: a graph as lines of JSON, one per node, which a build parses only as needed.

An edit of one file among thousands affects a handful of nodes. Only these are made into a graph; their inputs from
other nodes are given by digest. Making all nodes of 4000 and deciding each takes 0.5 s; finding and making four takes
20 ms.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Command, InputSlot, Memory, Node, Source, SourceFile, Stage
from winml_dag.file_reading import PER_PATH
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, Step
from winml_dag.pipeline.uptodate import Entry
from winml_dag.store.artifact import Artifact, FileEntry

if TYPE_CHECKING:
    from winml_dag.pipeline.uptodate import CurrentPlan
    from winml_dag.store.records import Record
    from winml_dag.store.store import Store


def text_of(path: Path) -> str:
    """Return *path* as in an entry. ".." is kept: after a link, removing it would change the path."""
    return str(path.absolute())


def placed_text(folder: Path, name: str) -> str:
    """Return the path of *name* in the absolute *folder*, as in an entry; thousands of Path objects would be slow."""
    return f"{folder}{os.sep}{name if os.sep == '/' else name.replace('/', os.sep)}"


def load_plan(current_plan: CurrentPlan, store: Store, *, part: bool = False) -> BuildGraph:
    """Load the graph of the entry, with the current content of its sources.

    With *part*, only the nodes that may have to run, if these can be determined.

    Raises:
        InputError: for a source that cannot be read.
    """
    entry, changed = current_plan.entry, current_plan.changed
    groups = entry.header.groups
    data = [place for place in changed if place < groups.steering + groups.data]
    entries = store.fingerprints.entries([(Path(entry.paths[place]), "") for place in data])
    plan = CachedPlan(entry, dict(zip(data, entries, strict=True)))
    if part and changed and entry.header.complete and plan.is_divisible and plan.knows(changed):
        return replace(plan.behind(changed), current_plan=current_plan, cached_plan=plan)
    return replace(plan.whole(), current_plan=current_plan, cached_plan=plan)


def whole(planned: BuildGraph, store: Store) -> BuildGraph:
    """Return the whole graph that *planned* is a part of; *planned* itself if it is not a part."""
    if not planned.others or planned.current_plan is None:
        return planned
    return load_plan(planned.current_plan, store)


def plan_text(planned: BuildGraph, place_of: Mapping[str, int]) -> bytes:
    """Encode *planned* for an entry. *place_of*: the index of each path in it.

    The first line is about the graph, the second has its settings, the third the key of each node. Then each node has a
    line, and after these one with its outputs. :meth:`CachedPlan.text_with` fills in keys and outputs.
    """
    nodes, sources = planned.graph.nodes, list(planned.graph.sources.values())
    node_places = {node.id: place for place, node in enumerate(nodes)}
    source_places = {source.name: place for place, source in enumerate(sources)}
    # Most nodes of a large graph share their declarations. By identity: a declaration has no hash.
    stages = {id(node.stage): node.stage for node in nodes}
    stage_places = {identity: place for place, identity in enumerate(stages)}
    lines = [_text({**vars(node), "stage": stage_places[id(node.stage)]}) for node in nodes]
    summary = {field.name: getattr(planned.summary, field.name) for field in fields(planned.summary)}
    head: dict[str, object] = {
        "summary": {**summary, "settings": {}},
        "final": planned.final,
        "steps": [[step.id, step.stage, step.skipped] for step in planned.steps],
        "stages": [*stages.values()],
        "sources": [
            [
                source.name,
                source.kind,
                [[file.name, place_of[text_of(file.path)]] for file in source.files],
                source.folders,
            ]
            for source in sources
        ],
        "ids": [node.id for node in nodes],
        "reads": [[node_places[maker.id] for maker in planned.graph.needs(node)] for node in nodes],
        "uses": [[source_places[name] for name in node.inputs.values() if name in source_places] for node in nodes],
        "gives": [[]] * len(nodes),
    }
    keys = " ".join([_NO_KEY] * len(nodes))
    return "\n".join([_text(head), _text(planned.summary.settings), keys, *lines, *["null"] * len(nodes)]).encode()


class CachedPlan:
    """The plan of an entry, parsed as needed. *fresh*: files whose content has changed, by their index."""

    def __init__(self, entry: Entry, fresh: Mapping[int, FileEntry] | None = None) -> None:
        self._entry = entry
        self._fresh = fresh or {}
        self._first, self._settings, self._keys, *lines = entry.plan.split(b"\n")
        self._head: Any = json.loads(self._first)
        nodes = len(lines) // 2
        self._lines, self._outputs = lines[:nodes], lines[nodes:]

    @property
    def is_divisible(self) -> bool:
        """Whether every stage publishes its own outputs, so that a part can be brought up to date.

        The output folder of a model is only changed as a whole.
        """
        return bool(self._head["summary"]["origin"] == "stages")

    def knows(self, changed: Sequence[int]) -> bool:
        """Whether the nodes that read or write the paths at the indices *changed* are recorded.

        They are not for a blob, and the manifest belongs to all nodes: then all nodes are decided.
        """
        groups = self._entry.header.groups
        read = groups.steering + groups.data
        given = {place for places in self._head["gives"] for place in places}
        return all(place < read or place in given for place in changed)

    def whole(self) -> BuildGraph:
        """Return the plan as saved, with the sources' content of that time."""
        return self._graph(range(len(self._lines)), json.loads(self._settings))

    def behind(self, changed: Sequence[int]) -> BuildGraph:
        """Return the nodes that read or write the paths at the indices *changed*, and all downstream nodes."""
        return self._graph(sorted(self._reached(set(changed))), {})

    def text_with(self, records: Mapping[str, Record], gives: Mapping[str, Sequence[int]]) -> tuple[bytes, list[str]]:
        """Return the text of the plan with the results of nodes replaced by *records*, and the keys of all nodes.

        *gives*: by node id, the indices of the files that it wrote to the user's folder.
        """
        head, keys, outputs = self._head, self._keys.decode().split(" "), list(self._outputs)
        before = list(head["gives"])
        for place, node_id in enumerate(head["ids"]):
            if (record := records.get(node_id)) is not None:
                outputs[place], keys[place] = _outputs_line(record.outputs), record.cache_key
                head["gives"][place] = [*gives.get(node_id, ())]
        first = self._first if head["gives"] == before else _text(head).encode()
        text = b"\n".join([first, self._settings, " ".join(keys).encode(), *self._lines, *outputs])
        return text, [key for key in keys if key != _NO_KEY]

    def _reached(self, changed: set[int]) -> set[int]:
        head = self._head
        sources = {
            place for place, (_, _, files, _) in enumerate(head["sources"]) if any(file in changed for _, file in files)
        }
        reached: set[int] = set()
        # A node comes after those that it reads.
        for node, (makers, uses, gives) in enumerate(zip(head["reads"], head["uses"], head["gives"], strict=True)):
            if not (reached.isdisjoint(makers) and sources.isdisjoint(uses) and changed.isdisjoint(gives)):
                reached.add(node)
        return reached

    def _graph(self, chosen: Iterable[int], settings: JsonObject) -> BuildGraph:
        head, places = self._head, list(chosen)
        stages = [_stage(value) for value in head["stages"]]
        nodes = [_node(self._lines[place], stages) for place in places]
        used = sorted({source for place in places for source in head["uses"][place]})
        sources = [self._source(place) for place in used]
        given = dict(self._given(places, stages))
        graph = Graph.of(nodes, (source for source, _ in sources), {name: node for name, (node, _) in given.items()})
        ids = {node.id for node in nodes}
        return BuildGraph(
            summary=_summary(head["summary"], settings),
            graph=graph,
            steps=tuple(Step(*step) for step in head["steps"] if step[2] is not None or step[0] in ids),
            sources={source.name: artifact for source, artifact in sources},
            final=head["final"],
            given={name: artifact for name, (_, artifact) in given.items()},
            placed=dict(self._placed(nodes, places)),
            others=len(self._lines) - len(nodes),
        )

    def _source(self, place: int) -> tuple[Source, Artifact]:
        name, kind, files, folders = self._head["sources"][place]
        entries = [self._file(file, at) for file, at in files]
        read = tuple(SourceFile(file, Path(self._entry.paths[at])) for file, at in files)
        source = Source(name, kind, read, tuple(map(Path, folders)))
        return source, Artifact.of(entries)

    def _file(self, name: str, place: int) -> FileEntry:
        if place in self._fresh:
            return replace(self._fresh[place], name=name)
        return FileEntry(name, self._entry.digests[place], self._entry.seen[place * PER_PATH])

    def _placed(self, nodes: Sequence[Node], places: Sequence[int]) -> Iterator[tuple[str, tuple[FileEntry, ...]]]:
        for node, place in zip(nodes, places, strict=True):
            if node.folder is not None and (outputs := self._outputs_of(place)):
                yield node.id, tuple(node.placed_files(outputs))

    def _given(self, places: Sequence[int], stages: Sequence[Stage]) -> Iterator[tuple[str, tuple[Node, Artifact]]]:
        """Yield what nodes outside of *places* output for those inside: maker and artifact by name."""
        inside = set(places)
        makers = {maker for place in places for maker in self._head["reads"][place]} - inside
        for maker in sorted(makers):
            node = _node(self._lines[maker], stages)
            for slot, artifact in self._outputs_of(maker).items():
                yield node.output(slot), (node, artifact)

    def _outputs_of(self, place: int) -> dict[str, Artifact]:
        """Return the last outputs of a node by slot; none if it has not run."""
        outputs = json.loads(self._outputs[place]) or {}
        return {slot: Artifact.of(FileEntry(*file) for file in files) for slot, files in outputs.items()}


def _stage(value: Any) -> Stage:
    """The declaration that *value* was made from. Raises KeyError, TypeError or ValueError for anything else."""
    inputs = {slot: _input_slot(**declared) for slot, declared in value["inputs"].items()}
    packages, unchanged = tuple(value["packages"]), tuple(value["likely_unchanged"])
    memory = Memory(**value["memory"])
    return Stage(**{**value, "inputs": inputs, "packages": packages, "likely_unchanged": unchanged, "memory": memory})


def _input_slot(accepts: Any, **others: Any) -> InputSlot:
    return InputSlot(None if accepts is None else frozenset(accepts), **others)


def _node(line: bytes, stages: Sequence[Stage]) -> Node:
    """The node of a *line*. Raises KeyError, TypeError or ValueError for anything else."""
    value = json.loads(line)
    value["stage"] = stages[value["stage"]]
    value["tools"] = {name: Path(path) for name, path in value["tools"].items()}
    value["pools"] = tuple(value["pools"])
    if (command := value["command"]) is not None:
        value["command"] = Command(tuple(command["arguments"]), command["environment"])
    for name in ("folder", "interpreter"):
        value[name] = None if value[name] is None else Path(value[name])
    return Node(**value)


def _outputs_line(outputs: Mapping[str, Artifact]) -> bytes:
    files: JsonObject = {
        slot: [[file.name, file.digest, file.size, file.executable] for file in artifact.files]
        for slot, artifact in outputs.items()
    }
    return _text(files).encode()


def _summary(value: Any, settings: JsonObject) -> BuildSummary:
    folder, notices, also = Path(value["output_dir"]), tuple(value["notices"]), tuple(value["also"])
    return BuildSummary(**{**value, "output_dir": folder, "notices": notices, "also": also, "settings": settings})


def _text(value: object) -> str:
    return _ENCODER.encode(value)


def _plain(value: object) -> object:
    """Return what JSON has for *value*: a text for a path, a list for a set, and the fields of a dataclass."""
    if isinstance(value, Path):
        return str(value)
    return sorted(value) if isinstance(value, frozenset) else vars(value)


# The key of a node that has not run.
_NO_KEY = "-"

# Shared, because creating an encoder for each of thousands of lines takes as long as encoding the lines.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
