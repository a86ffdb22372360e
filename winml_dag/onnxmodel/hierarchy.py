"""The modules of a model as a tree, from the tags that its nodes have, with the operators of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Module:
    """A module of the PyTorch model, as far as nodes come from it.

    Attributes:
        name: of its class, numbered where it is one of a list: ``BertLayer.0``.
        operators: how many nodes of each operator are its own, and not of a module inside.
        children: in the order of their first nodes.
    """

    name: str
    operators: Mapping[str, int]
    children: tuple[Module, ...]

    @property
    def nodes(self) -> int:
        """How many nodes come from it and from all modules inside."""
        return sum(self.operators.values()) + sum(child.nodes for child in self.children)

    def is_like(self, other: Module) -> bool:
        """Whether both are one of the same list and have the same inside."""
        return (
            _kind(self.name) == _kind(other.name) != self.name
            and self.operators == other.operators
            and self.children == other.children
        )


def module_tree(tagged: Iterable[tuple[str, str]]) -> tuple[Module, ...]:
    """The outermost modules; *tagged* has the operator and the tag of every node that has one, in graph order."""
    root = _Growing()
    for operator, tag in tagged:
        place = root
        for name in tag.strip("/").split("/"):
            place = place.inside.setdefault(name, _Growing())
        place.operators[operator] += 1
    return tuple(_grown(root.inside))


def alike(modules: Iterable[Module]) -> Iterator[list[Module]]:
    """*modules* in runs of those that are the same but for their number: all layers of a stack at once."""
    run: list[Module] = []
    for module in modules:
        if run and not run[0].is_like(module):
            yield run
            run = []
        run.append(module)
    if run:
        yield run


class _Growing:
    def __init__(self) -> None:
        self.operators: Counter[str] = Counter()
        self.inside: dict[str, _Growing] = {}


def _grown(inside: Mapping[str, _Growing]) -> Iterator[Module]:
    for name, module in inside.items():
        yield Module(name, dict(module.operators), tuple(_grown(module.inside)))


def _kind(name: str) -> str:
    return name.rpartition(".")[0] or name
