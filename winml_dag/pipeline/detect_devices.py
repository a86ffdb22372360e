"""What this machine has: for each execution provider, where it is installed, its version, and the devices it finds.

Each provider is queried in its own process, so a crashing driver only affects its own result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winml_dag.engine.execute import LOG_FILE, Job, LocalExecutor, log_tail
from winml_dag.engine.keys import installed_distributions, normalised
from winml_dag.engine.stage import Node
from winml_dag.engine.worker import RESULT_FILE
from winml_dag.ep.availability import environment_of, package_of
from winml_dag.ep.environments import Environment
from winml_dag.ep.registry import CPU, ExecutionProvider, execution_providers, runtime_builds
from winml_dag.errors import UsageError
from winml_dag.stages.devices import DEVICES

# Processes at once: each loads hundreds of megabytes of libraries.
_AT_ONCE = 4
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class Device:
    """A device as onnxruntime reports it. ``type`` is cpu, gpu or npu; ids are those of the bus, 0 without one."""

    type: str
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ProviderFound:
    """What was found for one execution provider.

    Attributes:
        installed: whether a package with it is installed.
        why_not: why it cannot be used, as a sentence; empty if it can.
        how: how to fix that; empty if it can be used.
        package: the distribution that provides it, and its version.
        runtime: the distribution of onnxruntime that loads it, and its version.
        environment: the other Python environment that has it; None for this one.
        sdk_version: that of the hardware vendor's SDK; empty if unknown.
        devices: the devices it finds; for a provider that is built into onnxruntime, those that a session could be made
            for.
        refused: devices that it should drive but does not, with the reason.
    """

    ep: ExecutionProvider
    installed: bool
    why_not: str = ""
    how: str = ""
    package: tuple[str, str] | None = None
    runtime: tuple[str, str] | None = None
    environment: Path | None = None
    sdk_version: str = ""
    devices: tuple[Device, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_available(self) -> bool:
        return not self.why_not

    @property
    def emulates_npu(self) -> bool:
        """Whether it emulates the NPU: emulators report themselves as a CPU."""
        types = {device.type for device in self.devices}
        return "npu" in self.ep.emulates and bool(types) and "npu" not in types


@dataclass(frozen=True)
class DetectedDevices:
    """All providers, and what is wrong with the configuration of their environments; empty if nothing is."""

    providers: tuple[ProviderFound, ...]
    problem: str = ""

    def drivers(self) -> dict[Device, list[ProviderFound]]:
        """Return every device that a provider finds, with all providers that drive it.

        A device with only a type counts as the only known device of that type, if there is exactly one.
        """
        known = {device for provider in self.providers for device in provider.devices if device.vendor}
        found: dict[Device, list[ProviderFound]] = {}
        for provider in self.providers:
            for device in provider.devices:
                alike = [other for other in known if other.type == device.type]
                which = alike[0] if len(alike) == 1 and not device.vendor else device
                found.setdefault(which, []).append(provider)
        return found


def detect_devices(providers: Iterable[ExecutionProvider] | None = None) -> DetectedDevices:
    """Look for *providers*, by default all, and query those that are installed."""
    problems: dict[str, None] = {}
    executor = LocalExecutor()

    def look(ep: ExecutionProvider) -> ProviderFound:
        try:
            environment = None if ep == CPU else environment_of(ep)
        except UsageError as error:
            problems[str(error)] = None
            environment = None
        return _found(ep, environment, executor)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = tuple(pool.map(look, execution_providers() if providers is None else providers))
        except BaseException:
            executor.stop()
            raise
    return DetectedDevices(found, " ".join(problems))


def _found(ep: ExecutionProvider, environment: Environment | None, executor: LocalExecutor) -> ProviderFound:
    present = installed_distributions(None if environment is None else environment.site_packages)
    folder = None if environment is None else environment.folder
    runtime = _first_present(present, (*runtime_builds(), "onnxruntime"))
    package = package_of(ep, environment)
    if package is None and ep.packages:
        where = "here" if folder is None else f"in {folder}"
        return ProviderFound(ep, installed=False, why_not=f"It is not installed {where}.", how=ep.how_to_get,
                             runtime=runtime, environment=folder)  # fmt: skip
    brings = runtime if package is None else _first_present(present, (package.distribution,))
    facts, why_not, how = _ask(ep, environment, executor)
    devices = tuple(
        Device(each["type"], each["vendor"], each["vendor_id"], each["device_id"], tuple(each["metadata"].items()))
        for each in facts.get("devices", ())
    )
    tried: Mapping[str, str] = facts.get("tried", {})
    devices += tuple(Device(name) for name, why in tried.items() if not why)
    if not why_not and not devices:
        why_not = next(iter(tried.values()), "It is installed and finds no device on this machine.")
        how = f"It drives {', '.join(ep.devices)}: run it on a machine that has one."
    return ProviderFound(
        ep,
        installed=True,
        why_not=why_not,
        how=how,
        package=brings,
        runtime=runtime,
        environment=folder,
        sdk_version=facts.get("sdk_version", ""),
        devices=devices,
        refused={name: why for name, why in tried.items() if why},
    )


def _ask(
    ep: ExecutionProvider, environment: Environment | None, executor: LocalExecutor
) -> tuple[Mapping[str, Any], str, str]:
    """Return the facts that a provider's process finds, its error, which is empty if it succeeded, and advice."""
    node = Node(
        id=DEVICES.name,
        stage=DEVICES,
        config={"execution_provider": ep.name},
        inputs={},
        interpreter=None if environment is None else environment.python,
    )
    # Windows may still hold files open after the process ends; the system removes them later.
    with tempfile.TemporaryDirectory(prefix="winml-dag-sys-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        outcome = executor.run(Job(node, folder, DEVICES.timeout_seconds))
        if not outcome.error or (folder / RESULT_FILE).exists():
            return outcome.metrics, outcome.error, outcome.advice
        # It crashed or hung. Its log is removed with the folder.
        last = "".join(log_tail(folder / LOG_FILE, 1)).strip()
        return {}, outcome.error, f"Its last words: {last[:_LONGEST_WORDS]}" if last else ""


def _first_present(present: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    return next(((name, present[normalised(name)]) for name in names if normalised(name) in present), None)
