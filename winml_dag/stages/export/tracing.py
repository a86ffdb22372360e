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
def fixed_sizes(inputs: int) -> Iterator[None]:
    """While TorchScript traces a module of so many *inputs* for one size of each, let sizes be numbers, and what is
    interpolated of weights only (position tables, stretched to the size of the image) be constants.

    Otherwise sizes are computed in the graph. Much of that is folded later, but a split by such sizes is exported
    wrongly, and position tables get a bicubic Resize, which NPUs do not take, or cannot be exported at all, since ONNX
    before opset 18 has no antialiased one.
    """
    base, functions = torch.Tensor.__mro__[1], torch.nn.functional
    original = functions.interpolate

    def shape(tensor: Tensor) -> torch.Size:
        with _untraced():
            return base.shape.__get__(tensor)

    def size(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        with _untraced():
            return base.size(tensor, *arguments, **options)

    def interpolate(given: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if not torch.jit.is_tracing() or _depends_on_inputs(given, inputs):
            return original(given, *arguments, **options)
        with _untraced():
            return original(given, *arguments, **options).detach()

    torch.Tensor.shape, torch.Tensor.size, functions.interpolate = property(shape), size, interpolate
    try:
        yield
    finally:
        del torch.Tensor.shape, torch.Tensor.size  # both are the base class's again
        functions.interpolate = original


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


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
        else:
            waiting.extend(node.inputs())
    return False
