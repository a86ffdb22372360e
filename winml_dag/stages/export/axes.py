"""Dynamic axes: the sizes at which such a model is traced and checked, and the output shapes that follow.

An exporter may silently fix an axis at its size during tracing. Therefore the model is compared with PyTorch at other
sizes too, and output shapes are the observed ones, not those that the exporter writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ValueInfoProto

from winml_dag.errors import StageError
from winml_dag.stages.export.makers import ModelInput, Shape, named_axes

Sizes = Mapping[str, int]

RUNS = 3

# The first run is the traced one: 2, because torch.export treats a size of 1 as a constant.
_BATCH_SIZES = (2, 1, 3)


def sizes_by_run(inputs: Sequence[ModelInput]) -> tuple[Sizes, ...]:
    """The size of every dynamic axis, by name, in each of :data:`RUNS` runs; no two runs have the same sizes.

    A batch (axis 0) is 2, 1 and 3. Any other axis has its default size and, in one later run, half of it: most models
    support half an image or text.
    """
    usual: dict[str, int] = {}
    batches: set[str] = set()
    for each in inputs:
        for axis, name in enumerate(each.shape):
            if isinstance(name, str):
                usual.setdefault(name, max(2, each.sizes[axis]))
                if axis == 0:
                    batches.add(name)
    halved_in = {name: 1 + number % (RUNS - 1) for number, name in enumerate(n for n in usual if n not in batches)}
    return tuple(
        {
            name: _BATCH_SIZES[run] if name in batches else size // 2 if halved_in[name] == run else size
            for name, size in usual.items()
        }
        for run in range(RUNS)
    )


def shape_at(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes[size] if isinstance(size, str) else size for size in shape)


def output_shape(
    tensor: str,
    seen: Sequence[tuple[int, ...]],
    sizes: Sequence[Sizes],
    dynamic_axes: Mapping[str, Mapping[str, str]],
) -> Shape:
    """The shape of the output *tensor*, from the shapes *seen* in the runs with *sizes*.

    An axis that changed gets the name of the dynamic axis that changed in the same way, or else a new name; names in
    the recipe win.

    Raises:
        StageError: the recipe names an axis that did not change.
    """
    named = named_axes(tensor, seen[0], dynamic_axes)
    shape: list[int | str] = []
    for axis, asked in enumerate(named):
        over_runs = [each[axis] for each in seen]
        changed = len(set(over_runs)) > 1
        if isinstance(asked, str) and not changed:
            raise StageError(
                f"export.dynamic_axes.{tensor}.{axis} is {asked!r}, but this axis always has the size {over_runs[0]}."
            )
        like = next((name for name in sizes[0] if [run[name] for run in sizes] == over_runs), f"{tensor}_axis_{axis}")
        shape.append(asked if isinstance(asked, str) else like if changed else over_runs[0])
    return tuple(shape)


def set_shape(value: ValueInfoProto, shape: Shape) -> None:
    """Set the observed shape on an input or output of a graph."""
    dimensions = value.type.tensor_type.shape
    del dimensions.dim[:]
    for size in shape:
        if isinstance(size, str):
            dimensions.dim.add(dim_param=size)
        else:
            dimensions.dim.add(dim_value=size)


def check_tensors(dynamic_axes: Mapping[str, Mapping[str, str]], tensors: Sequence[str]) -> None:
    """Check that the exported model has every tensor in ``export.dynamic_axes``.

    Raises:
        StageError: it does not have one of them.
    """
    for tensor in dynamic_axes:
        if tensor not in tensors:
            raise StageError(f"export.dynamic_axes names {tensor!r}, but the exported model has: {', '.join(tensors)}.")
