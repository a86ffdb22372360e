"""Which nodes and operators a config names. One that does not exist is an error; onnxruntime's tools ignore it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from onnx import GraphProto
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from winml_dag.errors import StageError


def excluded_nodes(graph: GraphProto, patterns: Iterable[str]) -> tuple[str, ...]:
    """Names of the nodes that *patterns* (names, or patterns with ``*`` and ``?``) stand for, in the graph's order.

    Raises:
        StageError: for one that matches no node.
    """
    names = [node.name for node in graph.node if node.name]
    matched: set[str] = set()
    for pattern in patterns:
        # The name itself first: exporters put brackets into names, which a pattern reads as a set of characters.
        found = {pattern} & set(names) or {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise StageError(
                f"quant.nodes_to_exclude: no node of the model matches {pattern!r}.", advice=_nearest(pattern, names)
            )
        matched |= found
    return tuple(name for name in names if name in matched)


def check_op_types(graph: GraphProto, op_types: Sequence[str], field: str) -> None:
    """Raise StageError for an operator that is neither in the graph nor known to onnxruntime.

    One that is known and not in this graph is fine: a list may serve many models.
    """
    present = {node.op_type for node in graph.node}
    if set(op_types) <= present:
        return
    known = present | {schema.name for schema in get_all_operator_schema()}
    for op_type in op_types:
        if op_type not in known:
            raise StageError(
                f"quant.{field}: there is no operator {op_type!r}.", advice=_nearest(op_type, sorted(known))
            )


def _nearest(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    return f"Did you mean {near[0]!r}?" if near else "Check its spelling."
