"""The location of the user's configuration, and the environment variables that a build depends on.

Separate from its readers: a build that has nothing to do only checks whether these variables have changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CONFIG_VARIABLE = "WINML_DAG_CONFIG"
ENVIRONMENTS_VARIABLE = "WINML_DAG_EP_ENVIRONMENTS"
SUPPORT_VARIABLE = "WINML_DAG_SUPPORT_DIR"  # the user's own tables of operator support
RULES_VARIABLE = "WINMLCLI_RULES_DIR"  # tables of an installed winml-cli, which also reads this variable
# All variables that a plan depends on, on any system: for the location of the hub cache and offline mode, of programs,
# and of the configuration.
VARIABLES = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "PATH",
    "PATHEXT",
    CONFIG_VARIABLE,
    ENVIRONMENTS_VARIABLE,
    SUPPORT_VARIABLE,
    RULES_VARIABLE,
    "XDG_CONFIG_HOME",
    "LOCALAPPDATA",
)

_CONFIG_FILE = "config.toml"
# The tables of the file: execution providers, and those that pipeline/remoteconfig.py reads.
TABLES = ("ep", "remote", "signing")


def config_file() -> Path:
    """Return the user's configuration file, which need not exist unless WINML_DAG_CONFIG names it."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return expanded(named)
    if sys.platform != "linux":
        import platformdirs

        return platformdirs.user_config_path("winml_dag", appauthor=False) / _CONFIG_FILE
    # The result of platformdirs here; importing it takes longer than everything else in this file.
    given = os.environ.get("XDG_CONFIG_HOME", "").strip()
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.config")  # noqa: PTH111, PTH117
    return Path(folder, "winml_dag", _CONFIG_FILE)


def expanded(text: str) -> Path:
    """Return *text* as a path with ``~`` expanded.

    If the home folder is unknown, as in a container whose user has none, ``~`` is kept: such a path does not exist,
    which is reported like any other missing path. Path.expanduser raises instead.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111
