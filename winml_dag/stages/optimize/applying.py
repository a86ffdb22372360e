"""Applies capabilities to a model in a file, one after the other in the order of the catalog.

Rewrites that follow each other share one graph in memory, whose weights stay in their file; what onnxruntime does takes
a session each, which is slower and tells exactly what each of them changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from winml_dag.recipe.capabilities import CATALOG
from winml_dag.stages.optimize import OptimizeTarget
from winml_dag.stages.optimize.extended import run_alone
from winml_dag.stages.optimize.rewriting import rewrite_named
from winml_dag.stages.optimize.selection import Selection


@dataclass(frozen=True)
class Applied:
    """The model: its file, *source* itself when nothing changed; by capability, how many places changed, and what was
    left and why.
    """

    path: Path
    applied: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)


def apply_capabilities(source: Path, chosen: Selection, target: OptimizeTarget) -> Applied:
    """Files are written beside *source*."""
    path, applied, left = source, dict[str, int](), dict[str, str]()
    possible: list[str] = []
    for name in chosen.on:
        capability = CATALOG[name]
        if reason := _why_left(name, target):
            applied[name], left[name] = 0, reason
        elif capability.extended or capability.rewrite:
            possible.append(name)
    for is_rewrite, group in groupby(possible, key=lambda name: bool(CATALOG[name].rewrite)):
        names = tuple(group)
        if is_rewrite:
            step = _rewrite(path, names, target)
            path, applied, left = step.path, {**applied, **step.applied}, {**left, **step.left}
            continue
        for name in names:
            step = _run_onnxruntime(path, name)
            path, applied = step.path, {**applied, **step.applied}
    in_order = [name for name in chosen.on if name in applied]
    return Applied(path, {name: applied[name] for name in in_order}, {n: left[n] for n in in_order if left.get(n)})


def _why_left(name: str, target: OptimizeTarget) -> str:
    capability = CATALOG[name]
    if target.standard_domain_only and capability.makes and not capability.has_standard_form:
        return f"it makes {', '.join(capability.makes)}, and the target takes operators of the ONNX standard only"
    return capability.left


def _rewrite(source: Path, names: tuple[str, ...], target: OptimizeTarget) -> Applied:
    model = ir.load(source)
    outcomes = {name: rewrite_named(CATALOG[name].rewrite)(model, target) for name in names}
    applied = {name: outcome.changes for name, outcome in outcomes.items()}
    left = {name: outcome.left for name, outcome in outcomes.items()}
    if not any(applied.values()):
        return Applied(source, applied, left)
    # onnxruntime keeps nodes that nobody reads.
    RemoveUnusedNodesPass()(model)
    destination = source.with_name(f"{source.stem}_{names[0]}.onnx")
    # The untouched weights stay where they are, in the data file of the source.
    ir.save(model, destination)
    return Applied(destination, applied, left)


def _run_onnxruntime(source: Path, name: str) -> Applied:
    capability = CATALOG[name]
    destination = source.with_name(f"{source.stem}_{name}.onnx")
    run_alone(capability.extended, source, destination)
    changes = (abs(_count(destination, each) - _count(source, each)) for each in capability.into)
    places = next(filter(None, changes), 0)
    return Applied(destination if places else source, {name: places})


def _count(path: Path, operator: str) -> int:
    """How many nodes of *operator* the model *path* has, subgraphs included; ``domain/type`` or a type."""
    domain, _, op_type = operator.rpartition("/")
    graphs = ir.load(path).graphs()
    return sum(node.op_type == op_type and node.domain == domain for graph in graphs for node in graph)
