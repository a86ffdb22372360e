"""Does a finished build come out the same again? Its stages are run anew from their recorded inputs and compared.

Nothing that a build reads or writes is touched: not the records, not the blobs, not the output folder. A stage needs
its inputs and its record only, so any of them can be asked about alone.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from winml_dag import TOOL_ID
from winml_dag.canonical import JsonValue
from winml_dag.engine.events import Observer, StageResult, Status
from winml_dag.engine.execute import Executor, LocalExecutor
from winml_dag.engine.keys import cache_key
from winml_dag.engine.plan import BuildState, plan_graph
from winml_dag.engine.reproduce import Recorded, Rerun, Witness, run_again
from winml_dag.engine.run import Damaged, Runner
from winml_dag.engine.stage import Node
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.buildresult import result_of, views_named
from winml_dag.store.artifact import Artifact
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.records import Record
from winml_dag.store.store import Store

# Where two artifacts that should be the same first differ, file by file, in words.
#
# A model is compared as a model, together with the files that it refers to; JSON by its values; anything else, and what
# has equal values in other bytes, by its bytes.


_BUFFER = 1 << 20
_LONGEST = 60


def changed_files(recorded: Artifact, found: Artifact) -> tuple[str, ...]:
    """The names of all files that are not the same in both, those that only one has included."""
    before, now = ({file.name: file.digest for file in artifact.files} for artifact in (recorded, found))
    return tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))


def first_difference(recorded: Path, found: Path, name: str) -> str:
    """Where the file *name* of an artifact in the folder *found* first differs from that in the folder *recorded*."""
    before, now = recorded / name, found / name
    if not before.is_file() or not now.is_file():
        return "present -> absent" if before.is_file() else "absent -> present"
    told = None
    if name.endswith(".onnx"):
        told = _model_difference(before, now)
    elif owner := _owner(found, now):
        # Which tensor an offset belongs to is told by the model; within a provider's own binary nobody can tell.
        if owner.is_binary:
            return f"the binary of {owner.model} {_byte_difference(before, now)}"
        told = _model_difference(recorded / owner.model, found / owner.model)
    elif name.endswith(".json"):
        told = _json_difference(before, now)
    return told or _byte_difference(before, now)


@dataclass(frozen=True)
class _Owner:
    """The model that refers to a file: as external data, or as the binary of an EPContext node."""

    model: str
    is_binary: bool


def _owner(folder: Path, file: Path) -> _Owner | None:
    from winml_dag.onnxmodel.inspect import inspect_model

    for path in sorted(folder.rglob("*.onnx")):
        try:
            summary = inspect_model(path)
        except InputError:
            continue
        if file in {path.parent / name for name in summary.files[1:]}:
            is_data = file in {path.parent / name for name in summary.external_data}
            return _Owner(path.relative_to(folder).as_posix(), not is_data)
    return None


def _model_difference(recorded: Path, found: Path) -> str | None:
    from winml_dag.onnxmodel import difference

    try:
        return difference.first_difference(recorded, found)
    except (InputError, ValueError, TypeError):
        return None  # no model, whatever its name says, or one with a tensor that onnx cannot read


def _json_difference(recorded: Path, found: Path) -> str | None:
    try:
        before, now = (dict(_leaves(json.loads(path.read_bytes()), "")) for path in (recorded, found))
    except (ValueError, RecursionError):
        return None  # no JSON, whatever its name says
    for path in (*before, *(path for path in now if path not in before)):
        if before.get(path) != now.get(path):
            values = (_shown(side.get(path, "absent")) for side in (before, now))
            return f"{path or 'the value'}: {' -> '.join(values)}"
    return None


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Every value by its path, such as ``outputs.logits.cosine`` or ``ranges.x[0]``, as text: 1 and 1.0 are two."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from _leaves(value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _byte_difference(recorded: Path, found: Path) -> str:
    with recorded.open("rb") as before, found.open("rb") as now:
        offset = _first_byte(before, now)
    sizes = [path.stat().st_size for path in (recorded, found)]
    lengths = "" if sizes[0] == sizes[1] else f" ({sizes[0]} -> {sizes[1]} bytes)"
    return f"differs from byte {offset} on{lengths}"


def _first_byte(before: BinaryIO, now: BinaryIO) -> int:
    """The offset of the first byte that differs, or the length of the shorter file."""
    offset = 0
    while True:
        old, new = before.read(_BUFFER), now.read(_BUFFER)
        if old != new:
            both = min(len(old), len(new))
            return offset + next((place for place in range(both) if old[place] != new[place]), both)
        if not old:
            return offset
        offset += len(old)


THE_RECORD = "the record"


class Verdict(StrEnum):
    """What was found of a stage."""

    EQUAL = "equal"
    DIFFERS = "differs"
    FAILED = "failed"
    NOT_RUN = "cannot be reproduced"


@dataclass(frozen=True)
class Difference:
    """A file of output *slot* that differs in these *runs* from that of *other* (the record, or ``run 1``).

    ``text`` says where first, with the value of *other* on the left: ``initializer 'w', element [0]: 0.5 -> 0.25``.
    """

    slot: str
    file: str
    runs: tuple[int, ...]
    other: str
    text: str


@dataclass(frozen=True)
class StageReproduction:
    """What became of one stage.

    Attributes:
        runs: how many came to an end.
        files, size: of the recorded outputs, which each run was held against.
        elapsed_seconds: of all runs together.
        reason: why it cannot be reproduced, else empty.
        failure: the first run that failed, if any did.
    """

    id: str
    verdict: Verdict
    runs: int = 0
    files: int = 0
    size: int = 0
    elapsed_seconds: float = 0.0
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    failure: StageResult | None = None

    @property
    def runs_agree(self) -> bool:
        """Whether all runs, of several, gave the same: then it is the record that is different."""
        return self.runs > 1 and all(len(difference.runs) == self.runs for difference in self.differences)


@dataclass(frozen=True)
class Reproduction:
    """What became of all stages that were asked for, in the order of the graph."""

    stages: tuple[StageReproduction, ...]
    elapsed_seconds: float

    @property
    def equal(self) -> bool:
        return all(stage.verdict is Verdict.EQUAL for stage in self.stages)


@dataclass(frozen=True)
class ReproduceOptions:
    """How often, how many at a time, and how long a run may take at most (None: what its stage declares)."""

    runs: int = 1
    jobs: int = 1
    stage_timeout_seconds: float | None = None


def reproduce(
    planned: BuildGraph,
    store: Store,
    names: Sequence[str] = (),
    options: ReproduceOptions = ReproduceOptions(),
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
) -> Reproduction:
    """Run the stages *names* (ids, or names of stages; none means all) again and compare what they put out.

    Raises:
        UsageError: for a name that this build does not have, or has left out.
        StoreError: when the cache cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    started = time.monotonic()
    foreseen = plan_graph(planned.graph, planned.sources, store, scope=planned.summary.scope)
    nodes = _chosen(planned, foreseen, names)
    looked_up = _look_up(planned, foreseen, store)
    able = [found for node in nodes if isinstance(found := looked_up[node.id], Recorded)]
    with store.scratch.open() as scratch:
        # What runs again reads what its inputs' makers stored: none of it is to be removed meanwhile.
        store.used(result.cache_key for result in foreseen if result.record is not None and result.cache_key)
        witness = Witness(store, (one.record for one in able), scratch / "kept")
        runner = Runner(
            planned.graph,
            witness,
            executor or LocalExecutor(),
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by=TOOL_ID,
            rebuild=True,
            timeout_seconds=options.stage_timeout_seconds,
        )
        reruns: dict[str, list[Rerun]] = {one.node.id: [] for one in able}
        for rerun in run_again(able, runner, runs=options.runs, jobs=options.jobs, observer=observer):
            reruns[rerun.recorded.node.id].append(rerun)
        comparison = _Comparison(store, witness, scratch / "recorded")
        stages = tuple(
            comparison.stage(found, reruns[node.id])
            if isinstance(found := looked_up[node.id], Recorded)
            else StageReproduction(node.id, Verdict.NOT_RUN, reason=found)
            for node in nodes
        )
    return Reproduction(stages, time.monotonic() - started)


