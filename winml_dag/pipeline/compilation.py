"""The config of compile: the recipe section with the options of a run, checked against the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.providers.qnn import NPU_SETTINGS, option_of, with_npu_settings
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.variant import ResolveContext, Skip
from winml_dag.recipe.load import resolve_path
from winml_dag.recipe.schema import Compile, Recipe
from winml_dag.stages import artifact_types
from winml_dag.stages.compile import CompileConfig, CompileFields
from winml_dag.stages.finalize import FinalizeConfig, OffloadFields

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk

_CHIP = {"soc_model", "htp_arch"}


def with_compile_settings(recipe: Recipe, settings: Mapping[str, JsonValue], target: Target) -> Recipe:
    """Return *recipe* with the fields of ``compile`` overridden by *settings*.

    Provider options are merged one by one. This run's choice of chip overrides both forms in which the recipe can give
    it. Paths in *settings* are relative to the current folder.

    Raises:
        RecipeError: for an unknown field or invalid value.
    """
    if not settings:
        return recipe
    section = recipe.compile
    if section is None:
        # Null disables compiling, whatever the session options; a missing section does not.
        section = Compile(enable_ep_context=False) if "compile" in recipe.model_fields_set else Compile()
    given = Compile.from_dict(settings)
    said = _said(given)
    written = {name: value for name, value in section.to_dict().items() if option_of(name) not in said}
    kept = {name: value for name, value in section.provider_options.items() if name not in said}
    options = {
        name: str(Path(value).absolute()) if name in target.ep.file_options else value
        for name, value in given.provider_options.items()
    }
    changed = {**written, **settings, "provider_options": {**kept, **options}}
    if given.qnn_sdk_root is not None:
        changed["qnn_sdk_root"] = str(Path(given.qnn_sdk_root).absolute())
    return recipe.model_copy(update={"compile": Compile.from_dict(changed)})


def _said(section: Compile) -> frozenset[str]:
    """Return the NPU options that *section* sets in either form; a chip and its architecture count as both."""
    fields = {option_of(name) for name in NPU_SETTINGS if getattr(section, name) is not None}
    said = fields | section.provider_options.keys()
    return frozenset(said | _CHIP if said & _CHIP else said)


def compile_config(context: ResolveContext, target: Target) -> CompileConfig | Skip:
    """Return the config of compile, or why it is skipped.

    It runs for a target that compiles, unless an argument or the recipe disables it.
    """
    recipe, overrides = context.recipe, context.overrides
    section = recipe.compile
    if overrides.compile is False:
        return Skip("--no-compile was given")
    if not target.ep.makes_ep_context:
        provider_options(context, target)
        return Skip(f"there is nothing to compile for {target.ep.name}: it runs the ONNX model as it is")
    if overrides.compile is None:
        if section is not None and not section.enable_ep_context:
            return Skip("compile.enable_ep_context is false")
        if section is None and context.wrote("compile"):
            return Skip("the recipe's compile section is null")
    options = compile_options(target, provider_options(context, target))
    named = file_option_names(context, target)
    section = section or Compile()
    return CompileConfig(
        CompileFields(
            execution_provider=target.ep.name,
            device=target.device,
            # Files are inputs, by content: their names and paths are not part of a key.
            provider_options={name: value for name, value in options.items() if name not in named},
            embed_context=section.embed_context,
            compiler=section.compiler,
        )
    )


def sdk_of(context: ResolveContext, compiled: CompileConfig | Skip) -> QairtSdk | None:
    """Return the SDK of the compiler qairt.

    Raises:
        UsageError: when none is named, the path is not a folder, or the SDK does not support a setting.
        InputError: when the folder does not exist.
    """
    section = context.recipe.compile
    if isinstance(compiled, Skip) or compiled.compile.compiler != "qairt" or section is None:
        return None
    fields = compiled.compile
    if fields.execution_provider != QNN.name or fields.device != "npu":
        raise UsageError(
            f"The compiler qairt is for {QNN.name} on the npu, not for {fields.execution_provider} on the"
            f" {fields.device}.",
            advice="Leave it to ort.",
        )
    from winml_dag.ep.qairt import OPTIONS, find_sdk

    if section.qnn_sdk_root is None:
        raise UsageError(
            "The compiler qairt is Qualcomm's SDK, and compile.qnn_sdk_root (--qnn-sdk-root) does not say where it is.",
            advice="Name its folder, or leave compiling to ort, which needs no SDK.",
        )
    if unread := sorted((fields.provider_options.keys() | file_option_names(context, Target(QNN, "npu"))) - OPTIONS):
        raise UsageError(
            f"The compiler qairt does not support {unread[0]!r}.", advice=f"It knows: {', '.join(sorted(OPTIONS))}."
        )
    return find_sdk(resolve_path(context.base, section.qnn_sdk_root))


def finalize_config(context: ResolveContext, compiled: CompileConfig | Skip) -> FinalizeConfig:
    """Return the config of finalize, which checks a compiled model for ``compile.require_full_offload``.

    The check is in finalize, so enabling it does not compile again.

    Raises:
        UsageError: when a field needs a compiled model, but nothing is compiled and this run did not disable compiling.
    """
    section = context.recipe.compile
    required = section is not None and section.require_full_offload
    if not isinstance(compiled, Skip):
        return FinalizeConfig(compile=OffloadFields(required))
    said = sorted(context.overrides.section("compile").keys() - {"provider_options"})
    if (required or said) and context.overrides.compile is not False:
        field = said[0] if said else "require_full_offload"
        raise UsageError(f"compile.{field} is set, but {compiled.reason}.", advice="Remove one of the two.")
    return FinalizeConfig()


def provider_options(context: ResolveContext, target: Target) -> Mapping[str, str]:
    """Return all provider options, including the target's defaults."""
    section = context.recipe.compile
    if section is None:
        return complete_options(target, {})
    given = with_npu_settings(
        target, section.provider_options, section.soc_model, section.htp_arch, section.htp_optimization_level
    )
    return complete_options(target, given)


def file_option_names(context: ResolveContext, target: Target) -> frozenset[str]:
    """Return the recipe's options whose value is a file path: the built-in ones, and those that the recipe declares."""
    section = context.recipe.compile
    if section is None:
        return frozenset()
    return (target.ep.file_options | {*section.provider_option_file_keys}) & section.provider_options.keys()


def option_files(context: ResolveContext, target: Target) -> Source | None:
    """Return the files that provider options name, each under its option's name: they are ordinary inputs.

    Raises:
        InputError: for a missing file.
        UsageError: for a key in ``provider_option_file_keys`` that is not an option.
    """
    section = context.recipe.compile
    if section is None:
        return None
    named = set(section.provider_option_file_keys)
    if unknown := sorted(named - section.provider_options.keys()):
        raise UsageError(
            f"compile.provider_option_file_keys names {unknown[0]!r}, which is not among provider_options."
        )
    files = []
    for name in sorted(file_option_names(context, target)):
        path = resolve_path(context.base, section.provider_options[name])
        if not path.is_file():
            raise InputError(f"compile.provider_options.{name}: {path} is not a file.")
        files.append(SourceFile(f"{name}/{name}{path.suffix}", path))
    return Source("provider option files", artifact_types.OPTION_FILES, tuple(files)) if files else None
