"""Measures every quantized node: compares the float model with only that node quantized with the float model."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import xxhash
from onnx import GraphProto

from winml_dag.engine.progress import OnProgress
from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import OutputComparison
from winml_dag.onnxmodel.files import save_model
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.stages.figures import Feed, OutputFigures, measure
from winml_dag.stages.quantize import NodeTypes, QuantizeConfig, QuantizeFields
from winml_dag.stages.quantize.modes import quantize_typed
from winml_dag.stages.ranges import Ranges
from winml_dag.stages.sensitivity.pieces import Array, Pieces, run_session
from winml_dag.stages.sensitivity.replacement import Replacement

# The gain of excluding the worst nodes: compares the otherwise quantized model with the float model.
#
# This is not the sum of their individual costs. A node that stays in float still reads the output of its quantized
# neighbours; so each number here is from a model quantized with the same fields that a user would set.

_TRIAL_FILE = Path("trial.onnx")
# Each requires quantizing and running a separate model.
_WORST = (0, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Relief:
    """``figures``: every output when the worst ``nodes`` are treated ``by`` this field of the quant section."""

    nodes: int
    by: str
    figures: tuple[OutputFigures, ...]

    @property
    def worst(self) -> OutputFigures:
        return worst_output(self.figures)


def relieve(
    model: Path,
    ranges: Ranges | None,
    config: QuantizeConfig,
    ranked: Sequence[str],
    reference: Reference,
    on_progress: OnProgress,
) -> list[Relief]:
    """Measure the whole *model* with none, two, four ... of the worst of the nodes *ranked* treated."""
    # The samples are in float32.
    config = replace(config, quant=replace(config.quant, fp16_keep_io_types=True))
    by = "node_overrides" if _has_room(config) else "nodes_to_exclude"
    most = len(ranked) - 1
    counts = sorted({min(count, most) for count in _WORST})
    reliefs = []
    for done, count in enumerate(counts):
        on_progress(done, len(counts), "trials")
        fields = _spared(config.quant, ranked[:count], by)
        try:
            figures = _try(model, ranges, replace(config, quant=fields), reference)
        except StageError as error:
            if not count:
                raise
            # Some neighbours cannot have different types; the other results are still useful.
            print(f"With the worst {count} nodes spared by quant.{by}: {error.message}")
            continue
        reliefs.append(Relief(count, by, figures))
    on_progress(len(counts), len(counts), "trials")
    return reliefs


def _has_room(config: QuantizeConfig) -> bool:
    """Return whether 16 bits are an option: for providers that mix widths, including an NPU's.

    They are the better option: next to a node in float, others are quantized differently than next to a quantized one.
    The SQNR of MiniLM in w8a8 rises from 16.5 dB to 18.5 with its worst 16 nodes in 16 bits, and falls to 9.3 with the
    same nodes in float, because residual sums are protected from their outliers only if everything around them is
    quantized.
    """
    return (
        config.quant.mode == "static"
        and config.quant.activation_type in SIXTEEN_BITS
        and bool(config.target.mixes_widths)
    )


def _spared(fields: QuantizeFields, names: Sequence[str], by: str) -> QuantizeFields:
    if not names:
        return fields
    if by == "nodes_to_exclude":
        return replace(fields, nodes_to_exclude=(*(fields.nodes_to_exclude or ()), *names))
    wide = SIXTEEN_BITS[str(fields.activation_type)]
    others = [types for types in fields.node_overrides or () if types.nodes not in names]
    return replace(fields, node_overrides=(*others, *(NodeTypes(name, activation_type=wide) for name in names)))


def _try(model: Path, ranges: Ranges | None, config: QuantizeConfig, reference: Reference) -> tuple[OutputFigures, ...]:
    save_model(quantize_typed(model, ranges, config).model, _TRIAL_FILE)
    session = open_session(_TRIAL_FILE, "the quantized model")
    found = []
    for feed in reference.feeds:
        outputs = run_session(session, feed)
        found.append([outputs[name] for name in reference.names])
    return reference.compare(found)


# Each holds the result of one piece for all samples.
_MOST_THREADS = 8

# All samples go through one node before the next: these are the values in memory.
_Samples = list[dict[str, Array]]


@dataclass(frozen=True)
class NodeCost:
    """``figures``: every output of the model when only this node is quantized, together with those it ``includes``."""

    name: str
    op_type: str
    includes: tuple[str, ...]
    figures: tuple[OutputFigures, ...]

    @property
    def worst(self) -> OutputFigures:
        return worst_output(self.figures)


@dataclass(frozen=True)
class Reference:
    """The samples and the float model's outputs for them, which are called ``names``.

    ``scores``: outputs that are class scores.
    """

    names: tuple[str, ...]
    feeds: Sequence[Feed]
    outputs: Sequence[Sequence[Array]]
    scores: frozenset[str]

    def compare(self, found: Sequence[Sequence[Array]]) -> tuple[OutputFigures, ...]:
        return measure(self.names, self.feeds, self.outputs, found, self.scores)


def worst_output(figures: Sequence[OutputFigures]) -> OutputFigures:
    """Return the output with the lowest SQNR."""
    return min(figures, key=lambda output: _order(output.read))


def rank(
    graph: GraphProto,
    names: Collection[str],
    replacements: Sequence[Replacement],
    pieces: Pieces,
    reference: Reference,
    progress: OnProgress,
) -> list[NodeCost]:
    """Return the cost of each of *replacements*, highest first. *names*: the nodes in the user's own model."""
    costs: list[NodeCost] = []
    given: _Samples = [dict(feed) for feed in reference.feeds]
    progress(0, len(replacements), "nodes")
    with ThreadPoolExecutor(_threads()) as pool:
        for index in range(pieces.count):
            made = [pieces.run(index, values) for values in given]
            here = [replacement for replacement in replacements if pieces.holding(replacement.covers[0]) == index]
            trials = _Trials(pieces, index, given, reference, made)
            for replacement, figures in zip(here, pool.map(trials.figures, here), strict=True):
                costs.append(_cost(graph, names, replacement, figures))
                progress(len(costs), len(replacements), "nodes")
            given = [pieces.after(index, values, new) for values, new in zip(given, made, strict=True)]
    return sorted(costs, key=lambda cost: _order(cost.worst.read))


