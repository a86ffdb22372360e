"""The cache folder without its store: its default location, which store in it to use, the log of builds, and its limit.

Builds that have nothing to do use this module, so it imports almost nothing. ``usage`` sums the log up.
"""

from __future__ import annotations

import os
import sys
import time
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
    return "sha256" if words[1:] == ["sha256"] else "xxh3-128"


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


LOG = "statistics.txt"

# In text mode Windows would write other line endings, and read those of another system differently.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


def log_build(
    cache: str | os.PathLike[str], *, reused: int, ran: int, seconds_saved: float, stored_bytes: int = 0
) -> None:
    """Log a finished build: numbers of stages, the original run time of reused ones, and newly stored bytes."""
    log_line(cache, f"build {time.time():.0f} {reused} {ran} {seconds_saved * 1000:.0f} {stored_bytes}")


def log_line(cache: str | os.PathLike[str], line: str) -> None:
    """Add *line* to the log. Never fails: an unwritable cache is no reason to fail a build."""
    try:
        descriptor = os.open(f"{os.fspath(cache)}/{LOG}", _FLAGS, 0o666)
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


LIMIT_VARIABLE = "WINML_DAG_CACHE_MAX_SIZE"
LIMIT_FILE = "limit"
NO_LIMIT = "none"


def limit_text(folder: Path) -> str:
    """The size limit of the cache in *folder* as written, in the environment or else there; empty without one."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        try:
            text = (folder / LIMIT_FILE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    return "" if text.strip().lower() == NO_LIMIT else text.strip()
