"""Weights that the TorchScript exporter never sees, so that they are not held twice.

For a model under 2 GiB that exporter writes the whole file in memory, more than once: exporting 1 GiB of weights took
4.6 GiB. So it is given one number in place of each large weight, at the last moment, when its own passes over the graph
are done; then the weights are written one after the other, from where they lie, into a file beside the graph. What is
exported is the same to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

# The exporter's last pass over the weights: what it returns is what is written. A torch without it exports as it always
# did, only with more memory.
_LAST_PASS = "_jit_pass_onnx_deduplicate_initializers"

LEAST_BYTES = 2**16


@contextmanager
def weights_aside() -> Iterator[Mapping[str, Tensor]]:
    """While an exporter runs, put its large weights into the mapping, by their names in the graph."""
    aside: dict[str, Tensor] = {}
    last_pass = getattr(torch._C, _LAST_PASS, None)
    if last_pass is None:
        yield aside
        return

    def put_aside(graph: Any, weights: MutableMapping[str, Tensor], *others: Any) -> dict[str, Tensor]:
        remaining: dict[str, Tensor] = last_pass(graph, weights, *others)
        for name, tensor in remaining.items():
            if tensor.dtype == torch.float32 and tensor.nbytes >= LEAST_BYTES:
                aside[name] = tensor.detach()
                remaining[name] = torch.zeros(1)
        return remaining

    setattr(torch._C, _LAST_PASS, put_aside)
    try:
        yield aside
    finally:
        setattr(torch._C, _LAST_PASS, last_pass)


def attach_weights(path: Path, aside: Mapping[str, Tensor]) -> None:
    """Give the model at *path*, exported without them, the weights *aside*: they go into a file beside it."""
    if not aside:
        return
    model = onnx.load(path)
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as file:
        for initializer in model.graph.initializer:
            if initializer.name in aside:
                tensor = aside[initializer.name]
                offset = file.tell()
                file.write(tensor.contiguous().numpy().data)
                _refer(initializer, tensor, data.name, offset)
    onnx.save(model, path)


def _refer(initializer: onnx.TensorProto, tensor: Tensor, file: str, offset: int) -> None:
    initializer.ClearField("raw_data")
    del initializer.dims[:]
    initializer.dims.extend(tensor.shape)
    initializer.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", tensor.nbytes)):
        initializer.external_data.add(key=key, value=str(value))
