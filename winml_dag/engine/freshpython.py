"""A fresh Python beside a worker, in the same environment: for stages that need several processes.

It belongs to the process group of the worker, and is ended with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

# How the package is found must be the same in every environment, also where the search path does not lead to it.
_RUN = """
import runpy, sys
runpy.run_path(sys.argv[1])["take_package_from"](sys.argv[2])
import importlib
importlib.import_module(sys.argv[3]).main(*sys.argv[4:])
"""


def fresh_python(module: str, *arguments: str) -> list[str]:
    """The command that calls ``main(*arguments)`` of *module*, one of this package's."""
    finder = Path(__file__).with_name("elsewhere.py")
    return [sys.executable, "-P", "-c", _RUN, str(finder), str(finder.resolve().parents[1]), module, *arguments]
