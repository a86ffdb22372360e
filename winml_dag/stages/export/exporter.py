"""Exports a PyTorch model to an ONNX file with one of torch's two exporters."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import ModelProto
from onnx.external_data_helper import set_external_data
from torch import Tensor
from transformers import masking_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.stages.export import ExportFields
from winml_dag.stages.export.architectures import composite_of
from winml_dag.stages.export.subject import Subject, named_tensors

TORCHSCRIPT = "torchscript"
DYNAMO = "dynamo"


def exporter_of(fields: ExportFields, subject: Subject) -> str:
    """The requested exporter, else the one that works best for *subject*.

    Decoder language models use dynamo: TorchScript's graphs for them are twice as long. TorchScript is better for all
    others: dynamo builds the padding mask of BERT with a GatherND on booleans, which the QNN execution provider leaves
    to the CPU, so the compiled model splits into two partitions instead of one.
    """
    if fields.dynamo is not None:
        return DYNAMO if fields.dynamo else TORCHSCRIPT
    model_type = subject.config.model_type
    # dynamo cannot infer the shape of a cache that is written at a position given by an input.
    if subject.is_decoder:
        return TORCHSCRIPT
    # Encoders that may also be decoders (BERT) are in both lists; decoders of composite models are in the first.
    decodes = model_type in CAUSAL and model_type not in MASKED and composite_of(model_type) is None
    return DYNAMO if decodes else TORCHSCRIPT


# Hides weights from the TorchScript exporter, so that they are not in memory twice.
#
# For a model under 2 GiB that exporter writes the whole file in memory, more than once: exporting 1 GiB of weights took
# 4.6 GiB. So each large weight is replaced by a single number at the last moment, after the exporter's own passes over
# the graph. The weights are then written one after the other, from their own memory, into a file next to the graph. The
# exported model is the same to the byte.


# The exporter's last pass over the weights, which returns what is written. A torch without this pass exports as usual,
# only with more memory.
_LAST_PASS = "_jit_pass_onnx_deduplicate_initializers"

LEAST_BYTES = 2**16


@contextmanager
def weights_aside() -> Iterator[Mapping[str, Tensor]]:
    """While an exporter runs, move its large weights into the mapping, by their names in the graph."""
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
    """Attach the weights *aside* to the model at *path*, exported without them, in a file next to it."""
    if not aside:
        return
    model = onnx.load(path)
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as file:
        for initializer in model.graph.initializer:
            if initializer.name in aside:
                tensor = aside[initializer.name]
                del initializer.dims[:]
                initializer.dims.extend(tensor.shape)
                set_external_data(initializer, data.name, file.tell(), tensor.nbytes)
                initializer.ClearField("raw_data")
                file.write(tensor.contiguous().numpy().data)
    onnx.save(model, path)


# During tracing, transformers runs code that supports any input; these patches limit it to what an exported model
# needs.


@contextlib.contextmanager
def one_text_in_a_row() -> Iterator[None]:
    """Omit the mask between several texts packed into one row, which only training has.

    TorchScript has no operator for it, and in other exports it is a dozen nodes that never mask anything.
    """
    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # noqa: ARG005  # called by keyword
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


@contextlib.contextmanager
def fixed_sizes(inputs: int) -> Iterator[None]:
    """Trace sizes as numbers, and interpolations of weights as constants, while TorchScript traces a module.

    The module has *inputs* inputs, each of one fixed size; the interpolated weights are position tables, stretched to
    the image size. Without this, the graph computes sizes. Much of that is folded later, but a split by such sizes is
    exported incorrectly. Position tables get a bicubic Resize, which NPUs do not support, or fail to export, since ONNX
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
        del torch.Tensor.shape, torch.Tensor.size  # restores those of the base class
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
    """Whether a traced tensor is computed from an input of the graph; weights follow the inputs in its parameters."""
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


# The attribute of the wrapper that holds the model: the first part of every module scope in the exported graph.
MODEL_SCOPE = "model"


@dataclass(frozen=True)
class ExportOptions:
    """The options of one export.

    Attributes:
        outputs: the model's own names of the outputs, by the exported model's.
        dynamic_axes: for each input by name, the names of its dynamic axes by position.
        constants: arguments of every call that are not inputs.
    """

    exporter: str
    opset_version: int
    do_constant_folding: bool
    input_names: tuple[str, ...]
    outputs: Mapping[str, str]
    dynamic_axes: Mapping[str, Mapping[int, str]]
    constants: Mapping[str, Tensor] = field(default_factory=dict)


