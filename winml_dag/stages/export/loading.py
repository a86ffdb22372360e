"""Loads the PyTorch model, from a transformers folder or with random weights, in float32 and eval mode.

A folder is untrusted: nothing in it is unpickled, nothing is fetched to complete it, no file outside it is read, and
its code runs only if the recipe sets ``trust_remote_code``.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, dynamic_module_utils

from winml_dag.errors import StageError, did_you_mean
from winml_dag.explanation import explanation
from winml_dag.stages.export import InputTensor, LoaderFields, RandomWeights
from winml_dag.stages.export.architectures import same_spelling
from winml_dag.stages.export.configuration import (
    configuration,
    configuration_class,
    is_model_class,
    model_class_of,
    transformers_name,
)
from winml_dag.stages.export.detect import read_json
from winml_dag.stages.export.fitting import follow_tensors

# The user's own Python file that makes a model: ``loader.user_script``.
#
# It is the only Python code that a recipe may bring. It runs because the user named it, and its content is part of the
# key. It runs in the stage's own process and scratch folder, and may import any installed package.


_MODULE = "winml_dag_user_script"


def scripted(folder: Path, name: str | None) -> Any:
    """Return what the script in *folder* calls *name*: a class, or a function that makes a model.

    Without a name, returns the only model class that the script defines.

    Raises:
        StageError: the script fails, or has no such object.
    """
    (path,) = folder.glob("*.py")
    specification = importlib.util.spec_from_file_location(_MODULE, path)
    if specification is None or specification.loader is None:
        raise StageError(f"{path.name} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[_MODULE] = module  # dataclasses and pickling of its classes look there
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise StageError(f"{path.name} (loader.user_script) cannot be run: {explanation(error)}.") from error
    defined = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == _MODULE}
    if name is not None:
        if not callable(getattr(module, name, None)):
            raise StageError(
                f"loader.model_class is {name!r}, which {path.name} does not define{did_you_mean(name, defined) or '.'}"
            )
        return getattr(module, name)
    models = [each for each in defined.values() if inspect.isclass(each) and issubclass(each, torch.nn.Module)]
    if len(models) != 1:
        raise StageError(
            f"{path.name} (loader.user_script) defines {len(models)} model classes.",
            advice="Say in loader.model_class which class or function makes the model.",
        )
    return models[0]


def made_by_script(maker: Any, folder: Path | None, seed: int) -> PreTrainedModel:
    """The module that a function or an ordinary class of the script makes.

    The call gets the model folder if it takes an argument.

    Raises:
        StageError: the call fails, or returns something else.
    """
    name = maker.__name__
    torch.manual_seed(seed)
    try:
        model = maker(folder) if _takes_argument(maker) else maker()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise StageError(f"{name} (loader.model_class) cannot make a model: {explanation(error)}.") from error
    if not isinstance(model, torch.nn.Module):
        raise StageError(f"{name} (loader.model_class) gives {type(model).__name__}, which is not a torch.nn.Module.")
    if not hasattr(model, "config"):
        model.config = PreTrainedConfig()
    return model


def _takes_argument(maker: Any) -> bool:
    """Whether it declares a positional argument: torch's own ``__init__`` declares none and fails if it gets one."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(parameter.kind in by_place for parameter in inspect.signature(maker).parameters.values())


# Eager attention is plain MatMul and Softmax, which every execution provider and optimizer pass supports, with an
# additive mask that can be clamped before quantization; the fused forms export to longer graphs with boolean masks.
ATTENTION = "eager"

_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

