"""Commands for one stage: the build of one model in which that stage runs, with its prerequisites and validate.

The result is one file. The stages are those of every build, so cached results are shared in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import Skip
from winml_dag.errors import UsageError
from winml_dag.names import is_safe_part
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.model import OnnxFile
from winml_dag.pipeline.plan import Build, SavePath
from winml_dag.pipeline.request import Request, beside
from winml_dag.pipeline.resolve import resolve
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget
from winml_dag.stages.sensitivity import SensitivityConfig
from winml_dag.stages.shared import MOST_MODELS, FinalizeSharedConfig

if TYPE_CHECKING:
    from winml_dag.stages.optimize.check import Change

_HALF_TYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class _Command:
    """A command for the stage of its name.

    Attributes:
        stages: the stages that its build has, out of those that the same options would give in a build.
        done: the participle of the command, for messages.
        compiles: whether compile follows, which influences other stages; None leaves that to the options.
        float_only: whether the stage takes only float32 models.
        suffix: that of the output file.
        advice: what to do when the options leave nothing for the stage to do.
    """

    stages: frozenset[str]
    done: str
    compiles: bool | None = False
    float_only: bool = True
    suffix: str = ".onnx"
    advice: str = ""


_COMMANDS: Mapping[str, _Command] = {
    "export": _Command(stages=frozenset({"export", "finalize"}), done="exported"),
    # The following stages decide which operators optimize may create.
    "optimize": _Command(stages=frozenset({"optimize", "validate", "finalize"}), done="optimized", compiles=None),
    "calibrate": _Command(stages=frozenset({"calibrate"}), done="calibrated", suffix=".json"),
    "quantize": _Command(
        stages=frozenset({"calibrate", "quantize", "validate", "finalize"}),
        done="quantized",
        advice="Name a precision, such as -p w8a16.",
    ),
    # optimize is for a provider that runs ONNX models directly; for any other, compile gets the original model.
    # compile.quant_config controls quantization.
    "compile": _Command(
        stages=frozenset({"optimize", "calibrate", "quantize", "compile", "validate", "finalize"}),
        done="quantized",
        compiles=True,
        float_only=False,
    ),
}


def build_of_one(request: Request, *, download: bool) -> Build:
    """Return the build of the command that *request* names; *download* allows fetching data from the hub.

    Of a recipe, only the target and the sections of the command's stages apply.

    Raises:
        UsageError: for a model that the stage does not take, or when there is nothing for it to do; also as
            ``resolve``.
        InputError: for a model or data that is missing or damaged.
    """
    assert request.command is not None
    assert request.output_file is not None
    command, output = _COMMANDS[request.command], request.output_file
    loaded = request.loaded()
    _refuse_name(output, command.suffix)
    compiles = request.command == "compile"
    section = None if loaded is None else loaded.recipe.compile
    has_quant_config = section is not None and section.quant_config is not None
    quantizes = has_quant_config if compiles else "calibrate" in command.stages
    if request.overrides.onnx is not None:
        _refuse_model(request.overrides.onnx, request.command, command, quantizes=quantizes)
    # The recipe decides what else compile does.
    wanted = None if compiles else True
    overrides = replace(
        request.overrides,
        quant=quantizes and wanted,
        optimize="optimize" in command.stages and wanted,
        compile=command.compiles,
        analyze=False,
    )
    build = resolve(ResolveContext.of(loaded, overrides, output.parent, download=download, only=command.stages))
    if build.parts:
        return _of_components(build, command, output)
    if compiles:
        build, command = _compiling(build, command, quantizes=quantizes, shares=bool(request.also))
    elif isinstance(main := build.configs[request.command], Skip):
        why = main.reason.removeprefix("there is ")
        nothing = why if why.startswith("nothing") else f"nothing to {request.command}: {why}"
        raise UsageError(f"There is {nothing}.", advice=command.advice)
    if request.overrides.sensitivity:
        build = _ranking(build)
    summary = replace(build.summary, output_file=output.name, declared=0)
    if "finalize" not in command.stages:
        summary = replace(summary, precision="activation ranges")
    saved = build.save_ranges if request.save_ranges is None else _save_path(build, request.save_ranges)

    whole = replace(_only(build, command, output.name), summary=summary, save_ranges=saved)
    if not request.also:
        return whole
    assert request.overrides.onnx is not None
    return _sharing(whole, request.overrides.onnx, request.also)


def _compiling(build: Build, command: _Command, *, quantizes: bool, shares: bool) -> tuple[Build, _Command]:
    """Return *build* with the notices of a compilation, and *command* adapted to the target of *build*."""
    notices = list(build.summary.notices)
    if quantizes and isinstance(skip := build.configs["quantize"], Skip):
        notices.append(f"compile.quant_config has no effect: {skip.reason}.")
    if build.chosen("compile"):
        command = replace(command, stages=command.stages - {"optimize"})
    elif shares:
        raise UsageError(
            f"Models share a binary, and {build.target.ep.name} has none: it runs the ONNX model as it is.",
            advice="Name a provider that compiles ahead of time, such as --ep qnn.",
        )
    else:
        notices.append(f"Nothing was compiled ahead of time: {build.target.ep.name} runs the ONNX model as it is.")
    return replace(build, summary=replace(build.summary, notices=tuple(notices))), command


def _only(build: Build, command: _Command, name: str) -> Build:
    """Return *build* with only the stages of *command*; its result is called *name*."""
    # normalize is done wherever it is needed, and resolved without analyze.
    others = LINE.keys() - command.stages - {"normalize", "analyze"}
    skipped: dict[str, Any] = dict.fromkeys(others, Skip("this command is not about it"))
    return replace(build.with_configs(**{"finalize": _finalize(build, name), **skipped}), declared=None)


def _of_components(build: Build, command: _Command, output: Path) -> Build:
    """Limit the builds of several components likewise; each output file is named after *output* and the component."""
    names = {name: f"{output.stem}_{name}{output.suffix}" for name in build.parts}
    first, *also = names.values()
    return replace(
        build,
        summary=replace(build.summary, output_file=first, also=tuple(also)),
        parts={
            name: replace(_only(part, command, file), summary=replace(part.summary, output_file=file))
            for part, (name, file) in zip(build.parts.values(), names.items(), strict=True)
        },
    )


def _finalize(build: Build, name: str) -> FinalizeConfig:
    """Return the config that gives the model its *name*; only compiling keeps the checks of a compiled model."""
    return replace(build.configs["finalize"], file=name) if build.chosen("compile") else FinalizeConfig(name)


def _ranking(build: Build) -> Build:
    """Return *build* with the additional stage that ranks nodes."""
    validate = build.configs["validate"]
    if isinstance(validate, Skip):
        raise UsageError(
            f"--sensitivity runs the samples that are kept back for validation, but {validate.reason}.",
            advice="Remove one of the two.",
        )
    return replace(build, sensitivity=SensitivityConfig.of(build.configs["quantize"][0], validate))


def _save_path(build: Build, path: Path) -> SavePath:
    if isinstance(skip := build.configs["calibrate"], Skip):
        raise UsageError(f"--save-calibration: there are no ranges to save: {skip.reason}.")
    if not is_safe_part(path.name):
        raise UsageError(f"{path.name!r} is not a name of a file on every system.", advice="Save the ranges elsewhere.")
    return SavePath(path.parent.resolve(), path.name)


def _refuse_name(output: Path, suffix: str) -> None:
    if output.suffix.casefold() != suffix:
        raise UsageError(f"{output} does not end with {suffix}.", advice=f"Give -o a file such as result{suffix}.")
    if not is_safe_part(output.name):
        raise UsageError(f"{output.name!r} is not a name of a file on every system.", advice="Give -o another name.")


def _refuse_model(path: Path, name: str, command: _Command, *, quantizes: bool) -> None:
    """Reject a model that the stages would reject, before anything runs."""
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder, and `{name}` takes an ONNX model.",
            advice="For a PyTorch model there is `winml-dag build`, which exports it first.",
        )
    model = OnnxFile.at(path)
    # A compiled model gets its own message, which names its provider, and compile also takes quantized models.
    takes_quantized = not command.float_only and model.kind in artifact_types.INTEGER_MODELS
    if (command.float_only or quantizes) and not (takes_quantized or model.kind == artifact_types.COMPILED_MODEL):
        _refuse_unless_float(model, command.done)


def _refuse_unless_float(model: OnnxFile, done: str) -> None:
    summary = model.summary
    if model.kind == artifact_types.QUANTIZED_MODEL:
        form = "QDQ" if "DequantizeLinear" in summary.op_counts else "QOperator"
        raise UsageError(f"{model.path} is quantized already ({form}).", advice="Use the float32 model.")
    dtypes = {*summary.tensor_bytes, *(spec.dtype for spec in (*summary.inputs, *summary.outputs))}
    if half := next((dtype for dtype in _HALF_TYPES if dtype in dtypes), None):
        raise UsageError(
            f"{model.path} has tensors in {half}, and only float32 can be {done}.",
            advice="Use the model in float32.",
        )


def _sharing(build: Build, first: Path, also: Sequence[Path]) -> Build:
    """Return *build*, which compiles the model *first*, extended to compile the models *also* into the same binary.

    Raises:
        UsageError: for models that cannot share a binary, or whose outputs would have the same name.
        InputError: for a model that is missing or damaged.
    """
    output = build.summary.output_file
    assert output is not None
    if len(also) >= MOST_MODELS:
        raise UsageError(f"{len(also) + 1} models are given, and at most {MOST_MODELS} share a binary.")
    _refuse_settings(build)
    models = [OnnxFile.at(path) for path in also]
    files = (output, *(beside(path, "compile").name for path in also))
    _refuse_twice([first, *also], files)
    for model in models:
        if model.kind == artifact_types.COMPILED_MODEL:
            raise UsageError(
                f"{model.path} is a compiled model, which cannot be compiled again.",
                advice="Use the ONNX model that it was compiled from.",
            )
        if any(isinstance(dim, str) for spec in model.summary.inputs for dim in spec.shape):
            raise UsageError(
                f"{model.path} has open dimensions, and only those of the first model are fixed here.",
                advice=f"Fix them first: `winml-dag optimize -m {model.path} --ep {build.target.ep.alias}`.",
            )
    note = (
        "Not run: QNN's emulator loads no binary that several models share. Run the models on the device."
        if build.target.ep.alias == "qnn"
        else "Not run: models that share a binary are not validated. Run them on the device."
    )
    return replace(
        build.with_configs(
            validate=Skip("models that share a binary are not validated"),
            finalize=FinalizeSharedConfig(files, build.configs["finalize"].compile),
        ),
        summary=replace(build.summary, also=files[1:], notices=(*build.summary.notices, note)),
        also=tuple(model.source() for model in models),
    )


def _refuse_settings(build: Build) -> None:
    fields = build.configs["compile"].compile
    if build.chosen("quantize"):
        raise UsageError("compile.quant_config is for one model at a time.", advice="Quantize each by itself first.")
    if fields.embed_context:
        raise UsageError(
            "Models that share a binary cannot have it inside (embed_context).", advice="Leave --embed out."
        )
    if fields.compiler == "qairt":
        raise UsageError("The compiler qairt compiles one model at a time.", advice="Leave it to ort.")


def _refuse_twice(paths: Sequence[Path], files: Sequence[str]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        if (known := path.resolve()) in seen:
            raise UsageError(f"{path} is given twice.")
        seen[known] = path
    names: dict[str, Path] = {}
    for path, file in zip(paths, files, strict=True):
        if other := names.get(file.casefold()):
            raise UsageError(f"{other} and {path} would both become {file}.", advice="Give one of them another name.")
        names[file.casefold()] = path


# What capabilities would change in a model for the target of a request; nothing is stored or written. It is not a
# stage: the answer is used once, and trying all capabilities takes as long as a build.

# Any capability that makes operators of onnxruntime's own domain: only with one enabled is the target checked for them.
_ASKS_FOR_THE_FORM = "quick_gelu_fusion"


def target_of(request: Request, names: tuple[str, ...]) -> OptimizeTarget:
    """Return the target of *request*, a request of the command ``optimize``. Raises as ``build_of_one``."""
    # Each is tried alone, so they may contradict each other; they only have to exist.
    optim: dict[str, JsonValue] = {**dict.fromkeys(names, False), _ASKS_FOR_THE_FORM: True}
    settings = {**(request.overrides.settings or {}), "optim": optim}
    build = build_of_one(replace(request, overrides=replace(request.overrides, settings=settings)), download=False)
    config: OptimizeConfig = build.configs["optimize"]
    return config.target


def changes_by(names: tuple[str, ...], model: Path, target: OptimizeTarget) -> Iterator[Change]:
    """Yield what the capabilities *names* would do to *model*, as each is tried; without *names*, all that are off.

    Raises:
        StageError: for a model that cannot be optimized.
    """
    from winml_dag.stages.optimize.check import changes, optional_capabilities

    with TemporaryDirectory(prefix="winml-dag-") as folder:
        yield from changes(model, names or optional_capabilities(), target, Path(folder))
