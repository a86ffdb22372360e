"""Whether any remote is configured, determined at the start of every build from options, a variable, and two files that
mostly do not exist. ``remoteconfig`` reads the rest of them when a store is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from winml_dag.ep.configuration import config_file
from winml_dag.store.location import default_cache_dir, store_folder

REMOTE_VARIABLE = "WINML_DAG_REMOTE"
MODE_VARIABLE = "WINML_DAG_REMOTE_MODE"
NAMESPACE_VARIABLE = "WINML_DAG_REMOTE_NAMESPACE"
ACCEPT_UNSIGNED_VARIABLE = "WINML_DAG_REMOTE_ACCEPT_UNSIGNED"
TOKEN_HOST_VARIABLE = "WINML_DAG_REMOTE_TOKEN_HOST"

PROJECT_FILE = "winml_dag.toml"

# Every start of a TOML line about remotes: an up-to-date build reads no more. Misspelled ones too: else [[remotes]]
# would be ignored without a message.
_REMOTE = re.compile(rb"^[ \t]*\[?\[?[ \t]*[\"']?remot", re.MULTILINE)
# The file of a project is about nothing else.
_ANYTHING = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)


@dataclass(frozen=True)
class RemoteOptions:
    """The options of one call; the environment and the configuration supply the rest.

    Attributes:
        urls: the nearest first.
        mode: of every remote.
        folder: that of the recipe, where the configuration of the project is searched first.
    """

    urls: tuple[str, ...] = ()
    mode: str | None = None
    folder: Path | None = None

    @cached_property
    def is_configured(self) -> bool:
        """Whether any remote is configured, even one that is off: then digests are sha256."""
        if self.urls or os.environ.get(REMOTE_VARIABLE, "").strip():
            return True
        files = (self.project_file, config_file())
        return any(path is not None and names_remotes(path) for path in files)

    def store_folder(self, cache_dir: Path | None) -> Path:
        """Return the store's folder for builds, in the cache folder *cache_dir*, by default the user's."""
        folder = default_cache_dir() if cache_dir is None else cache_dir
        return store_folder(folder, "sha256") if self.is_configured else folder

    @cached_property
    def project_file(self) -> Path | None:
        """The nearest ``winml_dag.toml``.

        It is searched from the recipe's folder up to the root of its repository, then from the current folder in the
        same way.
        """
        for start in (self.folder, Path()):
            for folder in () if start is None else _up_to_the_root(os.path.abspath(start)):  # noqa: PTH100
                if os.path.isfile(path := f"{folder}{os.sep}{PROJECT_FILE}"):  # noqa: PTH113
                    return Path(path)
        return None


def names_remotes(path: Path) -> bool:
    """Whether the configuration file at *path*, which may be missing, mentions remotes. An unreadable one counts: the
    error is reported when the rest is read.
    """
    try:
        said = _ANYTHING if path.name == PROJECT_FILE else _REMOTE
        return said.search(path.read_bytes()) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _up_to_the_root(start: str) -> Iterator[str]:
    """The folder *start* and its parents up to the root of its repository. Without a repository only *start*: its
    parents may belong to anybody, as in a temporary folder.
    """
    folders = [start]
    while not os.path.lexists(f"{folders[-1]}{os.sep}.git"):
        above = os.path.dirname(folders[-1])  # noqa: PTH120
        if above == folders[-1]:
            return iter([start])
        folders.append(above)
    return iter(folders)
