"""Noting a plan, and then the build that was made of it, so that the next one can see at a glance that it still holds.

Evidence that is gathered after the fact must not vouch for what the plan has not seen. So a plan is only noted when all
that steered it had come to rest before planning began; of what stages only read, and of what they put out, the digests
are known from the plan and the records, and what is too young to be told by its times is read again the next time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.pipeline.buildgraph import BuildGraph, Origin
from winml_dag.pipeline.standing.check import ABSENT, Standing, content_of, places_of
from winml_dag.pipeline.standing.evidence import PER_PATH, changed_after, changed_ns, differing, look
from winml_dag.pipeline.standing.note import KEYS_SUFFIX, Groups, Header, Note, file_of
from winml_dag.pipeline.standing.recall import Made, StandingPlan, plan_text, text_of
from winml_dag.store import changetime
from winml_dag.store.files import write_whole

if TYPE_CHECKING:
    from winml_dag.store.local import LocalStore

# Kinds of sources that say nothing about what is to be built: another content changes keys, and no plan.
_DATA_KINDS = frozenset({"file"})


@dataclass(frozen=True)
class Finished:
    """A build that was carried out.

    ``made``: what each node gave, by id; ``outputs``: digest by path of every file that lies where its user finds it,
    found right not before ``checked_ns``; ``summary``: how the next build will put it when there is nothing to do;
    ``seconds``: how long the stages took when they ran.
    """

    made: Mapping[str, Made]
    outputs: Mapping[str, str]
    checked_ns: int
    summary: str
    seconds: float


def note(planned: BuildGraph, store: LocalStore, finished: Finished | None = None) -> None:
    """Keep *planned* as what was asked leads to, if what it was made from had come to rest; with *finished*, also that
    it was carried out. A cache that cannot be written keeps nothing, and that is no error.
    """
    origin = planned.origin
    assert origin is not None
    looked_at = [path.absolute() for path in (*([origin.recipe] if origin.recipe else ()), *planned.looked_at)]
    if not all(changetime.has_settled(path, origin.began_ns) for path in looked_at):
        return
    # What was absent when planning began and is now has steered nothing, however young the folder around it may be: it
    # is where outputs have just been put.
    absent = [str(path.absolute()) for path in planned.absent]
    if any(map(os.path.lexists, absent)):
        return
    content = _Content()
    content.steering.update(dict.fromkeys(absent, ABSENT))
    for path in looked_at:
        content.steering.setdefault(str(path), "")
    # The store has looked at it when it was opened, so it may be young.
    content.steering[text_of(store.folder / "FORMAT")] = content_of(str(store.folder / "FORMAT"))
    for source in planned.graph.sources.values():
        group = content.data if source.kind in _DATA_KINDS else content.steering
        digests = {file.name: file.digest for file in planned.sources[source.name].files}
        group.update((text_of(file.path), digests[file.name]) for file in source.files)
    _digest_steering(content.steering, store)
    if finished is not None:
        content.outputs.update(finished.outputs)
        content.blobs.extend(_blobs(finished.made.values(), store))
    _write(planned, origin, content, finished, store)


@dataclass
class _Content:
    """Digests by path, group by group; no path is in two groups."""

    steering: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    blobs: list[str] = field(default_factory=list)


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


def _write(
    planned: BuildGraph, origin: Origin, content: _Content, finished: Finished | None, store: LocalStore
) -> None:
    data = {path: digest for path, digest in content.data.items() if path not in content.steering}
    known = content.steering | data
    outputs = {path: digest for path, digest in content.outputs.items() if path not in known}
    hashed = known | outputs
    paths = [*hashed, *content.blobs]
    seen = look(paths)
    young = changed_after(seen[: len(known) * PER_PATH], origin.began_ns - changetime.SETTLED_NS)
    if finished is not None:
        put = changed_after(seen[len(known) * PER_PATH :], finished.checked_ns - changetime.SETTLED_NS)
        young += [len(known) + place for place in put if place < len(outputs)]
    folders = {os.path.dirname(path) for path in content.steering} | {str(planned.summary.output_dir.absolute())}
    header = Header(
        asked=origin.words,
        surroundings=origin.surroundings,
        places=places_of(sorted(folders)),
        groups=Groups(len(content.steering), len(data), len(outputs), len(content.blobs)),
        unsettled=young,
        complete=finished is not None,
        summary="" if finished is None else finished.summary,
        stages=len(planned.graph.nodes) if finished is None else _records(finished),
        seconds=0.0 if finished is None else round(finished.seconds, 3),
    )
    made = {} if finished is None else finished.made
    text = plan_text(planned, {path: place for place, path in enumerate(paths)}, made)
    _keep(Note.of(header, paths, seen, hashed.values(), text), store, [one.cache_key for one in made.values()])


def note_again(planned: BuildGraph, store: LocalStore, finished: Finished) -> None:
    """Bring the note that *planned* was recalled from up to date after a build of it, or of a part of it.

    What steers the plan was found unchanged when it was recalled, and only that look vouches for it.
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
    seen = _seen_again(planned.standing, paths, finished.outputs.keys())
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


def _records(finished: Finished) -> int:
    """How many results there are: rounds of optimize and analyze that add nothing have one."""
    return len({one.cache_key for one in finished.made.values()})


def _unsettled(planned: BuildGraph, finished: Finished, hashed: Sequence[str], seen: Sequence[int]) -> list[int]:
    """Places of files whose content was established so shortly after they changed that a later change need not show.

    Outputs were found right at the end of the build, all else when the plan was recalled. Only what was read or put
    since the old note can be such a file.
    """
    standing = planned.standing
    assert standing is not None
    doubtful = {*standing.note.header.unsettled, *differing(standing.note.seen, standing.seen)}
    suspects = {standing.note.paths[place] for place in doubtful} | finished.outputs.keys()
    suspects |= {path for path, _ in _read_by(planned)}
    found = []
    for place, path in enumerate(hashed):
        if path in suspects:
            moment_ns = finished.checked_ns if path in finished.outputs else standing.at_ns
            if changed_ns(seen, place) > moment_ns - changetime.SETTLED_NS:
                found.append(place)
    return found


def _seen_again(standing: Standing, paths: Sequence[str], touched: Set[str]) -> array[int]:
    """What was seen of *paths* when the plan was recalled, and of those that were *touched* since, or are new, now.

    Of sources never what is seen now: one that was edited after it was read would look like what was read.
    """
    place_of = {path: place for place, path in enumerate(standing.note.paths)}
    seen = array("q")
    for path in paths:
        place = None if path in touched else place_of.get(path)
        seen.extend(look([path]) if place is None else standing.seen[place * PER_PATH : (place + 1) * PER_PATH])
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
