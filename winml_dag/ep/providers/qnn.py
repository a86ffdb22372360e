"""Qualcomm's QNN: NPUs and GPUs of Snapdragon chips, and an emulator of the NPU elsewhere.

QNN silently ignores unknown options and most invalid values, and outputs the same bytes; so they are refused before
anything runs. The tables follow QNN's own documentation and were compared with the names in its library.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.ep.provider import (
    ONNXRUNTIME_PROVIDERS,
    UNSIGNED_WEIGHTS,
    WHOLE_NUMBER,
    WINDOWS_ML,
    ExecutionProvider,
    Integers,
    Option,
    Package,
    Target,
    is_arm,
)
from winml_dag.errors import UsageError, known_instead

_SWITCH = Option(values=("0", "1"))
_POSITIVE = Option(pattern="[1-9][0-9]*")
_DEBUGGING = Option(refusal="it writes files for debugging, which a stage would throw away")
_OWN_BACKEND = Option(refusal="the backend library follows from the device and lies elsewhere on every machine")

# Options for the NPU backend (HTP); those that every backend reads follow.
_NPU_OPTIONS: Mapping[str, Option] = {
    "soc_model": _POSITIVE,
    "htp_arch": Option(values=("68", "69", "73", "75", "79", "81")),
    "vtcm_mb": _POSITIVE,
    "htp_performance_mode": Option(
        values=(
            *("balanced", "burst", "default", "extreme_power_saver", "high_performance", "high_power_saver"),
            *("low_balanced", "low_power_saver", "power_saver", "sustained_high_performance"),
        ),
        run_time=True,
    ),
    "htp_graph_finalization_optimization_mode": Option(values=("0", "1", "2", "3")),
    "enable_htp_fp16_precision": _SWITCH,
    "enable_htp_fp16_clamp_overflow": _SWITCH,
    "htp_bf16_enable": _SWITCH,
    "enable_htp_monolithic_lstm": _SWITCH,
    "enable_htp_spill_fill_buffer": _SWITCH,
    "enable_htp_graph_splitting": _SWITCH,
    "enable_htp_shared_memory_allocator": _SWITCH,
    "enable_vtcm_backup_buffer_sharing": _SWITCH,
    "htp_share_resource_optimization": Option(values=("1",)),
    "htp_reused_io_limit_mb": _POSITIVE,
    "extended_udma": _SWITCH,
    "enable_block_quant_weight_optimization": _SWITCH,
    "rpc_control_latency": Option(pattern=WHOLE_NUMBER, run_time=True),
    "enable_htp_prepare_only": Option(refusal="compiled models are loaded again to be validated"),
    "enable_htp_prepare_and_load": Option(refusal="compiled models are loaded again to be validated"),
}
_OPTIONS: Mapping[str, Option] = {
    "offload_graph_io_quantization": _SWITCH,
    "op_affinity": Option(file=True),
    "qnn_context_priority": Option(
        values=("low", "normal_low", "normal", "normal_high", "high", "high_plus", "critical", "critical_plus")
    ),
    "device_id": Option(pattern=WHOLE_NUMBER),
    "disable_file_mapped_weights": Option(values=_SWITCH.values, run_time=True),
    "num_graph_prepare_threads": _POSITIVE,
    "htp_graph_splitting_num_prepare_threads": _POSITIVE,
    "enable_dx12_shared_memory_allocator": _SWITCH,
    "skip_qnn_version_check": _SWITCH,
    "backend_path": _OWN_BACKEND,
    "backend_type": _OWN_BACKEND,
    "op_packages": Option(refusal="it names libraries by their path, whose content could not be part of the key"),
    "genie_log_level": Option(refusal="language models in Qualcomm's own format are not built here"),
    **dict.fromkeys(
        (
            *("profiling_level", "profiling_file_path", "qnn_saver_path", "qnn_ir_backend_path", "dump_qnn_ir_dlc"),
            *("dump_qnn_ir_dlc_dir", "skip_backend_op_validation", "dump_json_qnn_graph", "json_qnn_graph_dir"),
            *("dump_qnn_ep_input_graph", "dump_qnn_ep_input_graph_dir", "enable_framework_op_trace"),
            "framework_op_trace_dir",
        ),
        _DEBUGGING,
    ),
}


@dataclass(frozen=True)
class Soc:
    """A system on chip: Qualcomm's number, part number, market name (if any), and version of the NPU architecture."""

    model: str
    part: str
    chip: str
    htp_arch: str

    @property
    def name(self) -> str:
        return f"{self.part} ({self.chip})" if self.chip else self.part


# Only those whose number and architecture are the same in independent public sources.
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

# The NPU computes floats in half precision in any case (0 and 1 result in the same bytes). 1 is explicit and
# independent of QNN's default, which has been either. Mode 3 takes longest to prepare and runs fastest.
_NPU_DEFAULTS = {
    "enable_htp_fp16_precision": "1",
    "htp_graph_finalization_optimization_mode": "3",
    "htp_performance_mode": "burst",
}


