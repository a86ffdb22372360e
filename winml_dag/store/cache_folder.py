"""The cache folder without its store: its default location, which store in it to use, and the log of builds.

The log has one line of text per build, which ``cache info`` sums up. Builds that have nothing to do use this module, so
it imports almost nothing. Logging a build is one write and never fails: an unwritable cache is no reason to fail a
build.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.store.digest import DigestFunction


CACHE_DIR_VARIABLE = "WINML_DAG_CACHE_DIR"
# The file that marks a folder as a store: the number of its format, and its digest function if not xxh3-128.
MARKER = "FORMAT"
FORMAT = "1"
# The folder of the plan cache, and the suffix of the files in it that have the keys of a plan's records.
PLAN_CACHE = "standing"
KEYS_SUFFIX = ".keys"


def default_cache_dir() -> Path:
    """The folder that WINML_DAG_CACHE_DIR names, else the user's cache folder of this system.

    Raises:
        UsageError: when that is in a home folder that cannot be determined, as in a container whose user has none.
    """
    if named := os.environ.get(CACHE_DIR_VARIABLE):
        return _expanded(named)
    if sys.platform == "linux":
        # The same as platformdirs returns, whose import takes 6 of the 90 ms of an up-to-date build.
        given = os.environ.get("XDG_CACHE_HOME", "").strip()
        return (Path(given) if os.path.isabs(given) else _expanded("~/.cache")) / "winml_dag"  # noqa: PTH117
    else:  # noqa: RET505 - mypy knows a platform by its branch
        import platformdirs

        return platformdirs.user_cache_path("winml_dag", appauthor=False)


def store_folder(cache_dir: Path, function: DigestFunction) -> Path:
    """The folder of the store with digests of *function*.

    It is *cache_dir* itself, or a folder in it if the store in *cache_dir* has another function. A store has one
    function, so that all its keys and digests are compatible.
    """
    return cache_dir if function_of(cache_dir) in (None, function) else cache_dir / function


def function_of(folder: Path) -> DigestFunction | None:
    """The digest function of the store in *folder*; None if there is no readable store."""
    try:
        words = (folder / MARKER).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return None
    if words[:1] != [FORMAT]:
        return None
    # Before the marker contained the function, a store that was used with a remote had both.
    is_shared = words[1:] == ["sha256"] or (not words[1:] and (folder / "blobs" / "sha256").is_dir())
    return "sha256" if is_shared else "xxh3-128"


def stores_beside(folder: Path) -> list[Path]:
    """The other stores of the cache folder that contains the store in *folder*."""
    functions = ("xxh3-128", "sha256")
    cache = folder.parent if folder.name in functions else folder
    places = (cache, *(cache / function for function in functions))
    return [place for place in places if place != folder and function_of(place) is not None]


def _expanded(text: str) -> Path:
    path = os.path.expanduser(text)  # noqa: PTH111 - Path's own function raises another error
    if path.startswith("~"):
        raise UsageError(
            f"The cache would be in {text}, and this user has no such folder.",
            advice=f"Give --cache-dir, or set {CACHE_DIR_VARIABLE}.",
        )
    return Path(path)


FILE = "statistics.txt"

# In text mode Windows would write other line endings, and read those of another system differently.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


def log_build(
    cache: str | os.PathLike[str], *, reused: int, ran: int, seconds_saved: float, stored_bytes: int = 0
) -> None:
    """Log a finished build: numbers of stages, the original run time of reused ones, and newly stored bytes."""
    _append(cache, f"build {time.time():.0f} {reused} {ran} {seconds_saved * 1000:.0f} {stored_bytes}")


def log_size(cache: str | os.PathLike[str], size: int) -> None:
    """Log the current size of the cache's records and blobs, in bytes."""
    _append(cache, f"size {time.time():.0f} {size}")


@dataclass(frozen=True)
class Traffic:
    """What one run, or the sum of many, transferred. Printed at the end of a build and by ``cache info``.

    Attributes:
        requests: attempts of any kind, retries included.
        records_found, records_missed: answers to requests for records.
        records_put: uploaded records.
        blobs_fetched: blobs that arrived complete and intact.
        bytes_fetched: received bytes of blobs, discarded ones included.
        blobs_put: uploaded blobs.
        bytes_put: sent bytes of blobs, repeated ones included.
        refused: records and blobs that failed verification.
        left_alone: how often a remote was given up for the rest of a run.
        record_bytes: bytes of records, received and sent.
    """

    requests: int = 0
    records_found: int = 0
    records_missed: int = 0
    records_put: int = 0
    blobs_fetched: int = 0
    bytes_fetched: int = 0
    blobs_put: int = 0
    bytes_put: int = 0
    refused: int = 0
    left_alone: int = 0
    record_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def log_traffic(cache: str | os.PathLike[str], traffic: Traffic) -> None:
    """Log the traffic between this machine and its remotes, if any."""
    from dataclasses import astuple

    numbers = astuple(traffic)
    if any(numbers):
        _append(cache, f"remote {time.time():.0f} {' '.join(map(str, numbers))}")


def _append(cache: str | os.PathLike[str], line: str) -> None:
    try:
        descriptor = os.open(f"{os.fspath(cache)}/{FILE}", _FLAGS, 0o666)
    except OSError:
        return
    try:
        # One write, so that lines of several processes do not mix. The line starts with a newline, so that a line
        # truncated by a full disk corrupts only itself.
        os.write(descriptor, f"\n{line}\n".encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)
