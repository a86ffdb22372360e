"""Provider options: which names and values an execution provider knows, and the defaults a target adds to them.

QNN ignores a name it does not know and most values it cannot use, with the same bytes as if nothing had been said; so
they are refused here, before anything runs. The table follows QNN's own documentation and was compared with the names
in its library. OpenVINO's plugin ignores even more, as was tried out. The others refuse unknown names themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.ep.availability import environment_of, package_of
from winml_dag.ep.registry import OPENVINO, QNN, ExecutionProvider, Target, nearest
from winml_dag.errors import UsageError

_SWITCH = ("0", "1")
_WHOLE_NUMBER = "[0-9]+"
_POSITIVE_NUMBER = "[1-9][0-9]*"


@dataclass(frozen=True)
class Option:
    """What is known of one provider option.

    Attributes:
        values: all that it may be; empty when ``pattern`` or anything goes.
        pattern: a regular expression for the whole value, when there is no list.
        file: the value names a file, whose content belongs to the key.
        run_time: read when a session runs, without a trace in a compiled model (checked byte by byte).
        refusal: why it cannot be given in a recipe; empty when it can.
    """

    values: tuple[str, ...] = ()
    pattern: str = ""
    file: bool = False
    run_time: bool = False
    refusal: str = ""


_DEBUGGING = "it writes files for debugging, which a stage would throw away"
_OWN_BACKEND = "the backend library follows from the device and lies elsewhere on every machine"

# Options for the NPU backend (HTP) first, then those that every backend reads.
_QNN_NPU: Mapping[str, Option] = {
    "soc_model": Option(pattern=_POSITIVE_NUMBER),
    "htp_arch": Option(values=("68", "69", "73", "75", "79", "81")),
    "vtcm_mb": Option(pattern=_POSITIVE_NUMBER),
    "htp_performance_mode": Option(
        values=(
            "balanced",
            "burst",
            "default",
            "extreme_power_saver",
            "high_performance",
            "high_power_saver",
            "low_balanced",
            "low_power_saver",
            "power_saver",
            "sustained_high_performance",
        ),
        run_time=True,
    ),
    "htp_graph_finalization_optimization_mode": Option(values=("0", "1", "2", "3")),
    "enable_htp_fp16_precision": Option(values=_SWITCH),
    "enable_htp_fp16_clamp_overflow": Option(values=_SWITCH),
    "htp_bf16_enable": Option(values=_SWITCH),
    "enable_htp_monolithic_lstm": Option(values=_SWITCH),
    "enable_htp_spill_fill_buffer": Option(values=_SWITCH),
    "enable_htp_graph_splitting": Option(values=_SWITCH),
    "enable_htp_shared_memory_allocator": Option(values=_SWITCH),
    "enable_vtcm_backup_buffer_sharing": Option(values=_SWITCH),
    "htp_share_resource_optimization": Option(values=("1",)),
    "htp_reused_io_limit_mb": Option(pattern=_POSITIVE_NUMBER),
    "extended_udma": Option(values=_SWITCH),
    "enable_block_quant_weight_optimization": Option(values=_SWITCH),
    "rpc_control_latency": Option(pattern=_WHOLE_NUMBER, run_time=True),
    "enable_htp_prepare_only": Option(refusal="compiled models are loaded again to be validated"),
    "enable_htp_prepare_and_load": Option(refusal="compiled models are loaded again to be validated"),
}
_QNN_ANY: Mapping[str, Option] = {
    "offload_graph_io_quantization": Option(values=_SWITCH),
    "op_affinity": Option(file=True),
    "qnn_context_priority": Option(
        values=("low", "normal_low", "normal", "normal_high", "high", "high_plus", "critical", "critical_plus")
    ),
    "device_id": Option(pattern=_WHOLE_NUMBER),
    "disable_file_mapped_weights": Option(values=_SWITCH, run_time=True),
    "num_graph_prepare_threads": Option(pattern=_POSITIVE_NUMBER),
    "htp_graph_splitting_num_prepare_threads": Option(pattern=_POSITIVE_NUMBER),
    "enable_dx12_shared_memory_allocator": Option(values=_SWITCH),
    "skip_qnn_version_check": Option(values=_SWITCH),
    "backend_path": Option(refusal=_OWN_BACKEND),
    "backend_type": Option(refusal=_OWN_BACKEND),
    "op_packages": Option(refusal="it names libraries by their path, whose content could not be part of the key"),
    "genie_log_level": Option(refusal="language models in Qualcomm's own format are not built here"),
    "profiling_level": Option(refusal=_DEBUGGING),
    "profiling_file_path": Option(refusal=_DEBUGGING),
    "qnn_saver_path": Option(refusal=_DEBUGGING),
    "qnn_ir_backend_path": Option(refusal=_DEBUGGING),
    "dump_qnn_ir_dlc": Option(refusal=_DEBUGGING),
    "dump_qnn_ir_dlc_dir": Option(refusal=_DEBUGGING),
    "skip_backend_op_validation": Option(refusal=_DEBUGGING),
    "dump_json_qnn_graph": Option(refusal=_DEBUGGING),
    "json_qnn_graph_dir": Option(refusal=_DEBUGGING),
    "dump_qnn_ep_input_graph": Option(refusal=_DEBUGGING),
    "dump_qnn_ep_input_graph_dir": Option(refusal=_DEBUGGING),
    "enable_framework_op_trace": Option(refusal=_DEBUGGING),
    "framework_op_trace_dir": Option(refusal=_DEBUGGING),
}


_IGNORED = "OpenVINO's plugin ignores it; what it stands for is set in a file that load_config names"

# The plugin says in its log which options of OpenVINO's build of onnxruntime it ignores, and nothing of those that are
# unknown; that build refuses those itself.
_OPENVINO_PLUGIN: Mapping[str, Option] = {
    "load_config": Option(file=True),
    "reshape_input": Option(),
    "enable_causallm": Option(values=("true", "false", "1", "0")),
    "cache_dir": Option(refusal=_IGNORED),
    "device_id": Option(refusal=_IGNORED),
    "device_luid": Option(refusal=_IGNORED),
    "enable_opencl_throttling": Option(refusal=_IGNORED),
    "enable_qdq_optimizer": Option(refusal=_IGNORED),
    "model_priority": Option(refusal=_IGNORED),
    "num_of_threads": Option(refusal=_IGNORED),
    "num_streams": Option(refusal=_IGNORED),
    "precision": Option(refusal=_IGNORED),
}


@dataclass(frozen=True)
class Soc:
    """A system on chip: Qualcomm's number for it, its part number, what it is sold as (if it has such a name), and the
    version of its NPU's architecture.
    """

    model: str
    part: str
    chip: str
    htp_arch: str

    @property
    def name(self) -> str:
        return f"{self.part} ({self.chip})" if self.chip else self.part


# Only those whose number and architecture independent public sources agree on.
SOCS = (
    Soc("60", "SC8380XP", "Snapdragon X Elite", "73"),
    Soc("88", "SC8480XP", "Snapdragon X2 Elite", "81"),
    Soc("37", "SC8280X", "Snapdragon 8cx Gen 3", "68"),
    Soc("30", "SM8350", "Snapdragon 888", "68"),
    Soc("36", "SM8450", "Snapdragon 8 Gen 1", "69"),
    Soc("42", "SM8475", "Snapdragon 8+ Gen 1", "69"),
    Soc("43", "SM8550", "Snapdragon 8 Gen 2", "73"),
    Soc("57", "SM8650", "Snapdragon 8 Gen 3", "75"),
    Soc("69", "SM8750", "Snapdragon 8 Elite", "79"),
    Soc("87", "SM8850", "Snapdragon 8 Elite Gen 5", "81"),
    Soc("39", "SA8295", "", "68"),
    Soc("52", "SA8255", "", "73"),
)
DEFAULT_SOC = SOCS[0]

# The NPU computes floats in half precision whatever is said (0 and 1 give the same bytes); 1 says what happens, and
# keeps saying it across versions of QNN, whose default has been either. Mode 3 prepares longest and runs fastest.
_QNN_NPU_DEFAULTS = {
    "enable_htp_fp16_precision": "1",
    "htp_graph_finalization_optimization_mode": "3",
    "htp_performance_mode": "burst",
}


def option_table(target: Target) -> Mapping[str, Option] | None:
    """The options that *target* knows; None where the execution provider refuses what it does not know by itself."""
    if target.ep == QNN:
        return {**_QNN_NPU, **_QNN_ANY} if target.device == "npu" else _QNN_ANY
    if _is_openvino_plugin(target):
        return _OPENVINO_PLUGIN
    return {} if target.device == "cpu" and not target.ep.makes_ep_context else None


def _is_openvino_plugin(target: Target) -> bool:
    """Whether OpenVINO is here as a plugin, whose device is chosen among those that it offers."""
    if target.ep != OPENVINO:
        return False
    package = package_of(OPENVINO, environment_of(OPENVINO))
    return package is not None and not package.is_runtime


def file_options(ep: ExecutionProvider) -> frozenset[str]:
    """Options of *ep* whose value names a file."""
    if ep == QNN:
        return frozenset(name for name, option in _QNN_ANY.items() if option.file)
    return frozenset({"load_config"}) if ep == OPENVINO else frozenset()


def complete_options(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """*given*, checked, with the defaults of *target*: all that a compile or a session needs but the backend's path.

    Raises:
        UsageError: for an unknown name or an impossible value, with the nearest spelling, and for values that
            contradict each other.
    """
    given = _without_device_type(target, given)
    table = option_table(target)
    if table is not None:
        for name, value in given.items():
            _check(target, table, name, value)
    if target.ep == QNN and target.device == "npu":
        given = {**_QNN_NPU_DEFAULTS, **given, **_soc_options(given)}
    elif target.ep == OPENVINO and not _is_openvino_plugin(target):
        given = {"device_type": target.device.upper(), **given}
    return dict(sorted(given.items()))


def with_npu_settings(
    target: Target, given: Mapping[str, str], soc_model: int | str | None, htp_arch: int | None, level: int | None
) -> dict[str, str]:
    """The provider options *given* together with what a recipe has fields of its own for; *soc_model* is a chip's
    number or name, *level* that of the graph's optimization.

    Raises:
        UsageError: for a name that no chip has, a target that has no such settings, or an option that says otherwise.
    """
    values = (None if soc_model is None else _soc_number(soc_model), htp_arch, level)
    said = {field: str(value) for field, value in zip(NPU_SETTINGS, values, strict=True) if value is not None}
    result = dict(given)
    for field, value in said.items():
        if target.ep != QNN or target.device != "npu":
            raise UsageError(
                f"compile.{field} is for {QNN.name} on the npu, not for {target.ep.name} on the {target.device}.",
                advice="Leave it out.",
            )
        option = option_of(field)
        if result.setdefault(option, value) != value:
            raise UsageError(
                f"compile.{field} means {option} {value!r}, but provider_options has {option} {result[option]!r}.",
                advice="Keep one of the two.",
            )
    return result


# What QNN calls the fields of a `compile` section that stand for an option each.
_OPTION_OF = {
    "soc_model": "soc_model",
    "htp_arch": "htp_arch",
    "htp_optimization_level": "htp_graph_finalization_optimization_mode",
}
NPU_SETTINGS = tuple(_OPTION_OF)


def option_of(field: str) -> str:
    """The provider option that the field *field* of a ``compile`` section stands for."""
    return _OPTION_OF.get(field, field)


def _soc_number(wanted: int | str) -> str:
    """The number of the chip *wanted*: itself, or found by part number or by the name that it is sold under."""
    text = str(wanted).strip()
    if text.isascii() and text.isdecimal():
        return str(int(text))
    spellings = {spelling.lower(): soc for soc in SOCS for spelling in (soc.part, soc.chip, soc.name) if spelling}
    found = spellings.get(" ".join(text.lower().split()))
    if found is None:
        known = [spelling for soc in SOCS for spelling in (soc.part, soc.chip) if spelling]
        raise UsageError(
            f"There is no chip {text!r} in the table of chips.",
            advice=f"{nearest(text, known)} Any chip can be given by its number.",
        )
    return found.model


def compile_options(target: Target, options: Mapping[str, str]) -> dict[str, str]:
    """The part of *options* that can change a compiled model: what belongs into the key of a compile."""
    table = option_table(target) or {}
    return {name: value for name, value in options.items() if name not in table or not table[name].run_time}


def _without_device_type(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """Configurations made for winml-cli say the device again as a provider option; it must be the same one."""
    kept = dict(given)
    said = kept.pop("device_type", None)
    if said is not None and target.ep == OPENVINO and not _is_openvino_plugin(target):
        kept["device_type"] = said  # OpenVINO has more to say here, such as GPU.1 or AUTO:NPU,CPU
    elif said is not None and said.lower() != target.device:
        raise UsageError(
            f"Provider option device_type {said!r} contradicts device {target.device!r}.",
            advice="Leave the option out.",
        )
    return kept


def _check(target: Target, table: Mapping[str, Option], name: str, value: str) -> None:
    option = table.get(name)
    if option is None:
        if not table:
            raise UsageError(f"{target.ep.name} has no provider options, but {name!r} is given.")
        if target.ep == QNN and name in _QNN_NPU:
            raise UsageError(f"Provider option {name!r} is for the npu, not for device {target.device!r}.")
        usable = (known for known, entry in table.items() if not entry.refusal)
        raise UsageError(f"{target.ep.name} has no provider option {name!r}.", advice=nearest(name, usable))
    if option.refusal:
        raise UsageError(f"Provider option {name!r} cannot be set: {option.refusal}.", advice="Leave it out.")
    if option.values and value not in option.values:
        raise UsageError(f"Provider option {name!r} cannot be {value!r}.", advice=nearest(value, option.values))
    if option.pattern and not re.fullmatch(option.pattern, value):
        kind = "a whole number" if option.pattern == _WHOLE_NUMBER else "a whole number above 0"
        raise UsageError(f"Provider option {name!r} must be {kind}, not {value!r}.")


def _soc_options(given: Mapping[str, str]) -> dict[str, str]:
    """``soc_model`` and ``htp_arch`` that fit each other.

    ``soc_model`` is always there: without it, real models fail to compile (out of memory, error 1002).
    """
    model, arch = given.get("soc_model"), given.get("htp_arch")
    if model is None:
        if arch is None:
            soc = DEFAULT_SOC
        elif (found := next((soc for soc in SOCS if soc.htp_arch == arch), None)) is not None:
            soc = found
        else:
            raise UsageError(f"htp_arch {arch!r} is of no known soc_model.", advice="Give soc_model as well.")
        return {"soc_model": soc.model, "htp_arch": soc.htp_arch}
    known = next((soc for soc in SOCS if soc.model == model), None)
    if known is None:  # newer than the table: QNN knows its architecture, and refuses a number that it does not know
        return {}
    if arch is not None and arch != known.htp_arch:
        raise UsageError(
            f"soc_model {model} is {known.name}, whose htp_arch is {known.htp_arch}, not {arch}.",
            advice="Give only one of them.",
        )
    return {"soc_model": model, "htp_arch": known.htp_arch}
