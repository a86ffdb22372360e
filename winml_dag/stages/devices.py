"""The devices that an execution provider reports when it is loaded. Not a stage of a build: ``winml-dag sys`` runs it.

The provider's library and the drivers that it loads may crash or hang. So this runs in a separate process of the
environment that has the provider, and nothing is cached.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Stage, Workspace
from winml_dag.errors import StageError

if TYPE_CHECKING:
    from winml_dag.ep.registry import ExecutionProvider


@dataclass(frozen=True)
class DevicesConfig:
    """``execution_provider``: the full name."""

    execution_provider: str


DEVICES = Stage(
    name="devices",
    version=1,
    work="winml_dag.stages.devices:run",
    config="winml_dag.stages.devices:DevicesConfig",
    inputs={},
    outputs={},
    timeout_seconds=60.0,
)

# ``y = Relu(x)`` of four numbers, IR 8, opset 17, which every provider supports. The environment may not have onnx.
_RELU = bytes.fromhex(
    "08083a3b0a0c0a0178120179220452656c751201675a130a0178120e0a0c080112080a0208010a02080462130a0179120e0a0c080112080a"
    "0208010a02080442040a001011"
)
# Libraries whose file names contain the version of their SDK.
_SDK_LIBRARY = re.compile(r"(?:lib)?(?:openvino|tensorrt_rtx|nvinfer)\.so\.(\d+(?:\.\d+)+)")
# OpenVINO 2025.4.1 also uses this name, and a plugin may contain only this file: libopenvino.so.2541
_OPENVINO_LIBRARY = re.compile(r"libopenvino\.so\.(\d\d)(\d)(\d)")


def run(config: DevicesConfig, workspace: Workspace) -> JsonObject:  # noqa: ARG001 - it has no files
    """Load the provider and return its devices. Raises StageError if the provider does not load."""
    import onnxruntime

    from winml_dag.ep.registry import find_ep
    from winml_dag.ep.session import register

    onnxruntime.set_default_logger_severity(4)
    ep = find_ep(config.execution_provider)
    register(ep)
    found = [_device(device) for device in onnxruntime.get_ep_devices() if device.ep_name == ep.name]
    return {
        "onnxruntime": onnxruntime.__version__,
        "sdk_version": sdk_version(ep),
        "devices": found,
        # A provider that is compiled into onnxruntime reports no devices; only creating a session shows whether one
        # exists.
        "tried": {} if found else dict(_tried(ep)),
    }


def _device(device: Any) -> JsonObject:
    hardware = device.device
    return {
        "type": hardware.type.name.lower(),
        "vendor": hardware.vendor,
        "vendor_id": hardware.vendor_id,
        "device_id": hardware.device_id,
        "metadata": _texts(hardware.metadata),
        "provider_vendor": device.ep_vendor,
        "provider_metadata": _texts(device.ep_metadata),
    }


def _texts(value: Mapping[str, str]) -> dict[str, JsonValue]:
    return {str(name): str(text) for name, text in sorted(value.items())}


def _tried(ep: ExecutionProvider) -> Iterator[tuple[str, str]]:
    """Yield each device that *ep* may drive and the reason why it does not work; empty if it works."""
    from winml_dag.ep.provider import complete_options
    from winml_dag.ep.registry import Target
    from winml_dag.ep.session import create_session

    model = Path("relu.onnx")
    model.write_bytes(_RELU)
    for device in ep.devices:
        target = Target(ep, device)
        try:
            create_session(model, target, complete_options(target, {}))
        except StageError as error:
            yield device, error.message
        else:
            yield device, ""


def sdk_version(ep: ExecutionProvider) -> str:
    """Return the version of the hardware vendor's SDK in the package; empty if it cannot be determined."""
    from winml_dag.ep.availability import libraries_of, package_of

    package = package_of(ep, None)
    if package is not None and package.plugin:
        try:
            info = importlib.import_module(f"{package.plugin}.build_and_package_info")
        except ImportError:
            info = None
        if version := getattr(info, "qnn_version", ""):
            return str(version)
    names = [path.name for path in libraries_of(ep, None).files]
    versions = [match[1] for match in map(_SDK_LIBRARY.fullmatch, names) if match]
    versions += ["20" + ".".join(match.groups()) for match in map(_OPENVINO_LIBRARY.fullmatch, names) if match]
    return max(versions, default="", key=len)
