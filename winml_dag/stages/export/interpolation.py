"""Position tables that are stretched to the size of an image are constants when that size is fixed.

While it is traced, transformers stretches them in every call, so that the graph would do for other sizes too. A graph
of one size then has a bicubic Resize that NPUs do not take, or none at all, since ONNX before opset 18 cannot express
an antialiased one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


@contextlib.contextmanager
def constants_interpolated(inputs: int) -> Iterator[None]:
    """While TorchScript traces a module of so many *inputs*, carry out ``interpolate`` of what depends on weights only,
    and keep the result.
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