def _chosen(planned: BuildGraph, foreseen: tuple[StageResult, ...], names: Sequence[str]) -> list[Node]:
    """The nodes that *names* mean, in the order of the graph."""
    line = result_of(planned, foreseen, 0.0)
    chosen = [view for name in names for view in views_named(line, name)]
    if left_out := next((view for view in chosen if view.result is None), None):
        raise UsageError(f"{left_out.id} is left out of this build: {left_out.reason}.")
    ids = {view.id for view in chosen or line.stages}
    return [node for node in planned.graph.nodes if node.id in ids]


def _look_up(planned: BuildGraph, foreseen: tuple[StageResult, ...], store: Store) -> dict[str, Recorded | str]:
    """Each node's record and inputs by its id; a text says why it has none, or cannot be run."""
    known = BuildState(planned.graph, planned.sources)
    found: dict[str, Recorded | str] = {}
    for result in foreseen:
        node = result.node
        key_inputs, inputs = known.key_inputs(node), known.inputs(node)
        record = None if key_inputs is None else store.record(cache_key(key_inputs))
        if record is None:
            found[node.id] = f"it has no record ({result.reason})"
            continue
        known.settle(node, record)
        # Its own outputs may have gone: their digests are in the record.
        made = [inputs[slot] for slot, name in node.inputs.items() if name in planned.graph.makers]
        gone = store.missing(file for artifact in made for file in artifact.files)
        found[node.id] = _lost(file.name for file in gone) if gone else Recorded(node, record, inputs)
    return found


