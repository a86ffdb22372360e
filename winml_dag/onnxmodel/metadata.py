"""A model's metadata: class names, producer, descriptions. Tools that rewrite a model lose it.

Only the built-in export adds noise (torch records source paths), so only export calls :func:`canonicalise`. Everything
else belongs to the user and is copied from stage to stage with :func:`carry_metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from winml_dag.onnxmodel.protos import subgraphs

_OWN_PREFIX = "winml."
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
    model.ClearField("doc_string")
    model.producer_version = model.producer_version.partition("+")[0]  # such as 2.13.0+cpu
    _keep_own(model)
    _clean_graph(model.graph)
    for function in model.functions:
        _clean(function)
        for value_info in function.value_info:
            _clean(value_info)
        _clean_attributes(function.attribute_proto)
        _clean_nodes(function.node)


def _clean(element: object) -> None:
    element.ClearField("doc_string")  # type: ignore[attr-defined]
    element.ClearField("metadata_props")  # type: ignore[attr-defined]


def _keep_own(element: ModelProto | NodeProto) -> None:
    own = sorted((p.key, p.value) for p in element.metadata_props if p.key.startswith(_OWN_PREFIX))
    del element.metadata_props[:]
    for key, value in own:
        element.metadata_props.add(key=key, value=value)


def _clean_graph(graph: GraphProto) -> None:
    _clean(graph)
    for group in (graph.input, graph.output, graph.value_info, graph.initializer):
        for element in group:
            _clean(element)
    for sparse in graph.sparse_initializer:
        _clean(sparse.values)
        _clean(sparse.indices)
    _clean_nodes(graph.node)


def _clean_nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        node.ClearField("doc_string")
        _keep_own(node)
        _clean_attributes(node.attribute)


def _clean_attributes(attributes: Iterable[AttributeProto]) -> None:
    for attribute in attributes:
        attribute.ClearField("doc_string")
        if attribute.HasField("t"):
            _clean(attribute.t)
        for tensor in attribute.tensors:
            _clean(tensor)
        for graph in subgraphs(attribute):
            _clean_graph(graph)
