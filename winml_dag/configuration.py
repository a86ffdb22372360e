"""Where the user's configuration is. Apart from what reads it: a build that has nothing to do only asks whether these
variables are what they were.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CONFIG_VARIABLE = "WINML_DAG_CONFIG"
ENVIRONMENTS_VARIABLE = "WINML_DAG_EP_ENVIRONMENTS"
SUPPORT_VARIABLE = "WINML_DAG_SUPPORT_DIR"  # the user's own tables of what providers take
RULES_VARIABLE = "WINMLCLI_RULES_DIR"  # tables of an installed winml-cli, which reads this variable too
# All that say where the configuration is, on one system or another.
CONFIGURATION_VARIABLES = (
    CONFIG_VARIABLE,
    ENVIRONMENTS_VARIABLE,
    SUPPORT_VARIABLE,
    RULES_VARIABLE,
    "XDG_CONFIG_HOME",
    "LOCALAPPDATA",
)

_CONFIG_FILE = "config.toml"
# What the file may have at its top: execution providers, and what pipeline/remoteconfig.py reads.
TABLES = ("ep", "remote", "signing")


def config_file() -> Path:
    """The user's configuration file, which need not be there unless WINML_DAG_CONFIG names it."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return expanded(named)
    if sys.platform == "linux":
        # What platformdirs answers here; importing it takes longer than all else in this file.
        given = os.environ.get("XDG_CONFIG_HOME", "").strip()
        folder = (Path(given) if os.path.isabs(given) else expanded("~/.config")) / "winml_dag"  # noqa: PTH117
    else:
        import platformdirs

        folder = platformdirs.user_config_path("winml_dag", appauthor=False)
    return folder / _CONFIG_FILE


def expanded(text: str) -> Path:
    """*text* as a path, ``~`` being a home folder. Where nobody knows it, as in a container whose user has none, ``~``
    stays: then there is no such path, which is told like any other that is missing. Path's own function raises.
    """
    return Path(os.path.expanduser(text))  # noqa: PTH111
