"""Check whether a sweep has nothing to do, before its file is read or anything heavy imported.

Each cell has its own plan cache entry, like any build. The stamp of a sweep is one more entry, which lists these for
one call of the sweep. It is valid as long as every file that the sweep was read from, and ``sweep.json``, are
unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag import file_reading
from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.file_reading import MOST_BYTES_OF_MANY, FirstLooks, look, racy, read_text
from winml_dag.pipeline.uptodate import (
    MALFORMED,
    Entry,
    Environment,
    Groups,
    Header,
    check,
    content_of,
    file_of,
    log_use,
    real_paths,
)
from winml_dag.store.cache_folder import KEYS_SUFFIX

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request


@dataclass(frozen=True)
class SweepStamp:
    """A sweep whose *cells* are all up to date. ``lines``: the output of the command in addition to the count."""

    cells: int
    left_out: int
    folder: str
    lines: tuple[str, ...] = ()


def words_of(recipes: Sequence[Path], request: Request, filters: Sequence[str], shard: str | None) -> str | None:
    """Return the exact request as text; *request* has the options for every cell, but no recipe."""
    files = [str(path) for path in recipes]
    if not all(map(os.path.isfile, files)):
        from winml_dag.recipe.reading import recipe_files

        # For a folder or pattern, the list of its files is part of the request.
        files += [str(path) for path in recipe_files(recipes)]
    common = request.words
    if common is None:
        return None
    return canonical_json({"sweep": files, "common": common, "filters": list(filters), "shard": shard})


def load_sweep_stamp(cache_dir: Path, words: str) -> SweepStamp | None:
    """Return the stamp of the request *words* if everything is unchanged, and record its use."""
    folder = str(cache_dir.absolute())
    environment = Environment.now()
    current_plan = check(folder, words, environment)
    if current_plan is None or not current_plan.is_up_to_date:
        return None
    try:
        plan: Any = json.loads(current_plan.entry.plan)
        found = SweepStamp(
            int(plan["cells"]), int(plan["left_out"]), str(plan["folder"]), tuple(map(str, plan["lines"]))
        )
        builds = [str(each) for each in plan["builds"]]
    except MALFORMED:
        return None
    current = []
    for each in builds:
        one = check(folder, each, environment)
        if one is None or not one.is_up_to_date:
            return None
        current.append(one)
    for one in current:
        log_use(folder, one)
    return found


def keep_sweep_stamp(
    cache_dir: Path,
    words: str,
    found: SweepStamp,
    *,
    files: Sequence[Path],
    results: Sequence[str],
    builds: Sequence[str],
    began_ns: int,
    environment: Mapping[str, JsonValue],
    looks: FirstLooks,
) -> None:
    """Save that the request *words* resulted in *found*.

    *builds*: the requests it consists of. *files*: the files it was read from, not before *began_ns*, with
    *environment* as the fingerprint and *looks* as the signatures of that time. *results*: the names of files in the
    sweep's own folder.
    """
    folder = str(cache_dir.absolute())
    paths = list(dict.fromkeys(str(path.absolute()) for path in files))
    if not all(file_reading.has_settled(Path(path), began_ns) for path in paths):
        return  # an edit during the read would not be noticed
    there = [str(Path(found.folder).absolute() / name) for name in results]
    put = look(there)
    digests = [content_of(path) for path in (*paths, *there)]
    seen = look(paths)
    if seen != looks.of(paths):
        return
    seen += put
    groups, young = Groups(len(paths), outputs=len(there)), racy([*paths, *there], seen, began_ns)
    places = real_paths([str(Path(found.folder).absolute())])
    header = Header(words, environment, places, groups, young, complete=True)
    plan = json.dumps({**asdict(found), "builds": builds}).encode()
    # It is removed together with the last result that it depends on.
    keys = dict.fromkeys(key for each in builds for key in keys_of(folder, each))
    Entry.of(header, [*paths, *there], seen, digests, plan).keep(folder, keys)


def keys_of(cache_dir: str, words: str) -> list[str]:
    """Return the keys that the entry of the request *words* depends on; none if unavailable."""
    try:
        return read_text(file_of(cache_dir, words, KEYS_SUFFIX), MOST_BYTES_OF_MANY).split()
    except (OSError, ValueError):
        return []
