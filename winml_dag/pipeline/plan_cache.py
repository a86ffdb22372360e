"""Save a plan, and later the build made from it, in the plan cache, so that the next build can reuse it quickly.

A plan is validated by the stat signatures that each path had before planning read it. Content that is only digested
when the entry is saved counts if the path still has its first signature. No clock is involved. A file that changed
shortly before it was read is racy, since a further write need not change its times; it is read again the next time.

:func:`plan_request` turns a request into a graph: loaded from the plan cache if current, else planned.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag import file_reading
from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError, WinmlDagError
from winml_dag.file_reading import (
    CHANGED,
    PER_PATH,
    FirstLooks,
    Signature,
    is_racy,
    look,
    racy,
    reads_logged,
)
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.pipeline.layout import MANIFEST
from winml_dag.pipeline.plan_text import CachedPlan, load_plan, placed_text, plan_text, text_of
from winml_dag.pipeline.publish import build_settings
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.uptodate import (
    ABSENT,
    MALFORMED,
    CurrentPlan,
    Entry,
    Groups,
    Header,
    check,
    content_of,
    environment_fingerprint,
    file_of,
    program_content,
    real_paths,
)
from winml_dag.store.digest import digest_file

if TYPE_CHECKING:
    from winml_dag.pipeline.layout import FinishedBuild
    from winml_dag.pipeline.userstages.folder import UserFolder
    from winml_dag.store.records import Record
    from winml_dag.store.store import Store


# Types of sources that do not influence the plan: new content changes keys only.
_DATA_KINDS = frozenset({"file"})


def save_plan(
    planned: BuildGraph,
    store: Store,
    words: str,
    recipe: Path | None,
    began_ns: int,
    environment: Mapping[str, JsonValue],
    looks: FirstLooks,
) -> CurrentPlan | None:
    """Save *planned* as the plan of the request *words*; returns the saved state, or None when it cannot be validated.

    *environment*: its fingerprint when planning began, at *began_ns*: a later one would validate keys of another
    environment. *looks*: the signatures of everything read.
    """
    looked_at = [path.absolute() for path in (*([recipe] if recipe else ()), *planned.looked_at)]
    if not all(file_reading.has_settled(path, began_ns) for path in looked_at):
        return None
    # A path that was absent when planning started and exists now has not influenced the plan.
    absent = [*dict.fromkeys(str(path.absolute()) for path in planned.absent)]
    nothing = look(absent)
    if any(nothing):
        return None
    # The file was checked when the store was opened, so it may be recent.
    form = text_of(store.folder / "FORMAT")
    looks(form, None)
    steering = {**dict.fromkeys(absent, ABSENT), **dict.fromkeys([*map(str, looked_at), form], "")}
    steering |= {path: program_content(path) for path in (str(path.absolute()) for path in planned.programs)}
    data: dict[str, str] = {}
    for source in planned.graph.sources.values():
        group = data if source.kind in _DATA_KINDS else steering
        digests = {file.name: file.digest for file in planned.sources[source.name].files}
        group.update((text_of(file.path), digests[file.name]) for file in source.files)
    _digest_steering(steering, store)
    hashed = {**steering, **{path: digest for path, digest in data.items() if path not in steering}}
    # The absent paths come first, and were just confirmed to be absent.
    there = [*hashed][len(absent) :]
    first = looks.of(there)
    # The current content may differ from what planning read.
    if first is None or look(there) != first:
        return None
    seen = nothing + first
    folders = {os.path.dirname(path) for path in steering} | {str(planned.summary.output_dir.absolute())}
    header = Header(
        asked=words,
        environment=environment,
        places=real_paths(sorted(folders)),
        groups=Groups(len(steering), len(hashed) - len(steering)),
        racy=racy(hashed, seen, began_ns),
        stages=len(planned.graph.nodes),
    )
    text = plan_text(planned, {path: place for place, path in enumerate(hashed)})
    entry = Entry.of(header, hashed, seen, hashed.values(), text)
    entry.keep(str(store.folder), ())
    return CurrentPlan(entry, (), header.racy, seen, began_ns)


def _digest_steering(steering: dict[str, str], store: Store) -> None:
    """Fill in digests that the plan does not have. Digests of provider libraries, which are large, are cached."""
    unknown = [path for path, digest in steering.items() if not digest]
    files = [path for path in unknown if os.path.isfile(path)]
    entries = store.fingerprints.entries([(Path(path), path) for path in files])
    steering.update((entry.name, entry.digest) for entry in entries)
    steering.update((path, content_of(path)) for path in unknown if not steering[path])


def keep_finished(
    done: FinishedBuild, own: UserFolder | None, checked_ns: int, confirmed: Mapping[str, Signature]
) -> None:
    """Update the entry of *done*, a build or a part of one that was just published.

    No output was confirmed to be right before *checked_ns*; *confirmed* has signatures of that moment, as far as they
    are known. Only the signatures of the plan's inputs from when they were read, or found unchanged, validate the plan.
    """
    planned, results, store = done.planned, done.results, done.store
    if (current_plan := planned.current_plan) is None:
        return
    records = {name: result.record for name, result in results.items() if result.record}
    placed = {
        result.node.id: {
            placed_text(result.node.folder, entry.name): entry.digest
            for entry in result.node.placed_files(result.record.outputs)
        }
        for result in results.values()
        if result.node.folder is not None and result.record is not None
    }
    put = dict(_put(done)) | {path: digest for paths in placed.values() for path, digest in paths.items()}
    looked = {path: confirmed[path] for path in put if path in confirmed}
    if own is not None:
        looked |= own.in_place.seen_right(put)
    entry = current_plan.entry
    header, before = entry.header, {path: place for place, path in enumerate(entry.paths)}
    read, hashed = header.groups.steering + header.groups.data, header.groups.hashed
    blobs = _blobs(records.values(), store)
    if planned.others:
        if not all(before.get(path, hashed) < hashed for path in put):
            # The part wrote other files than before: the next build plans the whole graph and saves that.
            with suppress(OSError):
                Path(file_of(str(store.folder), header.asked)).unlink()
            return
        digests = list(entry.digests)
        # The paths of the entry stay, and those of new blobs follow.
        paths = [*entry.paths, *(path for path in blobs if path not in before)]
        same = len(entry.paths)
    else:
        outputs = {path: digest for path, digest in put.items() if before.get(path, read) >= read}
        digests = [*entry.digests[:read], *outputs.values()]
        paths, same, hashed = [*entry.paths[:read], *outputs, *blobs], read, read + len(outputs)
        # Rounds of optimize and analyze that add nothing share one result.
        seconds = {record.cache_key: record.elapsed_seconds for record in records.values()}
        header = replace(header, stages=len(seconds), seconds=round(sum(seconds.values()), 3))
    place_of = {path: place for place, path in enumerate(paths)}
    fresh = dict(_read_by(planned))
    for path, digest in (put | fresh).items():
        if path in place_of:
            digests[place_of[path]] = digest

    def signature(path: str) -> Sequence[int]:
        """Return that of an output from when it was confirmed, of others from the plan, else the current one.

        Sources never get the current one: one that was edited after it was read would then look unchanged.
        """
        place = None if path in put else before.get(path)
        if place is not None:
            return current_plan.seen[place * PER_PATH : (place + 1) * PER_PATH]
        return looked[path] if path in looked else look([path])

    seen = current_plan.seen[: same * PER_PATH]
    for path in paths[same:]:
        seen.extend(signature(path))
    for place in (place_of[path] for path in put):
        if place < same:
            seen[place * PER_PATH : (place + 1) * PER_PATH] = array("q", signature(paths[place]))
    # Paths that were read or written since the old entry may be racy; so may those that were racy before, or have
    # changed since.
    suspects = {entry.paths[place] for place in current_plan.doubtful}
    places = {place_of[path] for path in suspects | put.keys() | fresh.keys() if path in place_of}

    def may_change_unseen(path: str, changed_ns: int) -> bool:
        # Outputs were confirmed at the end of the build, everything else when the plan was made or loaded.
        if path in put:
            return path not in looked or is_racy(path, changed_ns, checked_ns)
        return is_racy(path, changed_ns, current_plan.at_ns)

    header = replace(
        header,
        groups=replace(header.groups, outputs=hashed - read, blobs=len(paths) - hashed),
        racy=[
            place
            for place in sorted(places)
            if place < hashed and may_change_unseen(paths[place], seen[place * PER_PATH + CHANGED])
        ],
        complete=True,
        summary="\n".join([*(f"note: {text}" for text in planned.summary.on_options), planned.summary.up_to_date]),
    )
    gives = {name: [place_of[path] for path in of_node] for name, of_node in placed.items()}
    text, keys = (planned.cached_plan or CachedPlan(entry)).text_with(records, gives)
    Entry.of(header, paths, seen, digests, text).keep(str(store.folder), keys)


def _put(done: FinishedBuild) -> Iterator[tuple[str, str]]:
    """Yield path and digest of the files in the output folder, with the manifest and settings there."""
    folder = done.summary.output_dir.absolute()
    yield from ((str(folder / entry.name), entry.digest) for entry in done.published.files)
    if done.summary.output_file is None:
        names = (MANIFEST, *build_settings(done.planned))
        yield from ((str(folder / name), digest_file(folder / name)) for name in names)


def _blobs(records: Iterable[Record], store: Store) -> list[str]:
    """Return the paths of the blobs that *records* need. Blobs that only a remote has are not checked."""
    files = {file.digest: file for record in records for file in record.files()}
    far = {file.digest for file in store.remote_only(files.values())}
    return [str(store.blobs.path(digest)) for digest in sorted(files.keys() - far)]


def _read_by(planned: BuildGraph) -> Iterator[tuple[str, str]]:
    """Yield path and digest of every file that the stages of *planned* read."""
    for source in planned.graph.sources.values():
        digests = {file.name: file.digest for file in planned.sources[source.name].files}
        for file in source.files:
            yield text_of(file.path), digests[file.name]


def plan_request(
    request: Request,
    store: Store,
    *,
    download: bool,
    needs_folder: bool = True,
    current_plan: CurrentPlan | None = None,
    part: bool = False,
    around: Mapping[str, JsonValue] | None = None,
) -> BuildGraph:
    """Return the graph of the build that *request* describes; *download* allows fetching a model from the hub.

    Without *needs_folder* a request that names no output folder is planned for one in the cache. *current_plan*: the
    cached plan, if it was looked up already. With *part* only the nodes that may have to run are returned, where these
    can be determined. *around*: the fingerprint of the environment, if it was taken before planning began.

    Raises:
        UsageError, InputError: as for :func:`winml_dag.pipeline.resolve.build_of`, and for sources that cannot be read.
    """
    words = request.words
    current_plan = current_plan or (None if words is None else check(str(store.folder), words))
    if current_plan is not None:
        # If a source is gone, planning again either reports it or finds that it is not needed.
        with suppress(*MALFORMED, InputError):
            return load_plan(current_plan, store, part=part)
    # Imported here: a current plan needs neither recipe nor declarations, which take 0.1 s to import.
    from winml_dag.ep.availability import environment_elsewhere
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of

    began_ns = time.time_ns()
    around = around or environment_fingerprint(began_ns)
    looks = FirstLooks()
    with reads_logged(looks):
        if request.command is not None:
            from winml_dag.pipeline.onestage import build_of_one

            build = build_of_one(request, download=download)
        else:
            build = build_of(request, store.folder, download=download, needs_folder=needs_folder)
        planned = plan_build(build, store.fingerprints)
    if words is None or not (needs_folder or request.output_dir or request.command or request.use_cache):
        return planned
    if build.lacks:
        return planned  # nothing would invalidate the entry when it appears, and the user must be notified
    if any(environment_elsewhere(node.environment) for node in planned.graph.nodes):
        return planned  # nothing on this machine would invalidate the entry when another machine's environment changes
    recipe = request.recipe if isinstance(request.recipe, Path) else None
    return replace(planned, current_plan=save_plan(planned, store, words, recipe, began_ns, around, looks))


# Builds by label: the graph of each, or the error why it has none.
Planned: TypeAlias = Mapping[str, BuildGraph | WinmlDagError]


def plan_each(requests: Iterable[tuple[str, Request]], store: Store) -> Planned:
    """Plan each request, by its label, to build it; one that cannot be planned has an error instead of a graph."""
    # Take it once for all requests: it is the same for each, and takes a third of the time to plan one.
    environment = environment_fingerprint(time.time_ns())
    return _each(requests, lambda request: plan_request(request, store, download=True, around=environment))


def look_at_each(requests: Iterable[tuple[str, Request]], store: Store) -> Planned:
    """Plan each request like :func:`plan_each`, but only to look at it.

    Nothing is downloaded, and no output folder is needed. The plan cache is not used: loading or saving the plan of one
    build of many takes as long as planning it.
    """
    # Imported here, as above.
    from winml_dag.pipeline.model import Known
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of

    known = Known()

    def plan(request: Request) -> BuildGraph:
        build = build_of(request, store.folder, known, download=False, needs_folder=False, describes=False)
        return plan_build(build, store.fingerprints, known)

    return _each(requests, plan)


def _each(requests: Iterable[tuple[str, Request]], plan: Callable[[Request], BuildGraph]) -> Planned:
    found: dict[str, BuildGraph | WinmlDagError] = {}
    for label, request in requests:
        try:
            found[label] = plan(request)
        except WinmlDagError as error:
            found[label] = error
    return found


def refuse_if_all_the_same(planned: Planned) -> None:
    """Raise the error of all requests if each has the same one, so that it is printed once."""
    errors = [each for each in planned.values() if isinstance(each, WinmlDagError)]
    if len(errors) == len(planned) and len({str(error) for error in errors}) == 1:
        raise errors[0]