class Wrapper(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
    """Calls a model with its inputs in order and returns the chosen outputs in order.

    The wrapper itself is in eval mode: the TorchScript exporter gives the *whole* module the mode of its outermost one,
    so a wrapper in train mode would leave the inner model in train mode after the export.
    """

    def __init__(self, model: torch.nn.Module, options: ExportOptions) -> None:
        super().__init__()
        self.model = model
        self.input_names = options.input_names
        self.constants: Mapping[str, Tensor] = options.constants
        self.outputs = options.outputs
        self.eval()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        result = self.model(**dict(zip(self.input_names, tensors, strict=True)), **self.constants)
        produced = named_tensors(result)
        return tuple(produced[own] for own in self.outputs.values())


def export_onnx(
    model: torch.nn.Module, example: Sequence[Tensor], options: ExportOptions, path: Path, *, any_exporter: bool = False
) -> ExportOptions:
    """Write *model* to *path*, and to other files in its folder if it is large; returns the options that it took.

    With *any_exporter*, the other exporter is tried if that of *options* cannot handle the model.

    Raises:
        StageError: no exporter can handle the model.
    """
    try:
        _export_with(model, example, options, path)
        return options
    except Exception as error:  # whatever torch raises here is about this model and these options
        other = TORCHSCRIPT if options.exporter == DYNAMO else DYNAMO
        advice = (
            f"Set export.dynamo to {str(other == DYNAMO).lower()} to try the other exporter; the log has the details."
        )
        if any_exporter:
            with contextlib.suppress(StageError):
                return export_onnx(model, example, replace(options, exporter=other), path)
            advice = "Nor can the other exporter; the log has the details."
        raise StageError(
            f"The {options.exporter} exporter cannot export this model: {explanation(_innermost(error))}.",
            advice=advice,
        ) from error


def _export_with(model: torch.nn.Module, example: Sequence[Tensor], options: ExportOptions, path: Path) -> None:
    if options.exporter == DYNAMO or any(options.dynamic_axes.values()):
        _export(model, example, options, path, contextlib.nullcontext())
        return
    try:
        _export(model, example, options, path, fixed_sizes(len(example)))
    except TypeError:
        # A model may require sizes that are tensors during tracing (MobileViT).
        _export(model, example, options, path, contextlib.nullcontext())


def _export(
    model: torch.nn.Module,
    example: Sequence[Tensor],
    options: ExportOptions,
    path: Path,
    sizes: contextlib.AbstractContextManager[None],
) -> None:
    with warnings.catch_warnings(), sizes, one_text_in_a_row(), weights_aside() as aside:
        # It is deprecated but works, and is chosen on purpose (see exporter_of).
        warnings.filterwarnings("ignore", message="You are using the legacy TorchScript", category=DeprecationWarning)
        torch.onnx.export(
            Wrapper(model, options),
            tuple(example),
            str(path),  # with a Path, the TorchScript exporter refuses models over 2 GiB
            input_names=list(options.input_names),
            output_names=list(options.outputs),
            opset_version=options.opset_version,
            verbose=False,
            **_exporter_arguments(options),
        )
    attach_weights(path, aside)


def _exporter_arguments(options: ExportOptions) -> dict[str, Any]:
    """The arguments that differ between the two exporters."""
    if options.exporter != DYNAMO:
        axes = {name: dict(axes) for name, axes in options.dynamic_axes.items() if axes}
        return {"dynamo": False, "do_constant_folding": options.do_constant_folding, "dynamic_axes": axes or None}
    shapes = tuple(options.dynamic_axes.get(name) or None for name in options.input_names)
    return {
        "dynamo": True,
        # It ignores do_constant_folding; this switch includes folding.
        "optimize": options.do_constant_folding,
        # Over 2 GiB it always writes external weights. Always doing so also allows editing the graph without a second
        # copy of the weights in memory.
        "external_data": True,
        "dynamic_shapes": {"tensors": shapes} if any(shapes) else None,
    }


def check_export(model: ModelProto, options: ExportOptions) -> None:
    """Check that the exporter kept the opset, the names and the dynamic axes.

    Raises:
        StageError: it changed one of them.
    """
    opset = {imported.domain: imported.version for imported in model.opset_import}.get("", 0)
    if opset != options.opset_version:
        raise StageError(
            f"The {options.exporter} exporter wrote opset {opset} instead of {options.opset_version}.",
            advice=f"Set export.opset_version to {opset}, or export.dynamo to choose the other exporter.",
        )
    outputs = [value.name for value in model.graph.output]
    if outputs != list(options.outputs):
        raise StageError(
            f"The {options.exporter} exporter named the outputs {', '.join(outputs)}.",
            advice="Set export.dynamo to choose the other exporter, or give other names in export.output_tensors.",
        )
    found = tuple(value.name for value in model.graph.input)
    if found != options.input_names:
        unused = ", ".join(name for name in options.input_names if name not in found)
        raise StageError(
            f"The exported model has the inputs {', '.join(found)}"
            + (f"; it does not use {unused}." if unused else "."),
            advice="Leave unused inputs out of export.input_tensors.",
        )
    for value in model.graph.input:
        for axis, name in options.dynamic_axes.get(value.name, {}).items():
            dimension = value.type.tensor_type.shape.dim[axis]
            if not dimension.dim_param:
                raise StageError(
                    f"Axis {axis} of {value.name!r} should be the dynamic axis {name!r}, but the {options.exporter} "
                    f"exporter fixed it at {dimension.dim_value}.",
                    advice="The model depends on this size: give it as a number.",
                )


def _innermost(error: BaseException) -> BaseException:
    """The first cause, in which torch says what it does not support."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