class _Qnn(ExecutionProvider):
    def lacks(self, device: str) -> int:
        return int(device not in self.emulates and not is_arm())  # the GPU of a Snapdragon

    def option_table(self, device: str) -> Mapping[str, Option]:
        return {**_NPU_OPTIONS, **_OPTIONS} if device == "npu" else _OPTIONS

    def with_defaults(self, device: str, given: Mapping[str, str]) -> dict[str, str]:
        return {**_NPU_DEFAULTS, **given, **_soc_options(given)} if device == "npu" else dict(given)

    def session_extras(self, device: str, package: Package | None) -> dict[str, str]:
        """Return QNN's own library for the device."""
        if package is None:
            return {}
        if package.catalog:
            return {"backend_type": "htp" if device == "npu" else "gpu"}
        module = importlib.import_module(package.plugin)
        return {"backend_path": module.get_qnn_htp_path() if device == "npu" else module.get_qnn_gpu_path()}


PROVIDER = QNN = _Qnn(
    name="QNNExecutionProvider",
    alias="qnn",
    devices=("npu", "gpu"),
    place=1,
    places={"npu": 1, "gpu": 6},
    makes_ep_context=True,
    takes_onnx=False,
    fixed_shapes=True,
    for_this_machine=False,
    # On x86-64: it compiles for the real NPU, and is listed as a CPU.
    emulates=("npu",),
    packages=(Package("onnxruntime-qnn", plugin="onnxruntime_qnn"), WINDOWS_ML),
    how_to_get="Install it with: pip install winml_dag[qnn]",
    ihv_type="QC",
    file_options=frozenset(name for name, option in _OPTIONS.items() if option.file),
    integers=Integers(
        {4: "int4", **UNSIGNED_WEIGHTS},
        rules="qnn",
        per_channel=True,
        runs_blocks=False,
        mixes_widths=True,
        cannot={(16, 8): "takes 16-bit weights with 16-bit activations only; use w8a8 or w16a16"},
        source=f"{ONNXRUNTIME_PROVIDERS}/QNN-ExecutionProvider.html",
        reason="activations are unsigned; 16-bit and 4-bit weights are signed and symmetric; only integers run",
    ),
)


def with_npu_settings(
    target: Target, given: Mapping[str, str], soc_model: int | str | None, htp_arch: int | None, level: int | None
) -> dict[str, str]:
    """Return the provider options *given* with those that a recipe has its own fields for.

    *soc_model* is a chip's number or name, *level* that of the graph's optimization.

    Raises:
        UsageError: no chip has that name, the target has no such settings, or an option contradicts them.
    """
    values = (None if soc_model is None else _soc_number(soc_model), htp_arch, level)
    chosen = {field: str(value) for field, value in zip(NPU_SETTINGS, values, strict=True) if value is not None}
    result = dict(given)
    for field, value in chosen.items():
        if target.ep != QNN or target.device != "npu":
            raise UsageError(
                f"compile.{field} is for {QNN.name} on the npu, not for {target.ep.name} on the {target.device}.",
                advice="Remove it.",
            )
        option = option_of(field)
        if result.setdefault(option, value) != value:
            raise UsageError(
                f"compile.{field} means {option} {value!r}, but provider_options has {option} {result[option]!r}.",
                advice="Keep one of the two.",
            )
    return result


# The QNN options of the fields of a `compile` section.
_OPTION_OF = {
    "soc_model": "soc_model",
    "htp_arch": "htp_arch",
    "htp_optimization_level": "htp_graph_finalization_optimization_mode",
}
NPU_SETTINGS = tuple(_OPTION_OF)


def option_of(field: str) -> str:
    """Return the provider option of the field *field* of a ``compile`` section."""
    return _OPTION_OF.get(field, field)


def _soc_number(wanted: int | str) -> str:
    """Return the number of the chip *wanted*: itself, or looked up by part number or market name."""
    text = str(wanted).strip()
    if text.isascii() and text.isdecimal():
        return str(int(text))
    spellings = {spelling.lower(): soc for soc in SOCS for spelling in (soc.part, soc.chip, soc.name) if spelling}
    found = spellings.get(" ".join(text.lower().split()))
    if found is None:
        known = [spelling for soc in SOCS for spelling in (soc.part, soc.chip) if spelling]
        raise UsageError(
            f"There is no chip {text!r} in the table of chips{known_instead(text, known)}",
            advice="Any chip can be given by its number.",
        )
    return found.model


def _soc_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return ``soc_model`` and ``htp_arch`` that match each other.

    ``soc_model`` is always set: without it, real models fail to compile (out of memory, error 1002).
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
    if known is None:  # newer than the table: QNN determines its architecture, and refuses unknown numbers
        return {}
    if arch is not None and arch != known.htp_arch:
        raise UsageError(
            f"soc_model {model} is {known.name}, whose htp_arch is {known.htp_arch}, not {arch}.",
            advice="Give only one of them.",
        )
    return {"soc_model": model, "htp_arch": known.htp_arch}
