"""What each capability would change in a model: nodes before and after, and constants. The results are discarded.

Each capability is tried alone, together with what it needs, on the model at the portable level. Combinations are not
tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import NodeProto

from winml_dag.onnxmodel.graph import NodeName
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.protos import nodes_of
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages.float_model import refuse_finished
from winml_dag.stages.optimize import OptimizeTarget, Selection, select
from winml_dag.stages.optimize.apply import apply_capabilities
from winml_dag.stages.optimize.levels import run_alone, to_portable_level


@dataclass(frozen=True)
class Change:
    """What *capability* would change.

    Attributes:
        places: the number of changes.
        before, after: the nodes that differ.
        constants: the constants whose values differ.
        left: what stays unchanged and why.
        on: the capability is already on, and *before* is the model without it.
    """

    capability: str
    places: int
    before: tuple[NodeName, ...] = ()
    after: tuple[NodeName, ...] = ()
    constants: tuple[str, ...] = ()
    left: str = ""
    on: bool = False


def optional_capabilities() -> tuple[str, ...]:
    """The capabilities that are off by default and have an effect."""
    return tuple(name for name, entry in CATALOG.items() if not (entry.default or entry.left or entry.same_as))


def changes(source: Path, names: Sequence[str], target: OptimizeTarget, folder: Path) -> Iterator[Change]:
    """Yield what each of the capabilities *names* would change in the model *source*; *folder* is for temporary files.

    Raises:
        StageError: the model cannot be optimized.
    """
    refuse_finished(source.name, inspect_model(source), "optimized")
    bases: dict[frozenset[str], Path] = {}

    def base(without: frozenset[str]) -> Path:
        if without not in bases:
            path = folder / f"portable{len(bases)}.onnx"
            to_portable_level(source, path, without=without)
            # Write it with the same libraries as the model that it is compared with: onnxruntime, for one, adds default
            # values.
            written = folder / f"base{len(bases)}.onnx"
            run_alone("", path, written)
            ir.save(ir.load(written), written)
            bases[without] = written
        return bases[without]

    for name in names:
        first = CATALOG[name].same_as or name
        if CATALOG[first].default:
            chosen = select({first: False})
            yield _compared(name, base(chosen.without), base(frozenset()), on=True)
        else:
            yield _tried(name, select({first: True}), base, target)


def _tried(name: str, chosen: Selection, base: Callable[[frozenset[str]], Path], target: OptimizeTarget) -> Change:
    before = base(chosen.waiting)
    made = apply_capabilities(before, chosen, target)
    places, left = sum(made.applied.values()), "; ".join(made.left.values())
    if not places:
        return Change(name, 0, left=left)
    found = _compared(name, before, made.path, on=False)
    return replace(found, places=places, left=left)


def _compared(name: str, before: Path, after: Path, *, on: bool) -> Change:
    nodes = [_nodes(path) for path in (before, after)]
    gone, come = nodes[0] - nodes[1], nodes[1] - nodes[0]
    constants = () if on else _changed_constants(before, after)
    return Change(
        name,
        max(gone.total(), come.total()) if on else 0,
        tuple(each for each, _ in gone.elements()),
        tuple(each for each, _ in come.elements()),
        constants,
        on=on,
    )


def _nodes(path: Path) -> Counter[tuple[NodeName, bytes]]:
    """All nodes, by name and content. A Constant counts as part of the nodes that read it."""
    model = onnx.load(path, load_external_data=False)
    return Counter((NodeName.of(node), _content(node)) for node in nodes_of(model.graph) if node.op_type != "Constant")


def _content(node: NodeProto) -> bytes:
    plain = NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
    plain.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
    content: bytes = plain.SerializeToString(deterministic=True)
    return content


def _changed_constants(before: Path, after: Path) -> tuple[str, ...]:
    known = {each.name: each for each in onnx.load(before, load_external_data=False).graph.initializer}
    model = onnx.load(after, load_external_data=False)
    # External data is in a new file each time onnxruntime writes it; rewrites store changed values in the model itself.
    return tuple(
        each.name
        for each in model.graph.initializer
        if each.name in known and not each.external_data and _values(each) != _values(known[each.name])
    )


def _values(tensor: onnx.TensorProto) -> bytes:
    if tensor.external_data:
        return b"elsewhere"
    content: bytes = onnx.numpy_helper.to_array(tensor).tobytes()
    return content
