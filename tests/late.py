"""Libraries that tests import when they use them, since every worker imports every test module."""

from __future__ import annotations

import functools
import gc
import importlib
from types import ModuleType
from typing import Any


class Late:
    """A module that is imported when one of its attributes is first read.

    PyTorch with transformers takes 5 s of processor time, a third of collecting all tests, and most workers run no test
    of an export.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest looks for marks of its own in everything that a test module has
            raise AttributeError(attribute)
        return getattr(_imported(self._name), attribute)


@functools.cache
def _imported(name: str) -> ModuleType:
    module = importlib.import_module(name)
    gc.freeze()  # scanning PyTorch's 350,000 objects at every collection takes a quarter of an export
    return module
