"""A model with every kind of ONNX metadata, and the metadata of a model."""

from __future__ import annotations

from typing import Any

import onnx


def describe(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add metadata and descriptions to *model*, in place, as trainers and labs leave them."""
    model.producer_name, model.producer_version = "acme-trainer", "7.1"
    model.domain, model.model_version, model.doc_string = "com.acme", 42, "Tells cats from dogs."
    for key, value in (("names", "{0: 'cat', 1: 'dog'}"), ("stride", "32"), ("author", "Zoë")):
        model.metadata_props.add(key=key, value=value)
    model.graph.name, model.graph.doc_string = "pets", "The graph of pets."
    model.graph.metadata_props.add(key="of the graph", value="1")
    for value in (*model.graph.input, *model.graph.output):
        value.doc_string = f"About {value.name}."
        value.metadata_props.add(key="of the value", value=value.name)
    return model


def said(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the metadata of *model*, except what compilers add."""
    values = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    return {
        "producer": (model.producer_name, model.producer_version),
        "version": (model.domain, model.model_version),
        "descriptions": (model.doc_string, model.graph.doc_string),
        "graph": (model.graph.name, _entries(model.graph)),
        "metadata": [pair for pair in _entries(model) if not pair[0].startswith("ep_compatibility_info.")],
        "values": {name: (value.doc_string, _entries(value)) for name, value in sorted(values.items())},
    }


def _entries(element: onnx.ModelProto | onnx.GraphProto | onnx.ValueInfoProto) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in element.metadata_props]
