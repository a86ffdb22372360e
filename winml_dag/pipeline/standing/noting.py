"""Noting a plan, and then the build that was made of it, so that the next one can see at a glance that it still holds.

What vouches for a plan is what was seen of each path before planning read it. Content that is digested only when the
plan is noted counts if the path is then still what it was at first. No clock decides that; a file that had changed
shortly before it was read, so that a further write need not show in its times, is read again the next time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.engine.events import StageResult
from winml_dag.engine.placed import placed_files
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.publish import build_settings
from winml_dag.pipeline.standing.check import ABSENT, Standing, content_of, places_of, program_content
from winml_dag.pipeline.standing.evidence import PER_PATH, FirstLooks, changed_after, changed_ns, differing, look
from winml_dag.pipeline.standing.note import KEYS_SUFFIX, Groups, Header, Note, file_of
from winml_dag.pipeline.standing.recall import Made, StandingPlan, placed_text, plan_text, text_of
from winml_dag.readlog import Signature
from winml_dag.store import changetime
from winml_dag.store.artifact import FileEntry
from winml_dag.store.digest import digest_file
from winml_dag.store.files import write_whole

if TYPE_CHECKING:
    from winml_dag.pipeline.userstages.folder import UserFolder
    from winml_dag.store.local import LocalStore

# Kinds of sources that say nothing about what is to be built: another content changes keys, and no plan.
_DATA_KINDS = frozenset({"file"})


@dataclass(frozen=True)
class Planning:
    """What a graph was planned from: the request word for word, the recipe's file, when planning began, what surrounded
    it then, and what was seen of all that it read. Later surroundings would vouch for keys that were made in others.
    """

    words: str
    recipe: Path | None
    began_ns: int
    surroundings: Mapping[str, JsonValue]
    looks: FirstLooks


@dataclass(frozen=True)
class Finished:
    """A build that was carried out.

    ``made``: what each node gave, by id; ``outputs``: digest by path of every file that lies where its user finds it,
    found right not before ``checked_ns``; ``seen``: of those that were looked at when they were found right, or put
    there, what was seen then; ``summary``: how the next build will put it when there is nothing to do; ``seconds``: how
    long the stages took when they ran.
    """

    made: Mapping[str, Made]
    outputs: Mapping[str, str]
    seen: Mapping[str, Signature]
    checked_ns: int
    summary: str
    seconds: float


def note(planned: BuildGraph, store: LocalStore, planning: Planning) -> Standing | None:
    """Keep *planned* as what was asked leads to, and return what stands of it; None when that cannot be vouched for. A
    cache that cannot be written keeps nothing, and that is no error.
    """
    looked_at = [path.absolute() for path in (*([planning.recipe] if planning.recipe else ()), *planned.looked_at)]
    if not all(changetime.has_settled(path, planning.began_ns) for path in looked_at):
        return None
    # What was absent when planning began and is now has steered nothing.
    absent = [*dict.fromkeys(str(path.absolute()) for path in planned.absent)]
    nothing = look(absent)
    if any(nothing):
        return None
    # The store has looked at it when it was opened, so it may be young.
    form = text_of(store.folder / "FORMAT")
    planning.looks(form, None)
    steering = {**dict.fromkeys(absent, ABSENT), **dict.fromkeys([*map(str, looked_at), form], "")}
    programs = [str(path.absolute()) for path in planned.programs]
    steering |= {path: program_content(path) for path in programs}
    data: dict[str, str] = {}
    for source in planned.graph.sources.values():
        group = data if source.kind in _DATA_KINDS else steering
        digests = {file.name: file.digest for file in planned.sources[source.name].files}
        group.update((text_of(file.path), digests[file.name]) for file in source.files)
    _digest_steering(steering, store)
    hashed = {**steering, **{path: digest for path, digest in data.items() if path not in steering}}
    # Those that were absent come first, and were just seen to be so still.
    there = [*hashed][len(absent) :]
    first = planning.looks.of(there)
    # What is there now may be something else than planning has read.
    if first is None or look(there) != first:
        return None
    found = _note_of(planned, planning, hashed, len(steering), nothing + first)
    _keep(found, store, ())
    return Standing(found, (), found.seen, planning.began_ns)


def _note_of(
    planned: BuildGraph, planning: Planning, hashed: Mapping[str, str], steering: int, seen: array[int]
) -> Note:
    folders = {os.path.dirname(path) for path in [*hashed][:steering]} | {str(planned.summary.output_dir.absolute())}
    header = Header(
        asked=planning.words,
        surroundings=planning.surroundings,
        places=places_of(sorted(folders)),
        groups=Groups(steering, len(hashed) - steering),
        unsettled=changed_after(seen, planning.began_ns - changetime.SETTLED_NS),
        stages=len(planned.graph.nodes),
    )
    text = plan_text(planned, {path: place for place, path in enumerate(hashed)}, {})
    return Note.of(header, hashed, seen, hashed.values(), text)


def _digest_steering(steering: dict[str, str], store: LocalStore) -> None:
    """Fill in what is not known from the plan. Libraries of providers are large: their digests are remembered."""
    unknown = [path for path, digest in steering.items() if not digest]
    files = [path for path in unknown if os.path.isfile(path)]
    entries = store.fingerprints.entries([(Path(path), path) for path in files])
    steering.update((entry.name, entry.digest) for entry in entries)
    steering.update((path, content_of(path)) for path in unknown if not steering[path])


def _blobs(made: Iterable[Made], store: LocalStore) -> list[str]:
    """Where the blobs lie that *made* needs. Those that were never here, because a remote has them, are no evidence."""
    files = {file.digest: file for one in made for artifact in one.outputs.values() for file in artifact.files}
    far = {file.digest for file in store.far(files.values())}
    return [str(store.blobs.path(digest)) for digest in sorted(files.keys() - far)]


def note_again(planned: BuildGraph, store: LocalStore, finished: Finished) -> None:
    """Bring the note that *planned* was recalled from, or noted in, up to date after a build of it, or of a part of it.

    What was seen of all that steers the plan when it was read, or found unchanged, alone vouches for it.
    """
    assert planned.standing is not None
    note = planned.standing.note
    groups, digests = note.header.groups, dict(zip(note.paths, note.digests, strict=False))
    read = groups.steering + groups.data
    outputs = finished.outputs
    if planned.others:
        before = note.paths[read : groups.hashed]
        outputs = {path: digests[path] for path in before} | dict(finished.outputs)
        if len(outputs) != len(before):
            # The part has put other files than it did before: the next build plans, and notes, the whole.
            _forget(note, store)
            return
    hashed = {path: digests[path] for path in note.paths[:read]}
    hashed |= {path: digest for path, digest in _read_by(planned) if path in hashed}
    hashed |= {path: digest for path, digest in outputs.items() if path not in hashed}
    blobs = _blobs(finished.made.values(), store)
    if planned.others:
        blobs = list(dict.fromkeys([*note.paths[groups.hashed :], *blobs]))
    paths = [*hashed, *blobs]
    seen = _seen_again(planned.standing, paths, finished)
    header = replace(
        note.header,
        groups=replace(groups, outputs=len(hashed) - read, blobs=len(blobs)),
        unsettled=_unsettled(planned, finished, paths[: len(hashed)], seen),
        complete=True,
        summary=finished.summary,
        stages=note.header.stages if planned.others else _records(finished),
        seconds=note.header.seconds if planned.others else round(finished.seconds, 3),
    )
    if planned.others:
        text, keys = StandingPlan(note).text_with(finished.made)
    else:
        text = plan_text(planned, {path: place for place, path in enumerate(paths)}, finished.made)
        keys = [one.cache_key for one in finished.made.values()]
    _keep(Note.of(header, paths, seen, hashed.values(), text), store, keys)


def note_finished(
    planned: BuildGraph,
    own: UserFolder | None,
    results: Mapping[str, StageResult],
    files: Iterable[FileEntry],
    store: LocalStore,
    checked_ns: int,
) -> None:
    """Remember a finished build, of which *files* lie in its output folder, so that the next one sees at a glance that
    there is nothing to do. Nothing that it has put was found right before *checked_ns*.
    """
    if planned.standing is None:
        return
    folder = planned.summary.output_dir.absolute()
    outputs = {str(folder / entry.name): entry.digest for entry in files}
    if planned.summary.output_file is None:
        outputs |= {str(folder / name): digest_file(folder / name) for name in (MANIFEST, *build_settings(planned))}
    made: dict[str, Made] = {}
    seconds: dict[str, float] = {}
    for name, result in results.items():
        record = result.record
        assert record is not None
        made[name] = Made(record.cache_key, record.outputs)
        seconds[record.cache_key] = record.elapsed_seconds
        if result.node.folder is not None:
            put = placed_files(result.node, record.outputs)
            outputs.update((placed_text(result.node.folder, entry.name), entry.digest) for entry in put)
    seen = {} if own is None else own.in_place.seen_right(outputs)
    finished = Finished(made, outputs, seen, checked_ns, planned.summary.up_to_date, sum(seconds.values()))
    note_again(planned, store, finished)


def _records(finished: Finished) -> int:
    """How many results there are: rounds of optimize and analyze that add nothing have one."""
    return len({one.cache_key for one in finished.made.values()})


def _unsettled(planned: BuildGraph, finished: Finished, hashed: Sequence[str], seen: Sequence[int]) -> list[int]:
    """Places of files to read again: that were not looked at when their content was established, or had changed so
    shortly before that a later change need not show.

    Outputs were found right at the end of the build, all else when the plan was made or recalled. Only what was read or
    put since the old note can be such a file.
    """
    standing = planned.standing
    assert standing is not None
    doubtful = {*standing.note.header.unsettled, *differing(standing.note.seen, standing.seen)}
    suspects = {standing.note.paths[place] for place in doubtful} | finished.outputs.keys()
    suspects |= {path for path, _ in _read_by(planned)}
    found = []
    for place, path in enumerate(hashed):
        if path in suspects:
            is_output = path in finished.outputs
            moment_ns = finished.checked_ns if is_output else standing.at_ns
            young = changed_ns(seen, place) > moment_ns - changetime.SETTLED_NS
            if young or (is_output and path not in finished.seen):
                found.append(place)
    return found


def _seen_again(standing: Standing, paths: Sequence[str], finished: Finished) -> array[int]:
    """What was seen of *paths* when the plan was made or recalled, of outputs when they were found right, and of those
    that nobody has looked at then, or are new, now.

    Of sources never what is seen now: one that was edited after it was read would look like what was read.
    """
    place_of = {path: place for place, path in enumerate(standing.note.paths)}
    seen = array("q")
    for path in paths:
        place = None if path in finished.outputs else place_of.get(path)
        if place is not None:
            seen.extend(standing.seen[place * PER_PATH : (place + 1) * PER_PATH])
        elif path in finished.seen:
            seen.extend(finished.seen[path])
        else:
            seen.extend(look([path]))
    return seen


def _read_by(planned: BuildGraph) -> Iterator[tuple[str, str]]:
    """Path and digest of every file that the stages of *planned* read."""
    for source in planned.graph.sources.values():
        digests = {file.name: file.digest for file in planned.sources[source.name].files}
        for file in source.files:
            yield text_of(file.path), digests[file.name]


def _forget(note: Note, store: LocalStore) -> None:
    with suppress(OSError):
        Path(file_of(str(store.folder), note.header.asked)).unlink()


def _keep(note: Note, store: LocalStore, keys: Iterable[str]) -> None:
    file = Path(file_of(str(store.folder), note.header.asked))
    # A cache that cannot be written, or has no room: the next build plans anew.
    with suppress(OSError):
        write_whole(file, note.to_bytes())
        write_whole(file.with_suffix(KEYS_SUFFIX), "".join(f"{key}\n" for key in keys).encode())
