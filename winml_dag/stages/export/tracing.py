"""While it is traced, transformers computes what would do for any input; here, what an exported model needs of that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils


@contextlib.contextmanager
def one_text_in_a_row() -> Iterator[None]:
    """Leave out the mask between several texts packed into one row, which only training has.

    TorchScript has no operator for it, and elsewhere it is a dozen nodes that never mask anything.
    """
    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # noqa: ARG005  # called by keyword
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


@contextlib.contextmanager
def constants_interpolated(inputs: int) -> Iterator[None]:
    """While TorchScript traces a module of so many *inputs*, carry out ``interpolate`` of what depends on weights only,
    and keep the result: position tables, stretched to the size of the image.

    Only for a graph of one size. It would have a bicubic Resize that NPUs do not take, or none at all, since ONNX
    before opset 18 cannot express an antialiased one.
    """
    original = torch.nn.functional.interpolate

    def interpolate(given: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if not torch.jit.is_tracing() or _depends_on_inputs(given, inputs):
            return original(given, *arguments, **options)
        state = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)
        try:
            plain = {name: _plain(value) for name, value in options.items()}
            return original(given, *map(_plain, arguments), **plain).detach()
        finally:
            torch._C._set_tracing_state(state)

    torch.nn.functional.interpolate = interpolate
    try:
        yield
    finally:
        torch.nn.functional.interpolate = original


def _plain(value: Any) -> Any:
    """Sizes are tensors while they are traced."""
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(each) for each in value)
    return value.item() if isinstance(value, Tensor) else value


def _depends_on_inputs(tensor: Tensor, inputs: int) -> bool:
    """Whether a traced tensor is computed from an input of the graph. Its weights are inputs too, behind the others."""
    waiting, seen = [torch._C._get_value_trace(tensor)], set()
    while waiting:
        value = waiting.pop()
        if value.debugName() in seen:
            continue
        seen.add(value.debugName())
        node = value.node()
        if node.kind() == "prim::Param":
            if value.debugName() in [each.debugName() for each in list(node.outputs())[:inputs]]:
                return True
        elif node.kind() != "aten::size":  # of an input too: shapes are fixed
            waiting.extend(node.inputs())
    return False