def _lost(names: Iterable[str]) -> str:
    return f"missing or damaged in the cache: {', '.join(names)}"


@dataclass(frozen=True)
class _Variant:
    """One of the things that a stage put out in a slot, and the runs that did."""

    artifact: Artifact
    runs: tuple[int, ...]


class _Comparison:
    """Holds what came out against what is recorded, and against each other."""

    def __init__(self, store: Store, witness: Witness, folder: Path) -> None:
        self._store = store
        self._witness = witness
        self._folder = folder
        self._numbers = itertools.count()

    def stage(self, recorded: Recorded, reruns: Sequence[Rerun]) -> StageReproduction:
        node, files = recorded.node, recorded.record.files()
        results = [(rerun.number, rerun.outcome) for rerun in reruns if isinstance(rerun.outcome, StageResult)]
        if damaged := [rerun.outcome for rerun in reruns if isinstance(rerun.outcome, Damaged)]:
            return StageReproduction(node.id, Verdict.NOT_RUN, reason=_lost([damaged[0].file.name]))
        done = [(number, result.record) for number, result in results if result.record is not None]
        failure = next((result for _, result in results if result.status is Status.FAILED), None)
        differences = tuple(self._differences(recorded.record, done))
        verdict = Verdict.FAILED if failure else Verdict.DIFFERS if differences else Verdict.EQUAL
        return StageReproduction(
            node.id,
            verdict,
            runs=len(done),
            files=len(files),
            size=sum(file.size for file in files),
            elapsed_seconds=round(sum(result.elapsed_seconds or 0.0 for _, result in results), 3),
            differences=differences,
            failure=failure,
        )

    def _differences(self, record: Record, done: Sequence[tuple[int, Record]]) -> Iterator[Difference]:
        for slot, before in sorted(record.outputs.items()):
            outputs = [(number, result.outputs[slot]) for number, result in done]
            variants = [variant for variant in _variants(outputs) if variant.artifact != before]
            if not variants:
                continue
            kept = [self._witness.kept(record.cache_key, slot, variant.artifact) for variant in variants]
            recorded = self._fetched(before)
            for variant, folder in zip(variants, kept, strict=True):
                yield from _differences(slot, variant, folder, THE_RECORD, before, recorded)
            first = f"run {variants[0].runs[0]}"
            for variant, folder in zip(variants[1:], kept[1:], strict=True):
                yield from _differences(slot, variant, folder, first, variants[0].artifact, kept[0])

    def _fetched(self, artifact: Artifact) -> Path | None:
        """A folder with *artifact*; None when the cache does not have all of it any more."""
        folder = self._folder / str(next(self._numbers))
        try:
            self._store.fetch(artifact, folder)
        except BlobDamaged:
            return None
        return folder


def _variants(outputs: Sequence[tuple[int, Artifact]]) -> list[_Variant]:
    """The different ones of *outputs*, which come with the numbers of their runs, in the order of their first runs."""
    runs: dict[Artifact, list[int]] = {}
    for number, artifact in outputs:
        runs.setdefault(artifact, []).append(number)
    return [_Variant(artifact, tuple(numbers)) for artifact, numbers in runs.items()]


def _differences(
    slot: str, variant: _Variant, folder: Path, other: str, other_artifact: Artifact, other_folder: Path | None
) -> Iterator[Difference]:
    for name in changed_files(other_artifact, variant.artifact):
        if other_folder is None:
            text = "nobody can say where, because the recorded file has gone from the cache"
        else:
            text = first_difference(other_folder, folder, name)
        yield Difference(slot, name, variant.runs, other, text)
