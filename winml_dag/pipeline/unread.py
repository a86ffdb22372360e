"""Fields of a ``quant`` section that its mode does not read: who wrote one hears that it has no effect.

No refusal, since winml-cli writes every field of every mode into its files; what it writes by default is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from winml_dag.recipe.schema import Quant

_INTEGERS = ("static", "dynamic")
_READ_BY = {
    "weight_type": _INTEGERS,
    "activation_type": ("static",),
    "per_channel": _INTEGERS,
    "symmetric": _INTEGERS,
    "weight_symmetric": _INTEGERS,
    "activation_symmetric": ("static",),
    "reduce_range": _INTEGERS,
    "node_overrides": ("static",),
    "equalize": ("static",),
    "model_type": ("static",),
    "rtn_bits": ("rtn",),
    "rtn_block_size": ("rtn",),
    "rtn_symmetric": ("rtn",),
    "rtn_accuracy_level": ("rtn",),
    "rtn_float_type": ("rtn",),
}
_OF_HALF = ("fp16_keep_io_types", "fp16_op_block_list")
_WRITTEN_BY_DEFAULT = {"weight_type": "uint8", "activation_type": "uint8", "per_channel": False, "symmetric": False}


def unread_fields(quant: Quant) -> Iterator[str]:
    """A sentence for every field that was written and that the mode does not read."""
    makes_half = quant.mode == "fp16" or (quant.mode == "rtn" and quant.rtn_float_type == "float16")
    for name, modes in _READ_BY.items():
        if quant.mode not in modes and _says_something(quant, name):
            yield f"quant.{name} has no effect: mode {quant.mode} does not read it."
    for name in _OF_HALF:
        if not makes_half and _says_something(quant, name):
            yield f"quant.{name} has no effect: nothing becomes float16 in mode {quant.mode}."


def reads(mode: str, name: str) -> bool:
    """Whether *mode* reads the field *name*, as far as it is known that others do not."""
    if name in _OF_HALF:
        return mode in ("fp16", "rtn")
    return mode in _READ_BY.get(name, (mode,))


def _says_something(quant: Quant, name: str) -> bool:
    defaults = (Quant.model_fields[name].get_default(call_default_factory=True), _WRITTEN_BY_DEFAULT.get(name))
    return getattr(quant, name) not in (*defaults, ())
