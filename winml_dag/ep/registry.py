"""The execution providers that a recipe may name: those of :mod:`winml_dag.ep.providers` and of installed packages.

Each module of the former declares one as ``PROVIDER``; a file that is added there is found by itself. A package adds
one by an entry point in the group ``winml_dag.providers`` that names an
:class:`~winml_dag.ep.provider.ExecutionProvider`. :mod:`winml_dag.ep.availability` determines which of them can be
used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from winml_dag.ep import providers
from winml_dag.ep.provider import ExecutionProvider, Target, is_arm, is_emulated
from winml_dag.ep.providers.cpu import CPU
from winml_dag.ep.providers.qnn import QNN
from winml_dag.errors import UsageError, known_instead
from winml_dag.installed import entry_points

__all__ = ["AUTO", "CPU", "EXECUTION_PROVIDERS", "QNN", "ExecutionProvider", "Target", "is_arm", "is_emulated"]

AUTO = "auto"
DEVICES = ("npu", "gpu", "cpu")

EXECUTION_PROVIDERS: tuple[ExecutionProvider, ...] = tuple(
    sorted(
        (
            importlib.import_module(f"{providers.__name__}.{path.stem}").PROVIDER
            for path in Path(providers.__path__[0]).glob("[!_]*.py")
        ),
        key=lambda ep: ep.place,
    )
)


def execution_providers() -> tuple[ExecutionProvider, ...]:
    """Return the built-in providers and those of installed packages.

    Raises UsageError if a package cannot be imported, or declares something else or a name that is taken.
    """
    return (*EXECUTION_PROVIDERS, *_from_packages(tuple(sys.path)))


@cache
def _from_packages(path: tuple[str, ...]) -> tuple[ExecutionProvider, ...]:
    found: list[ExecutionProvider] = []
    taken = {spelling for ep in EXECUTION_PROVIDERS for spelling in _spellings(ep)}
    for entry in entry_points("winml_dag.providers", path).values():
        ep = entry.load()
        if not isinstance(ep, ExecutionProvider):
            raise UsageError(f"{entry.target} of {entry.distribution} is not an execution provider.")
        if clash := taken.intersection(_spellings(ep)):
            raise UsageError(f"{entry.target} of {entry.distribution} has the name {min(clash)!r}, which is taken.")
        taken.update(_spellings(ep))
        found.append(replace(ep, plugin=entry.distribution))
    return tuple(found)


def _spellings(ep: ExecutionProvider) -> tuple[str, ...]:
    return tuple(spelling.lower() for spelling in (ep.name, ep.alias, *ep.aliases))


@cache
def _by_spelling(path: tuple[str, ...]) -> Mapping[str, ExecutionProvider]:
    return {spelling: ep for ep in (*EXECUTION_PROVIDERS, *_from_packages(path)) for spelling in _spellings(ep)}


def drivers(device: str) -> tuple[ExecutionProvider, ...]:
    """Return the providers to try for *device* alone, in order. Raises as :func:`execution_providers`."""
    return tuple(sorted((ep for ep in execution_providers() if device in ep.places), key=lambda ep: ep.places[device]))


@cache
def runtime_builds() -> tuple[str, ...]:
    """Return the distributions that replace ``onnxruntime``: their version is that of the runtime.

    Raises as :func:`execution_providers` does.
    """
    packages = (package for ep in execution_providers() for package in ep.packages)
    return tuple(sorted({package.distribution for package in packages if package.is_runtime}))


def find_ep(text: str) -> ExecutionProvider:
    """Return the execution provider with that name or alias, ignoring case.

    Raises UsageError with the nearest spelling if there is none, and as :func:`execution_providers` does.
    """
    if found := _by_spelling(tuple(sys.path)).get(text.lower()):
        return found
    spellings = (spelling for ep in execution_providers() for spelling in (ep.name, ep.alias))
    raise UsageError(f"There is no execution provider {text!r}{known_instead(text, spellings)}")