def _threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


class _Trials:
    """Tries replacements in one piece on the samples. Threads may try several at once."""

    def __init__(self, pieces: Pieces, index: int, given: _Samples, reference: Reference, made: _Samples) -> None:
        """*given*: the input of the piece; *made*: its result in float."""
        self._pieces = pieces
        self._index = index
        self._given = given
        self._reference = reference
        self._lock = Lock()
        # Nodes that only move data output what the node before them did; such results are reused.
        self._known: dict[bytes, Future[tuple[OutputFigures, ...]]] = {}
        self._claim(_digest(made))[0].set_result(reference.compare(reference.outputs))

    def figures(self, replacement: Replacement) -> tuple[OutputFigures, ...]:
        session = self._pieces.replaced(self._index, replacement, self._given[0])
        changed = [run_session(session, values) for values in self._given]
        result, is_first = self._claim(_digest(changed))
        if is_first:
            try:
                result.set_result(self._finish(changed))
            except BaseException as error:
                result.set_exception(error)
        return result.result()

    def _claim(self, digest: bytes) -> tuple[Future[tuple[OutputFigures, ...]], bool]:
        """Return the result for this *digest*, possibly pending, and whether the caller has to compute it."""
        with self._lock:
            if digest in self._known:
                return self._known[digest], False
            return self._known.setdefault(digest, Future()), True

    def _finish(self, changed: _Samples) -> tuple[OutputFigures, ...]:
        found = []
        for values, new in zip(self._given, changed, strict=True):
            outputs = self._pieces.finish(self._index + 1, self._pieces.after(self._index, values, new))
            found.append([outputs[name] for name in self._reference.names])
        return self._reference.compare(found)


def _cost(
    graph: GraphProto, names: Collection[str], replacement: Replacement, figures: tuple[OutputFigures, ...]
) -> NodeCost:
    node, *others = (graph.node[position] for position in replacement.covers)
    return NodeCost(node.name, node.op_type, tuple(other.name for other in others if other.name in names), figures)


def _order(comparison: OutputComparison) -> tuple[float, float]:
    return comparison.sqnr_db, comparison.cosine


def _digest(samples: Sequence[Mapping[str, Array]]) -> bytes:
    digest = xxhash.xxh3_128()
    for values in samples:
        for name in sorted(values):
            digest.update(f"{name} {values[name].dtype} {values[name].shape} ".encode())
            digest.update(values[name].tobytes())
    return digest.digest()
