"""An execution provider: one object with everything that distinguishes it from the others.

A module of :mod:`winml_dag.ep.providers` or an installed package declares it. The defaults here are those of a provider
without special needs; a subclass overrides what it needs. onnxruntime is never imported here, because planning uses
these objects.

This module also checks the provider options of a target, and adds the provider's defaults.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.errors import UsageError, known_instead

# The libraries that ldconfig found in system folders, including those of SDKs and drivers.
_LOADER_CACHE = Path("/etc/ld.so.cache")


@dataclass(frozen=True)
class SystemLibrary:
    """A library that no Python package contains: the prefix of its file name on Linux and on Windows."""

    linux: str
    windows: str

    def is_there(self) -> bool:
        if sys.platform == "win32":
            system = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32"
            return _is_in([*_folders("PATH"), system], f"{self.windows}*.dll")
        return _is_in(_folders("LD_LIBRARY_PATH"), f"{self.linux}*") or self._is_cached()

    def _is_cached(self) -> bool:
        try:
            return f"{self.linux}.".encode() in _LOADER_CACHE.read_bytes()
        except OSError:
            return False


def _folders(variable: str) -> list[Path]:
    return [Path(text) for text in os.environ.get(variable, "").split(os.pathsep) if text]


def _is_in(folders: list[Path], pattern: str) -> bool:
    return any(next(folder.glob(pattern), None) is not None for folder in folders if folder.is_dir())


NVIDIA_DRIVER = SystemLibrary("libcuda.so", "nvcuda")


@dataclass(frozen=True)
class Package:
    """One way to install an execution provider.

    Attributes:
        distribution: its name for installers.
        plugin: the module whose ``get_library_path()`` returns a library to register with onnxruntime.
        catalog: the library's location comes from the catalog of Windows ML. With neither, it is a build of onnxruntime
            that contains the provider, and is installed instead of ``onnxruntime``.
    """

    distribution: str
    plugin: str = ""
    catalog: bool = False

    @property
    def is_runtime(self) -> bool:
        return not (self.plugin or self.catalog)


# The catalog has QNN, OpenVINO, VitisAI, NvTensorRTRTX and MIGraphX, depending on the hardware.
WINDOWS_ML = Package("windowsml", plugin="windowsml", catalog=True)


WHOLE_NUMBER = "[0-9]+"


@dataclass(frozen=True)
class Option:
    """The properties of one provider option.

    Attributes:
        values: all valid values; empty if ``pattern`` applies or any value is valid.
        pattern: a regular expression for the whole value, if there is no list.
        file: the value names a file, whose content belongs to the key.
        run_time: read when a session runs, without effect on a compiled model (checked byte by byte).
        refusal: why a recipe cannot set it; empty if it can.
    """

    values: tuple[str, ...] = ()
    pattern: str = ""
    file: bool = False
    run_time: bool = False
    refusal: str = ""


ONNXRUNTIME_QUANTIZATION = "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html"
ONNXRUNTIME_PROVIDERS = "https://onnxruntime.ai/docs/execution-providers"
UNSIGNED_WEIGHTS = {8: "uint8", 16: "int16"}
SIGNED = {8: "int8", 16: "int16"}
UNSIGNED_ACTIVATIONS = {8: "uint8", 16: "uint16"}


@dataclass(frozen=True)
class Integers:
    """The form of quantized models for one execution provider.

    A precision has only widths. The provider determines which integers have those widths, and the other requirements.

    Attributes:
        weights: integer type of weights by width in bits. 4: it takes such weights in QDQ, without MatMulNBits.
        activations: integer type of activations by width in bits.
        rules: whose rules determine the positions of Q and DQ: ``qnn`` or ``onnxruntime``.
        per_channel: whether weights have a scale for each channel, unless the recipe sets it.
        weight_symmetric, activation_symmetric: whether ranges are centred on zero, unless the recipe sets it. None:
            those of weights in signed types are.
        runs_blocks: whether MatMulNBits, the form of block-wise weights, runs where the rest of the model does.
        mixes_widths: whether nodes with 16-bit activations may be mixed with 8-bit ones without leaving the provider;
            false if untested.
        operators: those that are quantized unless the recipe sets them, by the width of activations in bits; without an
            entry, all of a model.
        cannot: pairs of widths (weights, activations) that it does not run, with the end of a message.
        reason: why these values.
        source: the page that documents it.
    """

    weights: Mapping[int, str] = field(default_factory=lambda: UNSIGNED_WEIGHTS)
    activations: Mapping[int, str] = field(default_factory=lambda: UNSIGNED_ACTIVATIONS)
    source: str = field(kw_only=True)
    reason: str = field(kw_only=True)
    rules: str = "onnxruntime"
    per_channel: bool = False
    weight_symmetric: bool | None = None
    activation_symmetric: bool = False
    runs_blocks: bool = True
    mixes_widths: bool = False
    operators: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    cannot: Mapping[tuple[int, int], str] = field(default_factory=dict)


# The meaning of the precision ``auto`` on a device, and the reason.
AUTO_PRECISIONS: Mapping[str, tuple[str, str]] = {
    "npu": ("w8a16", "an NPU needs integers, and 16-bit activations keep the quality"),
    "gpu": ("fp32", "the float model loses nothing"),
    "cpu": ("fp32", "the float model loses nothing"),
}


@dataclass(frozen=True, kw_only=True)
class ExecutionProvider:
    """One execution provider of onnxruntime.

    Attributes:
        name: as onnxruntime spells it.
        alias: what users write.
        aliases: further accepted spellings.
        devices: what it can drive, the preferred one first.
        place: its position in lists; plug-ins come last.
        places: by device, its position among the providers to try if a recipe names only the device.
        packages: alternatives that contain it; the first one found counts. Empty if it is in every onnxruntime.
        needs: other libraries that must be on the machine, such as a driver's.
        how_to_get: what to do if it is missing, as one sentence.
        ihv_type: the hardware vendor, as spelled in analysis results.
        integers: the form of quantized models.
        takes_onnx: whether ONNX models are shipped for it unchanged, to be compiled, if at all, on load; false if that
            takes minutes on the device.
        makes_ep_context: whether it can compile a model ahead of time into EPContext nodes.
        fixed_shapes: whether it takes only models of fixed shapes, for any use.
        for_this_machine: whether what it compiles, ahead or on load, is for exactly the device that it finds; QNN
            compiles for the chip that an option names.
        emulates: devices that it emulates on machines other than Arm's: results are valid there, times are not.
        file_options: options whose value names a file.
        auto: by device, the name of the precision that ``auto`` means, and the reason.
        runs_as: the provider that onnxruntime assigns the nodes to, if it differs.
        plugin: the installed package that declares it; empty for a built-in one.
    """

    name: str
    alias: str
    devices: tuple[str, ...]
    how_to_get: str
    ihv_type: str
    integers: Integers = field(compare=False)
    aliases: tuple[str, ...] = ()
    place: int = sys.maxsize
    places: Mapping[str, int] = field(default_factory=dict, compare=False)
    packages: tuple[Package, ...] = ()
    needs: tuple[SystemLibrary, ...] = ()
    takes_onnx: bool = True
    makes_ep_context: bool = False
    fixed_shapes: bool = False
    for_this_machine: bool = True
    emulates: tuple[str, ...] = ()
    file_options: frozenset[str] = frozenset()
    auto: Mapping[str, tuple[str, str]] = field(default_factory=lambda: AUTO_PRECISIONS, compare=False)
    runs_as: str = ""
    plugin: str = ""

    def lacks(self, device: str) -> int:  # noqa: ARG002 - others read it
        """Return how many of its requirements for *device* are missing on this machine."""
        return sum(not library.is_there() for library in self.needs)

    def option_table(self, device: str) -> Mapping[str, Option] | None:
        """Return the options for *device*; None if the provider itself refuses unknown options."""
        return {} if device == "cpu" and not self.makes_ep_context else None

    def takes_device_type(self) -> bool:
        """Return whether ``device_type`` is one of its options."""
        return False

    def with_defaults(self, device: str, given: Mapping[str, str]) -> dict[str, str]:  # noqa: ARG002
        """Return the checked *given* with its other required options. Raises UsageError for a contradiction."""
        return dict(given)

    def session_extras(self, device: str, package: Package | None) -> dict[str, str]:  # noqa: ARG002
        """Return session options that differ between machines, and so are never in a key.

        *package* is the one that contains the provider.
        """
        return {}


@dataclass(frozen=True)
class Target:
    """Where a model is to run. ``is_open``: no provider was named, and none that drives the device is installed."""

    ep: ExecutionProvider
    device: str
    is_open: bool = field(default=False, compare=False)


def is_emulated(target: Target) -> bool:
    """Return whether the device is emulated, because of this processor: results are valid, times are not."""
    return target.device in target.ep.emulates and not is_arm()


def is_arm() -> bool:
    """Return whether this machine has the architecture of Qualcomm's NPU; on others QNN emulates it."""
    import platform  # slow to import, and needed only here

    return platform.machine().lower() in ("arm64", "aarch64")


