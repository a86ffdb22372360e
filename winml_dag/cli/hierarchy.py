"""``winml-dag inspect --hierarchy``: the PyTorch modules that the nodes of a graph come from, as a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import printable
from winml_dag.errors import InputError
from winml_dag.file_reading import read_json
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.pipeline.assess.builtmodel import model_file
from winml_dag.pipeline.buildgraph import MODEL
from winml_dag.pipeline.layout import EXPORTED, HIERARCHY, OPTIMIZED, QUANTIZED

_INDENT = "  "
_MOST_OPERATORS = 4
# A compiled model has lost its nodes, so the models that it was made from are read instead.
_IN_A_FOLDER = (MODEL, QUANTIZED, OPTIMIZED, EXPORTED)


@dataclass
class Module:
    """A module of the PyTorch model, limited to what nodes come from.

    Attributes:
        name: of its class, numbered if it is in a list: ``BertLayer.0``.
        operators: how many nodes of each operator belong to it directly, not to a module inside.
        children: by name, in the order of their first nodes.
    """

    name: str
    operators: Counter[str] = field(default_factory=Counter)
    children: dict[str, Module] = field(default_factory=dict)

    @property
    def nodes(self) -> int:
        """How many nodes come from it and from all modules inside."""
        return sum(self.operators.values()) + sum(child.nodes for child in self.children.values())

    def is_like(self, other: Module) -> bool:
        """Return whether both are in the same list and have the same contents."""
        return (
            _kind(self.name) == _kind(other.name) != self.name
            and self.operators == other.operators
            and self.children == other.children
        )


@dataclass(frozen=True)
class Tagged:
    """The nodes of ``path`` as a tree of modules. ``nodes`` is the total, including nodes of no known module."""

    path: Path
    nodes: int
    modules: Collection[Module]

    @property
    def tagged(self) -> int:
        return sum(module.nodes for module in self.modules)


def find_hierarchy(path: Path) -> Tagged:
    """Read the module tree of *path*: a model, the output folder of a build, or an ``export_htp_metadata.json``.

    Raises:
        InputError: when it cannot be read, or names no module.
    """
    files = [path]
    if path.is_dir():  # the best first; a folder with several models needs an explicit choice
        files = [path / name for name in _IN_A_FOLDER if (path / name).exists()] or [model_file(path)]
    read = (_of_metadata(file) if file.suffix == ".json" else _of_model(file) for file in files)
    found = next((tagged for tagged in read if tagged.modules), None)
    if found is None:
        raise InputError(
            f"{path} does not say which modules of a PyTorch model its nodes come from.",
            advice="Export the model with winml-dag (export.enable_hierarchy_tags is on by default), and omit "
            f"export.clean_onnx; or give the {HIERARCHY} beside it.",
        )
    return found


def hierarchy_lines(tagged: Tagged) -> Iterator[str]:
    yield printable(f"{tagged.path}: {tagged.tagged} of {tagged.nodes} nodes say which module they come from")
    rows = list(_rows(tagged.modules, ""))
    width = max(len(name) for name, _, _ in rows)
    digits = max(len(count) for _, count, _ in rows)
    for name, count, operators in rows:
        yield printable(f"{name:<{width}}  {count:>{digits}}  {operators}".rstrip())


def hierarchy_json(tagged: Tagged) -> JsonObject:
    return {
        "path": str(tagged.path),
        "nodes": tagged.nodes,
        "tagged_nodes": tagged.tagged,
        "modules": [_json(module) for module in tagged.modules],
    }


def _json(module: Module) -> JsonObject:
    return {
        "name": module.name,
        "nodes": module.nodes,
        "operators": dict(module.operators),
        "children": [_json(child) for child in module.children.values()],
    }


def _rows(modules: Iterable[Module], indent: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, number of nodes, and the operators outside submodules."""
    for run in _alike(modules):
        first, last = run[0], run[-1]
        times = "" if len(run) == 1 else f" to {last.name.rpartition('.')[2]}, {len(run)} alike, each"
        yield f"{indent}{first.name}{times}", str(first.nodes), _operators(first.operators)
        yield from _rows(first.children.values(), indent + _INDENT)


def _operators(counts: Mapping[str, int]) -> str:
    if set(counts) == {""}:
        return ""
    most = Counter(counts).most_common(_MOST_OPERATORS)
    others = sum(counts.values()) - sum(count for _, count in most)
    named = [f"{name} {count}" for name, count in most]
    return ", ".join([*named, f"{others} more"] if others else named)


def _of_model(path: Path) -> Tagged:
    nodes = read_model(path).graph.nodes
    return Tagged(path, len(nodes), _module_tree((node.op_type, node.tag) for node in nodes if node.tag))


def _of_metadata(path: Path) -> Tagged:
    """Read a metadata file. It names nodes but not their operators."""
    try:
        content: JsonValue = read_json(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from error
    tags = content.get("nodes") if isinstance(content, Mapping) else None
    statistics = content.get("statistics") if isinstance(content, Mapping) else None
    if not isinstance(tags, Mapping) or not isinstance(statistics, Mapping):
        raise InputError(f"{path} is not an {HIERARCHY}: it has no nodes.", advice="Give the file that an export made.")
    count = statistics.get("onnx_nodes")
    tree = _module_tree(("", tag) for tag in tags.values() if isinstance(tag, str))
    return Tagged(path, count if isinstance(count, int) else len(tags), tree)


def _module_tree(tagged: Iterable[tuple[str, str]]) -> Collection[Module]:
    """Return the outermost modules; *tagged* has operator and tag of every tagged node, in graph order."""
    root = Module("")
    for operator, tag in tagged:
        module = root
        for name in tag.strip("/").split("/"):
            module = module.children.setdefault(name, Module(name))
        module.operators[operator] += 1
    return root.children.values()


def _alike(modules: Iterable[Module]) -> Iterator[list[Module]]:
    """Group *modules* into runs that differ only in their number: all layers of a stack at once."""
    run: list[Module] = []
    for module in modules:
        if run and not run[0].is_like(module):
            yield run
            run = []
        run.append(module)
    if run:
        yield run


def _kind(name: str) -> str:
    return name.rpartition(".")[0] or name