# Standard deviation of the values that replace zeros in random weights: the initializer_range of most architectures.
_RANDOM_SPREAD = 0.02


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model.

    Attributes:
        missing: names of weights that the checkpoint lacks and transformers initialized at random.
        whole: its class is exported in one piece, although its architecture has components.
    """

    model: PreTrainedModel
    missing: frozenset[str]
    whole: bool = False


def load_pytorch_model(
    loader: LoaderFields, folder: Path | None, script: Path | None = None, tensors: Sequence[InputTensor] | None = None
) -> LoadedModel:
    """The model that *loader* describes, from *folder* or, with ``random_weights``, from a seed.

    Args:
        script: a folder with the Python file that ``loader.user_script`` names.
        tensors: the recipe's inputs; random weights are made for a model that can take them.

    Raises:
        StageError: the architecture, class or folder cannot give such a model.
    """
    if loader.random_weights is not None and folder is not None:
        raise StageError(
            "The recipe gives both a model folder and loader.random_weights.", advice="Leave one of the two out."
        )
    made = None if script is None else scripted(script, loader.model_class)
    if made is not None and not is_model_class(made):
        seed = loader.random_weights.seed if loader.random_weights else 0
        loaded = LoadedModel(made_by_script(made, folder, seed), frozenset(), whole=True)
    elif loader.random_weights is not None:
        loaded = _random_model(loader, loader.random_weights, made, tensors)
    elif folder is not None:
        loaded = _saved_model(loader, folder, made)
    else:
        raise StageError("There is neither a model folder nor loader.random_weights to make a model from.")
    _prepare(loaded.model)
    return loaded


def refuse_made_up_weights(loaded: LoadedModel, outputs: Sequence[Tensor]) -> None:
    """Refuse a checkpoint without weights that an output depends on; other missing weights (a pooler) do no harm.

    Args:
        outputs: the model's values of the exported outputs, computed with gradients.

    Raises:
        StageError: an output depends on a randomly initialized weight.
    """
    if not loaded.missing:
        return
    parameters = {name: each for name, each in loaded.model.named_parameters() if name in loaded.missing}
    sums = [each.sum() for each in outputs if each.requires_grad]
    used = []
    if parameters and sums:
        gradients = torch.autograd.grad(sums, list(parameters.values()), allow_unused=True)
        used = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
    # Buffers have no gradients; those that matter (running statistics) are always used, and a counter never is.
    used += sorted(name for name in loaded.missing - set(parameters) if not name.endswith("num_batches_tracked"))
    if used:
        raise StageError(
            f"The checkpoint has no weights for {', '.join(used)}, so the result would be partly random.",
            advice="Choose the loader.task that this checkpoint was trained for, or fine-tune it first.",
        )


def _prepare(model: PreTrainedModel) -> None:
    model.float().eval()
    for config in {id(each.config): each.config for each in model.modules() if hasattr(each, "config")}.values():
        config.return_dict = True
        if getattr(config, "use_cache", False):
            config.use_cache = False  # a key-value cache would be exported as dozens of outputs


def model_without_weights(
    loader: LoaderFields, folder: Path | None, tensors: Sequence[InputTensor] | None = None
) -> LoadedModel:
    """The architecture that *loader* describes, with weights that have shapes but no values; no weight file is read.

    Without a *folder*, the architecture can take *tensors*.

    Raises:
        StageError: no such architecture or class exists, or only code in the folder could make it.
    """
    if folder is not None:
        config = _saved_configuration(loader, folder)
    elif loader.model_type is not None:
        config = _random_configuration(loader.model_type, loader.random_weights or RandomWeights(), tensors)
    else:
        raise StageError("There is neither a model folder nor loader.model_type, which says what architecture it is.")
    # Some architectures compute with values at construction.
    with torch.device("meta"):
        loaded = _made(loader, config, None, "The architecture cannot be made without weights")
    _prepare(loaded.model)
    return loaded


def _random_model(
    loader: LoaderFields, random_weights: RandomWeights, made: Any, tensors: Sequence[InputTensor] | None
) -> LoadedModel:
    if loader.model_type is None:
        raise StageError("loader.random_weights needs loader.model_type: it says which architecture to make.")
    config = _random_configuration(loader.model_type, random_weights, tensors)
    torch.manual_seed(random_weights.seed)
    loaded = _made(loader, config, made, "loader.random_weights.config gives no model")
    _replace_zeros(loaded.model, random_weights.seed)
    return loaded


def _random_configuration(
    model_type: str, random_weights: RandomWeights, tensors: Sequence[InputTensor] | None
) -> PreTrainedConfig:
    config = configuration(model_type, random_weights.config)
    follow_tensors(config, random_weights.config, tensors or ())
    return config


def _made(loader: LoaderFields, config: PreTrainedConfig, made: Any, failure: str) -> LoadedModel:
    config.architectures = config.architectures or []  # Auto classes with more than one class (DeiT) cannot take None
    model_class, whole = model_class_of(loader, config, made)
    build = getattr(model_class, "from_config", None) or model_class._from_config
    try:
        model = _eager_if_possible(lambda **how: build(config, dtype=torch.float32, **how))
    except Exception as error:  # from layers whose sizes do not match
        raise StageError(f"{failure}: {explanation(error)}.") from error
    return LoadedModel(model, frozenset(), whole)


def _eager_if_possible(make: Callable[..., Any]) -> Any:
    """Call *make* with eager attention, or with the architecture's own attention if it does not support eager."""
    try:
        return make(attn_implementation=ATTENTION)
    except ValueError as error:
        if "attn_implementation" not in str(error) and "attention implementation" not in str(error):
            raise
        return make()


