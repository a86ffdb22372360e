"""What it gains to spare the worst nodes: the whole model, quantized but for them, against the float model.

This is not the sum of what they cost alone. A node that stays in float still reads what its neighbours make, and that
is quantized; so each number here is of a model that was quantized with the very fields that a user would set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.engine.progress import Tell
from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import save_model
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.float_model import open_session
from winml_dag.stages.quantize import NodeTypes, QuantizeConfig, QuantizeFields
from winml_dag.stages.quantize.work import quantize_typed
from winml_dag.stages.ranges import Ranges
from winml_dag.stages.sensitivity.pieces import run_session
from winml_dag.stages.sensitivity.ranking import Reference, worst_output

_TRIAL_FILE = Path("trial.onnx")
# Each is a model of its own that is quantized and run.
_WORST = (0, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Relief:
    """``figures``: every output when the worst ``nodes`` are spared ``by`` this field of the quant section."""

    nodes: int
    by: str
    figures: tuple[OutputFigures, ...]

    @property
    def worst(self) -> OutputFigures:
        return worst_output(self.figures)


def relieve(
    model: Path, ranges: Ranges | None, config: QuantizeConfig, ranked: Sequence[str], reference: Reference, tell: Tell
) -> list[Relief]:
    """The whole *model* when none of the nodes *ranked* is spared, one, two, four ... of the worst."""
    # The samples are in float32.
    config = replace(config, quant=replace(config.quant, fp16_keep_io_types=True))
    by = "node_overrides" if _has_room(config) else "nodes_to_exclude"
    most = len(ranked) - 1
    counts = sorted({min(count, most) for count in _WORST})
    reliefs = []
    for done, count in enumerate(counts):
        tell(done, len(counts), "trials")
        fields = _spared(config.quant, ranked[:count], by)
        try:
            figures = _try(model, ranges, replace(config, quant=fields), reference)
        except StageError as error:
            if not count:
                raise
            # Some neighbours cannot have different types; what is known without them is still worth telling.
            print(f"With the worst {count} nodes spared by quant.{by}: {error.message}")
            continue
        reliefs.append(Relief(count, by, figures))
    tell(len(counts), len(counts), "trials")
    return reliefs


def _has_room(config: QuantizeConfig) -> bool:
    """Whether 16 bits are a way out, which they are for providers that mix widths, an NPU's among them.

    They are the better one: beside a node in float, others are quantized in other ways than beside a quantized one. The
    SQNR of MiniLM in w8a8 goes from 16.5 dB to 18.5 with its worst 16 nodes in 16 bits, and down to 9.3 with the same
    in float, since sums of residuals are spared their outliers only where all around them is quantized.
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