def complete_options(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """Return *given*, checked, with the defaults of *target*: everything for a compile or session but session extras.

    Raises:
        UsageError: a name is unknown or a value invalid (with the nearest spelling), or values contradict each other.
    """
    given = _without_device_type(target, given)
    table = target.ep.option_table(target.device)
    if table is not None:
        for name, value in given.items():
            _check(target, table, name, value)
    return dict(sorted(target.ep.with_defaults(target.device, given).items()))


def compile_options(target: Target, options: Mapping[str, str]) -> dict[str, str]:
    """Return the *options* that can change a compiled model, for the key of a compile."""
    table = target.ep.option_table(target.device) or {}
    return {name: value for name, value in options.items() if name not in table or not table[name].run_time}


def _without_device_type(target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """Remove device_type, which winml-cli's configurations set in addition to the device; it must be the same."""
    kept = dict(given)
    if "device_type" not in kept or target.ep.takes_device_type():
        return kept
    named_device = kept.pop("device_type")
    if named_device.lower() != target.device:
        raise UsageError(
            f"Provider option device_type {named_device!r} contradicts device {target.device!r}.",
            advice="Leave the option out.",
        )
    return kept


def _check(target: Target, table: Mapping[str, Option], name: str, value: str) -> None:
    option = table.get(name)
    if option is None:
        if not table:
            raise UsageError(f"{target.ep.name} has no provider options, but {name!r} is given.")
        for other in target.ep.devices:
            if name in (target.ep.option_table(other) or ()):
                raise UsageError(f"Provider option {name!r} is for the {other}, not for device {target.device!r}.")
        usable = (known for known, entry in table.items() if not entry.refusal)
        raise UsageError(f"{target.ep.name} has no provider option {name!r}{known_instead(name, usable)}")
    if option.refusal:
        raise UsageError(f"Provider option {name!r} cannot be set: {option.refusal}.", advice="Remove it.")
    if option.values and value not in option.values:
        raise UsageError(f"Provider option {name!r} cannot be {value!r}{known_instead(value, option.values)}")
    if option.pattern and not re.fullmatch(option.pattern, value):
        kind = "a whole number" if option.pattern == WHOLE_NUMBER else "a whole number above 0"
        raise UsageError(f"Provider option {name!r} must be {kind}, not {value!r}.")
