"""Whether there is a remote, asked at the start of every build: what was given, two variables, and two files that are
mostly not there. What they say beyond that is read by ``remoteconfig`` when a store is opened.
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

# Every way in which a line of TOML can begin to say something of remotes: a build that has nothing to do reads no more.
# Misspelled ones too: else whoever writes [[remotes]] has none, and is not told.
_REMOTE = re.compile(rb"^[ \t]*\[?\[?[ \t]*[\"']?remot", re.MULTILINE)
# A project's file speaks of nothing else.
_ANYTHING = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)


@dataclass(frozen=True)
class RemoteOptions:
    """What one call says of remotes; what it leaves out is for the environment and the configuration to say.

    Attributes:
        urls: the nearest first.
        mode: of every remote.
        folder: where the configuration of the project is looked for first: that of the recipe.
    """

    urls: tuple[str, ...] = ()
    mode: str | None = None
    folder: Path | None = None

    @cached_property
    def is_configured(self) -> bool:
        """Whether there is any remote, one that is switched off too: then digests are sha256."""
        if self.urls or os.environ.get(REMOTE_VARIABLE, "").strip():
            return True
        files = (self.project_file, config_file())
        return any(path is not None and names_remotes(path) for path in files)

    def store_folder(self, cache_dir: Path | None) -> Path:
        """The folder of the store that builds use, in the cache folder *cache_dir*, by default the user's."""
        folder = default_cache_dir() if cache_dir is None else cache_dir
        return store_folder(folder, "sha256") if self.is_configured else folder

    @cached_property
    def project_file(self) -> Path | None:
        """The nearest ``winml_dag.toml``: in the recipe's folder or above it up to the root of its repository, else in
        the current folder or above that in the same way.
        """
        for start in (self.folder, Path()):
            for folder in () if start is None else _up_to_the_root(os.path.abspath(start)):  # noqa: PTH100
                if os.path.isfile(path := f"{folder}{os.sep}{PROJECT_FILE}"):  # noqa: PTH113
                    return Path(path)
        return None


def names_remotes(path: Path) -> bool:
    """Whether the configuration file at *path*, which need not be there, says anything of remotes. One that cannot be
    read may: who reads the rest of it has to say why not.
    """
    try:
        said = _ANYTHING if path.name == PROJECT_FILE else _REMOTE
        return said.search(path.read_bytes()) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _up_to_the_root(start: str) -> Iterator[str]:
    """The folder *start* and those above it up to the root of its repository. Without one only itself: what lies above
    may be anybody's, as in a temporary folder.
    """
    folders = [start]
    while not os.path.lexists(f"{folders[-1]}{os.sep}.git"):
        above = os.path.dirname(folders[-1])  # noqa: PTH120
        if above == folders[-1]:
            return iter([start])
        folders.append(above)
    return iter(folders)
