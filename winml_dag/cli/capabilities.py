"""The capabilities of ``optimize``: their list, and what each would change in a model."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import show
from winml_dag.errors import UsageError, few
from winml_dag.pipeline.request import Request
from winml_dag.recipe.capabilities import BUILT_IN, CATALOG
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.onnxmodel.graph import NodeName
    from winml_dag.recipe.capabilities import Capability
    from winml_dag.stages.optimize.check import Change

# Nodes of each kind that --check-optim lists without --verbose.
_SHOWN = 3


def winml_cli_options(function: Any) -> Any:
    """Add winml-cli's ``--enable-gelu-fusion`` and ``--disable-gelu-fusion``; the help shows the short form."""
    for name in BUILT_IN:
        word = name.replace("_", "-")
        function = click.option(f"--enable-{word}/--disable-{word}", name, default=None, hidden=True)(function)
    return function


def capabilities_of(options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return every capability that is explicitly turned on or off.

    Raises:
        UsageError: for a capability that is turned both on and off.
    """
    found: dict[str, JsonValue] = {name: options[name] for name in BUILT_IN if options[name] is not None}
    for option, on in (("enable", True), ("disable", False)):
        for given in options[option]:
            word = given.replace("-", "_").lower()
            name = next((name for name in CATALOG if name.lower() == word), given)
            if found.setdefault(name, on) is not on:
                raise UsageError(f"{name} is enabled and disabled.", advice="Give one of them.")
    return found


def print_catalog(*, rewrites_only: bool) -> int:
    from winml_dag.recipe.capabilities import REWRITER

    entries = {name: entry for name, entry in CATALOG.items() if not rewrites_only or entry.by == REWRITER}
    lines = []
    for name, entry in entries.items():
        parts = [entry.by, "on" if entry.default else "off", *([entry.domain] if entry.makes else [])]
        lines.append(f"{name}  [{entry.same_as or ', '.join(parts)}]")
        lines.append(textwrap.fill(_long(entry), 100, initial_indent="  ", subsequent_indent="  "))
    value = {"capabilities": [_capability_json(name, entry) for name, entry in entries.items()]}
    show(value, lines)
    return 0


def _capability_json(name: str, entry: Capability) -> JsonObject:
    return {
        "name": name,
        "description": entry.description,
        "by": None if entry.same_as else entry.by,
        "default": entry.default,
        "domain": entry.domain,
        "needs": list(entry.needs),
        "excludes": list(entry.excludes),
        "same_as": entry.same_as or None,
        "left": entry.left or None,
    }


def _long(entry: Capability) -> str:
    parts = [entry.description]
    if entry.needs:
        parts.append(f"Switches on {', '.join(entry.needs)}.")
    if entry.excludes:
        parts.append(f"Not together with {', '.join(entry.excludes)}.")
    if entry.left:
        parts.append(f"Left: {entry.left}.")
    return " ".join(parts)


def print_changes(request: Request, names: tuple[str, ...], *, whole: bool) -> int:
    """Print the changes. Raises the same errors as the functions of ``winml_dag.pipeline.onestage``."""
    from winml_dag.pipeline.onestage import changes_by, target_of

    model, target = request.overrides.onnx, target_of(request, names)
    assert model is not None
    changes = changes_by(names, model.absolute(), target)
    found = [change for change in changes if change.places or change.left or names]
    value = {
        "success": True,
        "model": str(model),
        "standard_domain_only": target.standard_domain_only,
        "capabilities": [_change_json(change) for change in found],
    }
    lines = [line for change in found for line in _change_lines(change, sys.maxsize if whole else _SHOWN)]
    count = sum(bool(change.places) and not change.on for change in found)
    lines.append(f"{count} capabilit{'y' if count == 1 else 'ies'} would change the model; nothing was written.")
    show(value, lines)
    return 0


def _change_json(change: Change) -> JsonObject:
    return {
        "name": change.capability,
        "on": change.on,
        "places": change.places,
        "nodes_before": [{"operator": node.operator, "name": node.name} for node in change.before],
        "nodes_after": [{"operator": node.operator, "name": node.name} for node in change.after],
        "constants": list(change.constants),
        "left": change.left or None,
    }


def _change_lines(change: Change, most: int) -> Iterator[str]:
    if not change.places:
        yield f"{change.capability}: {f'left: {change.left}' if change.left else 'nothing to change'}"
        return
    already = ", and does so already" if change.on else ""
    yield f"{change.capability}: changes {counted(change.places, 'place')}{already}"
    yield from _nodes("-", change.before, most)
    yield from _nodes("+", change.after, most)
    if change.constants:
        yield f"  ~ {counted(len(change.constants), 'constant')}: {few(change.constants, most)}"
    if change.left:
        yield f"  left: {change.left}"


def _nodes(sign: str, nodes: tuple[NodeName, ...], most: int) -> Iterator[str]:
    for operator, count in Counter(node.operator for node in nodes).items():
        names = tuple(node.name for node in nodes if node.operator == operator)
        yield f"  {sign} {count} {operator}: {few(names, most)}"
