"""Precisions one after the other, as ``quantize -p int4 -p fp16`` has them: which chains mean something.

Only float16 for what 4-bit or 8-bit weights leave in float32 does. Every other quantization leaves nothing in float32
that a second could take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from winml_dag.errors import UsageError
from winml_dag.recipe.precision import parse_precision


@dataclass(frozen=True)
class Chain:
    """The first of the precisions, None when there is none, and the fields of ``quant`` that say what follows it."""

    precision: str | None
    fields: dict[str, str]


def chained(names: Sequence[str]) -> Chain:
    """What the precisions *names*, applied in this order, come to.

    Raises:
        UsageError: for a name that is not known, and for precisions that cannot follow each other.
    """
    parsed = [parse_precision(name) for name in names]
    if len(names) < 2:
        return Chain(names[0] if names else None, {})
    first = parsed[0]
    if [one.mode for one in parsed] == ["rtn", "fp16"] and first.activation_bits == 32:
        return Chain(names[0], {"rtn_float_type": "float16"})
    if first.mode is None:
        why = f"{names[0]} is no quantization that another could follow"
    elif first.mode == "fp16":
        why = "what is in float16 has no float32 left to quantize"
    elif first.mode == "rtn" and first.activation_bits == 32:
        why = f"after {names[0]} only fp16 can follow, once"
    else:
        why = f"a model in {names[0]} is quantized already, so nothing can follow"
    raise UsageError(f"-p {' -p '.join(names)}: {why}.", advice="The chain there is: -p int4 -p fp16, which is w4a16.")
