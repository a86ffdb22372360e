"""The section ``compile`` of a recipe: options of the provider, files that they name, and the compiler's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.provider import complete_options
from winml_dag.ep.providers.qnn import with_npu_settings
from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.context import ResolveContext
from winml_dag.recipe.load import resolve_path
from winml_dag.stages import artifact_types
from winml_dag.stages.compile import CompileConfig

if TYPE_CHECKING:
    from winml_dag.ep.qairt import QairtSdk


def sdk_of(context: ResolveContext, compiled: CompileConfig | None) -> QairtSdk | None:
    """Return the SDK of the compiler qairt.

    Raises:
        UsageError: when none is named, the path is not a folder, or the SDK does not support a setting.
        InputError: when the folder does not exist.
    """
    section = context.recipe.compile
    if compiled is None or compiled.compile.compiler != "qairt" or section is None:
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