def _replace_zeros(model: PreTrainedModel, seed: int) -> None:
    """Give small random values to every tensor that is all zero.

    Fresh biases, running means and class tokens are zero. With zeros, a backend may be right for the wrong reason, and
    a quantized all-zero bias gave wrong results on an NPU emulator, so numbers would be meaningless.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and not tensor.any():
                tensor.normal_(std=_RANDOM_SPREAD, generator=generator)


def _saved_model(loader: LoaderFields, folder: Path, made: Any) -> LoadedModel:
    _check_files(folder)
    if loader.trust_remote_code:
        _keep_remote_code_here()
    config = _saved_configuration(loader, folder)
    model_class, whole = model_class_of(loader, config, made)
    try:
        model, report = _eager_if_possible(
            lambda **how: model_class.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                trust_remote_code=loader.trust_remote_code,
                weights_only=True,  # a .bin file is a pickle: only tensors are read from it, no code runs
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                **how,
            )
        )
    except Exception as error:  # from transformers, torch or safetensors: it is about the files of this folder
        raise _unreadable(folder, explanation(error)) from error
    for name, saved, expected in sorted(report["mismatched_keys"]):
        raise StageError(
            f"The checkpoint's {name} is {list(saved)} instead of {list(expected)}.",
            advice="config.json or loader.model_class is not that of this checkpoint.",
        )
    return LoadedModel(model, frozenset(report["missing_keys"]), whole)


def _unreadable(folder: Path, reason: str) -> StageError:
    advice, quantized = "", read_json(folder / "config.json").get("quantization_config")
    if isinstance(quantized, Mapping):
        # transformers names the packages to install, whose quantized modules cannot be exported.
        reason = f"its weights are quantized already ({quantized.get('quant_method', 'quantization_config')})"
        advice = "Give the checkpoint in float that it was made from."
    elif "deserializing header" in reason:
        reason = "its safetensors are cut short or damaged, or pointers of Git LFS"
        advice = "Fetch them again, with git lfs pull in a repository."
    return StageError(f"The model folder cannot be loaded: {reason}.", advice=advice)


def _check_files(folder: Path) -> None:
    """Raise StageError if *folder* has no weights, or refers to files or code outside of it."""
    if (folder / "adapter_config.json").is_file():
        raise StageError(
            "The model folder is an adapter, whose base model is elsewhere.",
            advice="Give the folder of the merged model.",
        )
    if not any((folder / name).is_file() for name in _WEIGHT_FILES):
        present = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise StageError(
            f"The model folder has no weights: there is {present}.",
            advice=f"Expected one of: {', '.join(_WEIGHT_FILES)}.",
        )
    for index in sorted(folder.glob("*.index.json")):
        for shard in map(str, set(read_json(index).get("weight_map", {}).values())):
            if Path(shard).name != shard or "\\" in shard or not (folder / shard).is_file():
                raise StageError(
                    f"{index.name} names the weights file {shard!r}, which is not a file of the model folder."
                )
    for reference in (read_json(folder / "config.json").get("auto_map") or {}).values():
        for each in reference if isinstance(reference, list) else [reference]:
            if "--" in str(each):
                raise StageError(
                    f"config.json takes its code from another repository ({each!r}), which is not part of the folder.",
                    advice="Copy that code into the model folder and name it without a repository.",
                )


def _saved_configuration(loader: LoaderFields, folder: Path) -> PreTrainedConfig:
    saved = read_json(folder / "config.json")
    saved_type, wanted = saved.get("model_type"), loader.model_type
    reader: Any = AutoConfig
    if not saved.get("auto_map"):
        configuration_class(str(saved_type))  # refuses an unknown one
    elif transformers_name(str(saved_type)) is None and not loader.trust_remote_code:
        raise StageError(
            "The model folder brings Python code of its own (auto_map in config.json).",
            advice="Read that code; if you trust it, set loader.trust_remote_code to true.",
        )
    if wanted is not None and same_spelling(wanted) != same_spelling(str(saved_type)):
        # The configuration class of a part (clip_text_model) finds its part in that of the whole (clip).
        reader = configuration_class(wanted)
        same = reader is configuration_class(str(saved_type))  # a built-in architecture, based on one of transformers
        if not same and reader.base_config_key not in saved:
            raise StageError(
                f"loader.model_type is {wanted!r}, but the model folder's config.json says {saved_type!r}.",
                advice="Leave loader.model_type out, or give the folder of such a model.",
            )
    try:
        config: PreTrainedConfig = reader.from_pretrained(
            folder, local_files_only=True, trust_remote_code=loader.trust_remote_code
        )
    except Exception as error:  # a validation error of any class
        raise StageError(f"config.json of the model folder cannot be used: {explanation(error)}.") from error
    if reader is not AutoConfig and "projection_dim" in saved and hasattr(config, "projection_dim"):
        config.projection_dim = saved["projection_dim"]  # the whole model uses its own value, not its part's
    return config


def _keep_remote_code_here() -> None:
    """Make transformers copy a folder's code into the scratch folder, not into the user's cache."""
    dynamic_module_utils.HF_MODULES_CACHE = str(Path("modules").resolve())
