"""The names of cells, which are those of their folders: by a template, unique, and possible on every system."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from winml_dag.names import is_safe_part
from winml_dag.recipe.spelling import known_instead

T = TypeVar("T")

_FIELD = re.compile(r"\{([^{}]*)\}")
_MEANT_BY_FILTERS = re.compile(r"[,=!\[\]]")
# Beside a cache folder and the names of what lies in an output folder, Windows takes 260 letters in all.
_LONGEST = 160
# What lies in the folder of the sweep itself.
RESERVED = ("sweep.json", "report.html", "report.json", "report.csv")


def standard_template(axes: Sequence[str]) -> str:
    return "/".join(f"{{{axis}}}" for axis in axes)


def template_problem(template: str, axes: Sequence[str]) -> str:
    """Why *template* cannot name a folder for cells with *axes*; empty when it can."""
    for name in _FIELD.findall(template):
        if name not in axes:
            return f"there is no axis {name!r}{known_instead(name, axes)}"
    rest = _FIELD.sub("x", template)
    if "{" in rest or "}" in rest:
        return "a brace has no other; an axis is named as in {model}"
    if wrong := _MEANT_BY_FILTERS.search(rest):
        return f"{wrong[0]} means something in --filter, so it cannot be in a name"
    return folder_problem(rest)


def filled(template: str, values: Mapping[str, str]) -> str:
    """*template* with the label of each axis for its name."""
    return _FIELD.sub(lambda match: values[match[1]], template)


def folder_problem(folder: str) -> str:
    """Why there can be no folder of this name below that of the sweep; empty when there can."""
    parts = folder.split("/")
    for part in parts:
        if not is_safe_part(part):
            return f"{part!r} cannot be a folder on every system" if part else "a part of the path is empty"
    if parts[0].casefold() in RESERVED:
        return f"{parts[0]} is what the sweep itself is told of in"
    return f"longer than {_LONGEST} letters" if len(folder) > _LONGEST else ""


def clashes(folders: Mapping[T, str]) -> Iterator[tuple[T, T]]:
    """Pairs of those who have one folder, or one in that of the other. *folders*: by its owner.

    Upper and lower case are one: there are systems to which they are.
    """
    owners: dict[str, T] = {}
    for owner, folder in folders.items():
        if (known := folder.casefold()) in owners:
            yield owners[known], owner
        else:
            owners[known] = owner
    for known, owner in owners.items():
        inside = "/".join(known.split("/")[:-1])
        while inside:
            if inside in owners:
                yield owners[inside], owner
            inside = inside.rpartition("/")[0]
