"""The settings of a build: the frozen recipe in ``winml_build_config.json``.

Building it gives the same keys on any machine with the same model and tools: paths are relative to the output folder,
which contains the file, and nothing is left as ``auto``.
"""

from __future__ import annotations

from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import config_json
from winml_dag.ep.providers.qnn import NPU_SETTINGS
from winml_dag.pipeline.data import not_validated
from winml_dag.pipeline.decisions import Decisions, ResolveContext, file_option_names
from winml_dag.pipeline.layout import folder_in
from winml_dag.pipeline.model import Model
from winml_dag.pipeline.plan import chosen
from winml_dag.pipeline.stageconfigs import DEFAULT_OPSET
from winml_dag.recipe.fields import Section, resolve_path, with_paths
from winml_dag.recipe.schema import Compile, Export, Quant, Recipe
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.normalize import NormalizeConfig

# Decided in other fields (precision in quant), or not part of the result (output_dir, perf).
_DECIDED = ("precision", "output_dir", "perf", "eval", "max_optim_iterations", "allow_unsupported_nodes")

# Fields of ``compile`` that sessions also use, in addition to provider options.
_OF_SESSIONS = (*NPU_SETTINGS, "provider_option_file_keys")


def settings_of(build: Decisions) -> JsonObject:
    """Return the recipe that gives the same build again.

    Defaults are written out, since another version may have different ones.
    """
    context, model, target = build.context, build.model, build.target
    quant, data = chosen(build.quant), build.data_section
    # Random weights and a user's script make a model without a file.
    made = model.onnx is None and model.folder is None
    dropped = ("model", *_DECIDED) if made else _DECIDED
    written = {name: value for name, value in context.recipe.to_dict().items() if name not in dropped}
    export = context.recipe.export or Export()

    def portable(value: str, may_be_id: bool) -> str:
        path = resolve_path(context.base, value)
        return value if may_be_id and not path.exists() else folder_in(path.resolve(), context.output_dir)

    settings: JsonObject = {
        **written,
        **({} if made else {"model": _model(model, context.output_dir)}),
        "ep": target.ep.alias,
        "device": target.device,
        "loader": _loader(build),
        "export": {**_whole(export), "opset_version": export.opset_version or DEFAULT_OPSET}
        if model.onnx is None
        else _inputs(chosen(build.config("normalize"))),
        "optim": written.get("optim") or {},
        # null means no quantization; if data is still named, the precision says so instead.
        **({"precision": "fp32"} if quant is None and data is not None else {}),
        "quant": None if data is None else _quant(data, whole=quant is not None),
        "compile": _session(build) if build.compiled is None else _compile(build.compiled, build),
        **_validate(context),
        "skip_optimize": not build.runs("optimize"),
        "auto": False,
    }
    others = {name: value for name, value in settings.items() if name != "model"}
    return {**settings, **with_paths(Recipe, others, portable)}


def _inputs(config: NormalizeConfig | None) -> JsonObject | None:
    """Return the section with the inputs of an ONNX model; None if they are as in the file."""
    if config is None or not config.export.input_tensors:
        return None
    tensors = {name: config_json(given) for name, given in config.export.input_tensors.items()}
    return {
        "input_tensors": [
            {"name": name, **{field: value for field, value in given.items() if value is not None}}
            for name, given in tensors.items()
        ]
    }


def _whole(section: Section) -> dict[str, JsonValue]:
    """Return *section* with defaults, but without unset fields."""
    plain: dict[str, JsonValue] = section.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _loader(build: Decisions) -> JsonObject:
    update = {"task": build.task, "random_weights": build.context.random_weights}
    loader = build.recipe.loader.model_copy(update=update)
    return {name: value for name, value in _whole(loader).items() if name != "path"}  # in `model`


def _model(model: Model, folder: Path) -> str:
    if model.onnx is not None:
        return folder_in(model.onnx.path.resolve(), folder)
    if model.folder is not None and not model.folder.from_hub:
        return folder_in(model.folder.folder.resolve(), folder)
    return model.name


def _quant(quant: Quant, *, whole: bool) -> JsonObject:
    # An additional path for the ranges is not part of the result.
    written = _whole(quant) if whole else quant.to_dict()
    return {name: value for name, value in written.items() if name != "calibration_save_path"}


def _validate(context: ResolveContext) -> JsonObject:
    """Return the section as written, which may be empty. If another setting disables validation, this section does."""
    section = context.recipe.validation
    written = section.to_dict()
    if (enabled := not_validated(context) is None) is not section.enabled:
        written["enabled"] = enabled
    return {"validate": written} if written else {}


def _compile(config: CompileConfig, build: Decisions) -> JsonObject:
    """Return the resolved section; its quantization is in ``quant``."""
    section = build.recipe.compile or Compile()
    settings = {name: value for name, value in _whole(section).items() if name not in ("quant_config", "quantize")}
    return {
        **settings,
        "execution_provider": config.compile.execution_provider,
        "device": config.compile.device,
        "provider_options": {**config.compile.provider_options, **_provider_options(section, build)},
        "validate": section.validation or not_validated(build.context) is None,
    }


def _session(build: Decisions) -> JsonObject | None:
    """Return the section for a build that does not compile: the options of sessions; None without any."""
    section = build.recipe.compile
    if section is None:
        return None
    options: dict[str, JsonValue] = section.model_dump(mode="json", include={*_OF_SESSIONS}, exclude_defaults=True)
    if given := _provider_options(section, build):
        options["provider_options"] = given
    return {**options, "enable_ep_context": False} if options else None


def _provider_options(section: Compile, build: Decisions) -> dict[str, str]:
    """Return the given provider options, with file paths relative to the output folder."""
    given, context = dict(section.provider_options), build.context
    for name in file_option_names(context, build.target):
        given[name] = folder_in(resolve_path(context.base, given[name]).resolve(), context.output_dir)
    return given
