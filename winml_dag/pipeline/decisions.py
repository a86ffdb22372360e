"""What is decided of one build: its target, task, quantization and data, and the config of each stage of the line."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

from winml_dag.engine.stage import Skip
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import CPU, Target
from winml_dag.pipeline.context import ResolveContext
from winml_dag.pipeline.data import Data, data_of, find_calibration, find_validation_data, not_validated
from winml_dag.pipeline.model import Model, OnnxFile, task_for
from winml_dag.pipeline.quantization import quant_for, quant_section, refuse_other_quantize
from winml_dag.pipeline.variant import chosen
from winml_dag.recipe.precision import precision_name
from winml_dag.recipe.schema import Quant
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import DECIDED_BY
from winml_dag.stages.compile import CompileConfig


class Decisions:
    """The decisions on one build, each made when another one first needs it.

    Attributes:
        context: with all options of this run merged into its recipe.
        model, onnx: the model that the build starts from; ``onnx`` is None if it has to be exported.
        task: None for an ONNX model whose task nobody named.
        quant: the recipe's section with every type set, or why nothing is quantized.
        notices: what the user should know of the configs made so far.
    """

    def __init__(self, context: ResolveContext, model: Model) -> None:
        self.model, self.onnx = model, model.onnx
        self.target = _target(context, model.onnx)
        self.context = context.with_compile_settings(self.target)
        self.recipe, self.overrides = self.context.recipe, self.context.overrides
        self.task = task_for(self.context, model)
        self.quant: Quant | Skip = quant_for(self.context, self.target, model.onnx)
        self.notices: list[str] = []
        self._configs: dict[str, Any] = {}
        refuse_other_quantize(self.context, self.quant, model.onnx)

    def config(self, stage: str) -> Any:
        """Return the config of *stage*, a stage of the line, or a Skip: what the function in its row returns."""
        if stage not in self._configs:
            module, _, function = DECIDED_BY[stage].partition(":")
            self._configs[stage] = getattr(import_module(module), function)(self)
        return self._configs[stage]

    def runs(self, stage: str) -> bool:
        return not isinstance(self.config(stage), Skip)

    @property
    def compiled(self) -> CompileConfig | None:
        """The config of compile if it is wanted here; stages before it are the same in either case."""
        return chosen(self.config("compile")) if self.context.wants("compile") else None

    def quantizes(self, *modes: str) -> bool:
        """Whether the build quantizes in one of *modes*."""
        return not isinstance(self.quant, Skip) and self.quant.mode in modes

    @property
    def model_kind(self) -> str:
        """The artifact type of the model before any stage but export."""
        return artifact_types.FLOAT_MODEL if self.onnx is None else self.onnx.kind

    @cached_property
    def precision(self) -> str:
        if self.model_kind != artifact_types.FLOAT_MODEL and isinstance(self.quant, Skip):
            return "as it is"
        return precision_name(chosen(self.quant))

    @property
    def standard_only(self) -> bool:
        """Whether optimize has to use only standard ONNX operators.

        Other operators break ahead-of-time compilation into partitions, and static quantization leaves them in float.
        Which of onnxruntime's own operators a provider supports is only certain for its CPU.
        """
        return self.quantizes("static") or self.runs("compile") or self.target.ep != CPU

    @property
    def data_section(self) -> Quant | None:
        """The section that names data: also without quantization, if the build validates on that data."""
        if not isinstance(self.quant, Skip):
            return self.quant
        unused = not_validated(self.context) is not None or self.recipe.validation.input_data is not None
        return None if unused or not self.context.wants("validate") else data_of(quant_section(self.context))

    @cached_property
    def calibration(self) -> Data:
        section = self.data_section
        return Data() if section is None else find_calibration(self.context, self.model, section, self.task)

    @cached_property
    def validation(self) -> Data:
        """The data to validate on, if that is not the data for calibration."""
        if not self.context.wants("validate"):
            return Data()
        return find_validation_data(self.context, self.model, chosen(self.quant), self.task)


def _target(context: ResolveContext, onnx: OnnxFile | None) -> Target:
    overrides, recipe = context.overrides, context.recipe
    ep, compiled = recipe.ep, recipe.compile
    device: str | None = recipe.device
    if overrides.ep or overrides.device:
        ep, device = overrides.ep, overrides.device
    elif compiled is not None:
        named = compiled.ep_device
        ep = ep or compiled.execution_provider or (named.ep if named else None)
        device = device if device != "auto" else compiled.device
        device = (named.device or device) if named and device == "auto" else device
    return resolve_target(ep, device) if onnx is None else onnx.target_named(ep, device, onnx.target)
