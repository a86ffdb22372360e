"""Maps nodes of the exported graph to PyTorch modules: ``export_htp_metadata.json``.

The file has nothing that differs between runs: the timestamp that its readers expect is null.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto
from torch import Tensor
from torch.nn import Module

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.stages.export.exporter import MODEL_SCOPE, ExportOptions
from winml_dag.stages.export.subject import call_model

METADATA_FILE = "export_htp_metadata.json"
METADATA_VERSION = "1.0"

# The metadata in which the dynamo exporter records the modules around a node, outermost first, the operator last.
_DYNAMO_SCOPES = "pkg.torch.onnx.name_scopes"
# Containers that are never called: their name adds nothing to that of the module inside.
_CONTAINERS = ("ModuleList", "ModuleDict")


@dataclass(frozen=True)
class ModuleEntry:
    """A module of the model. ``order`` is its index among the called modules; None if it was not called."""

    scope: str
    class_name: str
    tag: str
    order: int | None


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the exported PyTorch model. ``modules``: all of them, outermost first."""

    model_type: str
    class_name: str
    task: str
    parameters: int
    modules: tuple[ModuleEntry, ...]


def traced_modules(model: Module, arguments: Mapping[str, Tensor]) -> tuple[tuple[ModuleEntry, ...], dict[str, Tensor]]:
    """Call *model* once with *arguments*; return all its modules, and its outputs.

    Raises:
        StageError: the model cannot take *arguments*.
    """
    order: dict[int, int] = {}

    def note(called: Module, _: object) -> None:
        order.setdefault(id(called), len(order))

    modules = dict(model.named_modules())
    hooks = [module.register_forward_pre_hook(note) for module in modules.values()]
    try:
        produced = call_model(model, arguments)
    finally:
        for hook in hooks:
            hook.remove()
    tags: dict[str, str] = {}
    for scope, module in modules.items():
        tags[scope] = _tag(scope, module, tags)
    entries = tuple(
        ModuleEntry(scope, type(module).__name__, tags[scope], order.get(id(module)))
        for scope, module in modules.items()
    )
    return entries, produced


def _tag(scope: str, module: Module, tags: Mapping[str, str]) -> str:
    """``/BertModel/BertEncoder/BertLayer.0``: classes on the path to the module, numbered if they are in a list."""
    parent, _, name = scope.rpartition(".")
    around = tags.get(parent, "") if scope else ""
    class_name = type(module).__name__
    if class_name in _CONTAINERS and scope:
        return around
    return f"{around}/{class_name}.{name}" if name.isdecimal() else f"{around}/{class_name}"


def node_tags(model: ModelProto, entries: Sequence[ModuleEntry], tag_format: str) -> dict[str, str]:
    """The tag of each node whose module the exporter recorded, by node name.

    *model* is as the exporter wrote it: the canonical form has no node metadata.
    """
    tags = {entry.scope: entry.tag if tag_format == "full" else entry.tag.rpartition("/")[2] for entry in entries}
    found: dict[str, str] = {}
    for node in model.graph.node:
        scope = _scope(node, tags)
        if node.name and scope is not None:
            found[node.name] = tags[scope]
    return found


def _scope(node: NodeProto, known: Mapping[str, str]) -> str | None:
    """The innermost known module around *node*; None if the exporter recorded none."""
    for entry in node.metadata_props:
        if entry.key == _DYNAMO_SCOPES:
            return _innermost(ast.literal_eval(entry.value)[:-1], known)
    parts = node.name.split("/")
    return _torchscript_scope(parts[1:-1], known) if parts[0] == "" else None


def _innermost(scopes: Sequence[str], known: Mapping[str, str]) -> str | None:
    for scope in reversed(scopes):
        if scope == MODEL_SCOPE:
            return ""
        inside = scope.removeprefix(f"{MODEL_SCOPE}.")
        if inside != scope and inside in known:
            return inside
    return None


def _torchscript_scope(parts: Sequence[str], known: Mapping[str, str]) -> str | None:
    """``["model", "encoder", "layer.0"]`` is the module ``encoder.layer.0``.

    The name of a container that is called (Sequential) is repeated in the names of its members:
    ``classifier/classifier.0``.
    """
    if not parts or parts[0] != MODEL_SCOPE:
        return None
    scope = ""
    for part in parts[1:]:
        parent, _, last = scope.rpartition(".")
        candidates = [f"{scope}.{part}" if scope else part]
        if part.startswith(f"{last}."):
            candidates.append(f"{parent}.{part}" if parent else part)
        inside = next((candidate for candidate in candidates if candidate in known), None)
        if inside is None:
            break
        scope = inside
    return scope


def hierarchy_metadata(
    facts: ModelFacts,
    options: ExportOptions,
    nodes: Sequence[str],
    tags: Mapping[str, str],
    model_file: Path,
    *,
    embedded: bool,
) -> JsonObject:
    """The content of the file; coverage is counted over *nodes*, the names of those in *model_file* as written.

    *tags* has those of nodes, by name; *embedded*: the nodes in the file carry them.
    """
    tagged = sum(name in tags for name in nodes)
    called = sum(entry.order is not None for entry in facts.modules)
    return {
        "export_context": {
            "timestamp": None,  # a time would differ in every run
            "strategy": "htp",
            "version": METADATA_VERSION,
            "exporter": options.exporter,
            "embed_hierarchy_attributes": embedded,
            "export_time_seconds": None,
        },
        "model": {
            "name_or_path": f"{facts.model_type}/{facts.class_name}",  # a path would be specific to this machine
            "class_name": facts.class_name,
            "framework": "transformers",
            "total_modules": len(facts.modules),
            "total_parameters": facts.parameters,
        },
        "tracing": {
            "builder": options.exporter,
            "source": "onnx_metadata",
            "modules_traced": called,
            "execution_steps": called,
            "model_type": facts.model_type,
            "task": facts.task,
            "inputs": options.input_names,
            "outputs": tuple(options.outputs),
        },
        "modules": _tree(facts.modules),
        "nodes": {name: tags[name] for name in nodes if name in tags},
        "outputs": {
            "onnx_model": {
                "path": model_file.name,
                "size_mb": round(sum(path.stat().st_size for path in model_file.parent.iterdir()) / 2**20, 3),
                "opset_version": options.opset_version,
                "output_names": tuple(options.outputs),
            },
            "metadata": METADATA_FILE,
            "report": None,
        },
        "report": {"steps": ["load", "trace", "export", "compare"]},
        "statistics": {
            "export_time": None,
            "hierarchy_modules": len(facts.modules),
            "traced_modules": called,
            "onnx_nodes": len(nodes),
            "tagged_nodes": tagged,
            "empty_tags": len(nodes) - tagged,
            "coverage_percentage": round(100 * tagged / len(nodes), 2) if nodes else 0.0,
            "module_types": sorted({entry.class_name for entry in facts.modules}),
        },
    }


def _tree(modules: Sequence[ModuleEntry]) -> JsonObject:
    branches: dict[str, tuple[JsonObject, dict[str, JsonValue]]] = {}
    for entry in modules:
        children: dict[str, JsonValue] = {}
        branch: JsonObject = {
            "class_name": entry.class_name,
            "traced_tag": entry.tag,
            "scope": entry.scope,
            "execution_order": entry.order,
            "children": children,
        }
        branches[entry.scope] = branch, children
        if entry.scope:
            parent, _, name = entry.scope.rpartition(".")
            branches[parent][1][name] = branch
    return branches[""][0]
