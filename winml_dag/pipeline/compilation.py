"""What compile is told: the section of a recipe with the options of a run in it, checked against the target."""

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
from winml_dag.pipeline.context import ResolveContext
from winml_dag.pipeline.variant import Skip
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.schema import Compile, Recipe
from winml_dag.stages import kinds
from winml_dag.stages.compile import CompileConfig, CompileFields
from winml_dag.stages.finalize import FinalizeConfig, OffloadFields

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk

_CHIP = {"soc_model", "htp_arch"}


def with_compile_settings(recipe: Recipe, settings: Mapping[str, JsonValue], target: Target) -> Recipe:
    """*recipe* with the fields of ``compile`` that this run asks for otherwise.

    Provider options are added to those of the recipe, one by one. What this run says of the chip holds, in whichever of
    the two forms the recipe says it. Paths in *settings* are relative to the current folder.

    Raises:
        RecipeError: for a field or value that is none.
    """
    if not settings:
        return recipe
    section = recipe.compile
    if section is None:
        # Null leaves compiling out, whatever sessions are told; a section that is not there says nothing.
        section = Compile(enable_ep_context=False) if "compile" in recipe.model_fields_set else Compile()
    asked = Compile.from_dict(settings)
    said = _said(asked)
    written = {name: value for name, value in section.to_dict().items() if option_of(name) not in said}
    kept = {name: value for name, value in section.provider_options.items() if name not in said}
    options = {
        name: str(Path(value).absolute()) if name in target.ep.file_options else value
        for name, value in asked.provider_options.items()
    }
    changed = {**written, **settings, "provider_options": {**kept, **options}}
    if asked.qnn_sdk_root is not None:
        changed["qnn_sdk_root"] = str(Path(asked.qnn_sdk_root).absolute())
    return recipe.model_copy(update={"compile": Compile.from_dict(changed)})


def _said(asked: Compile) -> frozenset[str]:
    """The options of the NPU that *asked* names in either form; who names a chip or its architecture names both."""
    fields = {option_of(name) for name in NPU_SETTINGS if getattr(asked, name) is not None}
    said = fields | asked.provider_options.keys()
    return frozenset(said | _CHIP if said & _CHIP else said)


def compile_config(context: ResolveContext, target: Target) -> CompileConfig | Skip:
    """The config of compile, or why it is left out.

    It runs for a target that compiles, unless the command line or the recipe says otherwise.
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
            # Files are an input, by content: what they are called and where they lie is no part of a key.
            provider_options={name: value for name, value in options.items() if name not in named},
            embed_context=section.embed_context,
            compiler=section.compiler,
        )
    )


def sdk_of(context: ResolveContext, compiled: CompileConfig | Skip) -> QairtSdk | None:
    """The SDK that compiles, for the compiler qairt.

    Raises:
        UsageError: when none is named, the folder is none, or the SDK cannot be told what is asked for.
        InputError: when the folder is not there.
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
            f"The compiler qairt cannot be told {unread[0]!r}.", advice=f"It knows: {', '.join(sorted(OPTIONS))}."
        )
    return find_sdk(resolve_path(context.base, section.qnn_sdk_root))


def finalize_config(context: ResolveContext, compiled: CompileConfig | Skip) -> FinalizeConfig:
    """The config of finalize, which holds a compiled model against ``compile.require_full_offload``: so that turning
    that on compiles nothing again.

    Raises:
        UsageError: when nothing is compiled, though it was not this run that said so.
    """
    section = context.recipe.compile
    required = section is not None and section.require_full_offload
    if not isinstance(compiled, Skip):
        return FinalizeConfig(compile=OffloadFields(required))
    said = sorted(context.overrides.section("compile").keys() - {"provider_options"})
    if (required or said) and context.overrides.compile is not False:
        field = said[0] if said else "require_full_offload"
        raise UsageError(f"compile.{field} is set, but {compiled.reason}.", advice="Leave out one of the two.")
    return FinalizeConfig()


def provider_options(context: ResolveContext, target: Target) -> Mapping[str, str]:
    """All options for the provider, the target's defaults among them."""
    section = context.recipe.compile
    if section is None:
        return complete_options(target, {})
    given = with_npu_settings(
        target, section.provider_options, section.soc_model, section.htp_arch, section.htp_optimization_level
    )
    return complete_options(target, given)


def file_option_names(context: ResolveContext, target: Target) -> frozenset[str]:
    """The options given in the recipe whose value names a file: those known to, and those that the recipe says do."""
    section = context.recipe.compile
    if section is None:
        return frozenset()
    return (target.ep.file_options | {*section.provider_option_file_keys}) & section.provider_options.keys()


def option_files(context: ResolveContext, target: Target) -> Source | None:
    """The files that provider options name, each under its option's name: they are inputs like any other.

    Raises:
        InputError: for one that is not there.
        UsageError: for a key in ``provider_option_file_keys`` that is no option.
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
    return Source("provider option files", kinds.OPTION_FILES, tuple(files)) if files else None
