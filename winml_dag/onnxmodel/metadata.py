"""A model's metadata: class names, producer, descriptions. Tools that rewrite a model lose it.

Only the built-in export adds noise (torch records source paths), so only export calls :func:`canonicalise`. Everything
else belongs to the user and is copied from stage to stage with :func:`carry_metadata`.

A node also has a tag, the PyTorch module that it computes a part of: a path of classes,
``/BertModel/BertEncoder/BertLayer.0``. onnxruntime's optimizer drops the metadata of nodes, so :func:`carry_tags` tags
its result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from winml_dag.onnxmodel.graph import TAG_KEY

DEPTH_KEY = "winml.hierarchy.depth"  # how many classes a tag has

_OWN_PREFIX = "winml."
# Messages that have descriptions, or contain such messages.
_DESCRIBED = frozenset(
    f"{name}Proto" for name in ("Graph", "Node", "Attribute", "ValueInfo", "Tensor", "SparseTensor", "Function")
)
_Described: TypeAlias = ModelProto | GraphProto | ValueInfoProto


def carry_metadata(source: ModelProto, result: ModelProto, *, kept: str = "") -> None:
    """Copy the metadata of *source* to *result*, which a tool made from it.

    That is producer, domain, version, metadata and descriptions of the model, of its graph, and of the inputs and
    outputs that both have by name. Of the tool's own entries only those whose keys start with *kept* are preserved, if
    given.
    """
    added = {entry.key: entry.value for entry in result.metadata_props if kept and entry.key.startswith(kept)}
    _carry(source, result, ("producer_name", "producer_version", "domain", "model_version"))
    for entry in source.metadata_props:
        added.pop(entry.key, None)
    for key, value in sorted(added.items()):
        result.metadata_props.add(key=key, value=value)
    _carry(source.graph, result.graph, ("name",))
    described = {value.name: value for value in (*source.graph.input, *source.graph.output)}
    for value in (*result.graph.input, *result.graph.output):
        if value.name in described:
            _carry(described[value.name], value)


def restore_metadata(source: Path, made: Path, *, kept: str = "") -> None:
    """Apply :func:`carry_metadata` from the model *source* to the file *made*, without touching external data."""
    model = onnx.load(made, load_external_data=False)
    carry_metadata(onnx.load(source, load_external_data=False), model, kept=kept)
    made.write_bytes(model.SerializeToString(deterministic=True))


def _carry(source: _Described, result: _Described, fields: tuple[str, ...] = ()) -> None:
    """Copy description, metadata and the text or number *fields*; clear in *result* what *source* does not have."""
    for name in ("doc_string", *fields):
        if source.HasField(name):
            setattr(result, name, getattr(source, name))
        else:
            result.ClearField(name)
    del result.metadata_props[:]
    result.metadata_props.extend(source.metadata_props)


def canonicalise(model: ModelProto) -> None:
    """Remove, in place, what varies between machines and runs without changing the model.

    These are doc strings, metadata of elements (torch records source paths of the exporting script there), and the
    hardware for which the producer was built. Of the metadata of the model and of nodes, ``winml.*`` is preserved.
    """
    model.producer_version = model.producer_version.partition("+")[0]  # such as 2.13.0+cpu
    _clean(model)


def _clean(element: Any) -> None:
    """Clean *element* and all in it that may have a description."""
    fields = element.DESCRIPTOR.fields_by_name
    entries = element.metadata_props if isinstance(element, ModelProto | NodeProto) else ()
    own = [(entry.key, entry.value) for entry in entries if entry.key.startswith(_OWN_PREFIX)]
    for name in ("doc_string", "metadata_props"):
        if name in fields:
            element.ClearField(name)
    for key, value in sorted(own):
        element.metadata_props.add(key=key, value=value)
    if isinstance(element, TensorProto):
        return  # listing its fields would copy its data
    for field, value in element.ListFields():
        if field.message_type is not None and field.message_type.name in _DESCRIBED:
            for inner in value if field.is_repeated else (value,):
                _clean(inner)


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
