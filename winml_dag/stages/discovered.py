"""The capabilities that analyze found to help, written to ``optimizations.json`` for the next optimize.

A search starts with :data:`NOTHING`. While nothing is discovered, the file is byte-identical, so the optimize that
reads it has the key of the previous one. The form of an operator, which also affects the result, is in the file and not
in the config of optimize: the config would differ between targets even if nothing is discovered, and their builds could
not share one optimize.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.errors import StageError
from winml_dag.recipe.capabilities import CATALOG

FILE = "optimizations.json"
NOTHING = Path(__file__).with_name(FILE)

# Stored next to the names of capabilities.
_STANDARD = "standard_domain_only"


@dataclass(frozen=True)
class Discovered:
    """Capabilities to switch on. ``standard_domain_only``: they create only operators of the ONNX standard."""

    capabilities: frozenset[str] = frozenset()
    standard_domain_only: bool = False

    @classmethod
    def of(cls, capabilities: Iterable[str], *, standard_domain_only: bool) -> Discovered:
        """Ignore *standard_domain_only* unless the form of one of *capabilities* depends on it."""
        found = frozenset(capabilities)
        matters = any(CATALOG[name].form_depends_on_domain for name in found)
        return cls(found, standard_domain_only and matters)

    @classmethod
    def read(cls, path: Path) -> Discovered:
        """Read the file at *path*. Raises StageError if it is malformed."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not all(value is True for value in found.values()):
            raise StageError(f"{path.name} is no object of capabilities that are true.")
        return cls(frozenset(found) - {_STANDARD}, _STANDARD in found)

    def write(self, path: Path) -> None:
        names = [*self.capabilities, *([_STANDARD] if self.standard_domain_only else [])]
        path.write_text(canonical_json(dict.fromkeys(names, True)), encoding="utf-8", newline="\n")
