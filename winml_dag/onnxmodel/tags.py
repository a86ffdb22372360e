"""Tags of nodes: which module of the PyTorch model a node computes a part of, noted in the node itself.

A tag is a path of classes, ``/BertModel/BertEncoder/BertLayer.0``; its depth is the number of
them. onnxruntime's optimizer writes every node without its metadata, so what it gives has to be told again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import takewhile

from onnx import ModelProto, NodeProto

from winml_dag.onnxmodel.graph import TAG_KEY

DEPTH_KEY = "winml.hierarchy.depth"


def set_tags(model: ModelProto, tags: Mapping[str, str]) -> None:
    """Give each node of the outermost graph the tag that *tags* has under the node's name; others have none."""
    for node in model.graph.node:
        _set_tag(node, tags.get(node.name, ""))


def carry_tags(before: ModelProto, after: ModelProto) -> int:
    """Tag the nodes of *after*, which was made from *before*; returns how many of its nodes are tagged.

    A node that computes a tensor of *before* has the tag of the node that did it there: a fused node that of the last
    one which it replaces. A node with a new tensor has the tag of whose weights it reads, else it is there for what
    reads it, and belongs to the innermost module that holds all that do.
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
    """Tags of constants, by name, that the nodes of one module alone read."""
    found = defaultdict(set)
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        for name in constants.intersection(node.input):
            found[name].add(tag_of(node))
    return {name: tag for name, (tag, *others) in found.items() if tag and not others}


def tag_of(node: NodeProto) -> str:
    """The tag of *node*; empty when it has none."""
    return next((entry.value for entry in node.metadata_props if entry.key == TAG_KEY), "")


def _innermost(tags: set[str]) -> str:
    """The path that all *tags* begin with, in whole parts; empty for none."""
    paths = [tag.split("/") for tag in tags]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return "/".join(level[0] for level in levels)


def _set_tag(node: NodeProto, tag: str) -> None:
    kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key not in (TAG_KEY, DEPTH_KEY)]
    del node.metadata_props[:]
    for key, value in sorted([*kept, *_entries(tag)]):
        node.metadata_props.add(key=key, value=value)


def _entries(tag: str) -> Iterator[tuple[str, str]]:
    if tag:
        yield TAG_KEY, tag
        yield DEPTH_KEY, str(tag.strip("/").count("/") + 1)
