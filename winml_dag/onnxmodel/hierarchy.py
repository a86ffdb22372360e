"""The PyTorch module that each node computes a part of: a tag in the node, and the tree that the tags form.

A tag is a path of classes, ``/BertModel/BertEncoder/BertLayer.0``; its depth is their number. onnxruntime's optimizer
drops the metadata of nodes, so :func:`carry_tags` tags its result.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from winml_dag.onnxmodel.graph import TAG_KEY

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

DEPTH_KEY = "winml.hierarchy.depth"


def set_tags(model: ModelProto, tags: Mapping[str, str]) -> None:
    """Set the tags of nodes in the outermost graph by node name; nodes without one in *tags* get none."""
    for node in model.graph.node:
        _set_tag(node, tags.get(node.name, ""))


def carry_tags(before: ModelProto, after: ModelProto) -> int:
    """Tag the nodes of *after*, which was made from *before*; return how many of its nodes are tagged.

    A node that computes a tensor of *before* has the tag of the node that computed it there: a fused node that of the
    last one which it replaces. A node with a new tensor has the tag of the module whose weights it reads. Otherwise it
    gets the innermost module that contains all its readers.
    """
    computed = {name: tag for node in before.graph.node if (tag := tag_of(node)) for name in node.output if name}
    owners = _owners(before)
    readers: defaultdict[str, set[str]] = defaultdict(set)
    count = 0
    for node in reversed(after.graph.node):
        known = [computed[name] for name in node.output if name in computed]
        known += [owners[name] for name in node.input if name in owners]
        tag = known[0] if known else _innermost({reader for name in node.output for reader in readers[name]})
        _set_tag(node, tag)
        if tag:
            count += 1
            for name in node.input:
                readers[name].add(tag)
    return count


def _owners(model: ModelProto) -> dict[str, str]:
    """Return the tags of constants, by name, that only the nodes of one module read."""
    found = defaultdict(set)
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        for name in constants.intersection(node.input):
            found[name].add(tag_of(node))
    return {name: tag for name, (tag, *others) in found.items() if tag and not others}


def tag_of(node: NodeProto) -> str:
    """Return the tag of *node*; empty if it has none."""
    return next((entry.value for entry in node.metadata_props if entry.key == TAG_KEY), "")


def _innermost(tags: set[str]) -> str:
    """Return the common path prefix of all *tags*, in whole components; empty for none."""
    paths = [tag.split("/") for tag in tags]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return "/".join(level[0] for level in levels)


def _set_tag(node: NodeProto, tag: str) -> None:
    entries = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in (TAG_KEY, DEPTH_KEY)]
    if tag:
        entries += [(TAG_KEY, tag), (DEPTH_KEY, str(tag.strip("/").count("/") + 1))]
    del node.metadata_props[:]
    for key, value in sorted(entries):
        node.metadata_props.add(key=key, value=value)


@dataclass(frozen=True)
class Module:
    """A module of the PyTorch model, limited to what nodes come from.

    Attributes:
        name: of its class, numbered if it is in a list: ``BertLayer.0``.
        operators: how many nodes of each operator belong to it directly, not to a module inside.
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
        """Return whether both are in the same list and have the same contents."""
        return (
            _kind(self.name) == _kind(other.name) != self.name
            and self.operators == other.operators
            and self.children == other.children
        )


def module_tree(tagged: Iterable[tuple[str, str]]) -> tuple[Module, ...]:
    """Return the outermost modules; *tagged* has operator and tag of every tagged node, in graph order."""
    root = _Growing()
    for operator, tag in tagged:
        place = root
        for name in tag.strip("/").split("/"):
            place = place.inside.setdefault(name, _Growing())
        place.operators[operator] += 1
    return tuple(_grown(root.inside))


def alike(modules: Iterable[Module]) -> Iterator[list[Module]]:
    """Group *modules* into runs that differ only in their number: all layers of a stack at once."""
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
