"""What this machine has: for each execution provider where it is installed, in which version, and what it finds.

Each is asked in a process of its own, so that one whose driver crashes tells just that of itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.execute import Job, LocalExecutor
from winml_dag.engine.keys import installed_distributions, normalised
from winml_dag.engine.stage import Node
from winml_dag.engine.worker import RESULT_FILE
from winml_dag.ep.availability import environment_of, package_of
from winml_dag.ep.environments import Environment
from winml_dag.ep.registry import CPU, ExecutionProvider, execution_providers, runtime_builds
from winml_dag.errors import UsageError
from winml_dag.stages.devices import DEVICES

# Processes at once: each loads libraries of hundreds of megabytes.
_AT_ONCE = 4
_LONGEST_WORDS = 200


@dataclass(frozen=True)
class Device:
    """A device as onnxruntime knows it. ``type`` is cpu, gpu or npu; ids are those of the bus, 0 without one."""

    type: str
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ProviderFound:
    """What was found of one execution provider.

    Attributes:
        installed: whether a package that brings it is there.
        why_not: why it cannot be used, as a sentence; empty when it can.
        how: what to do about it; empty when it can be used.
        package: the distribution that brings it, and its version.
        runtime: the distribution of onnxruntime that loads it, and its version.
        environment: the other Python environment that has it; None for this one.
        sdk_version: of the hardware vendor's SDK; empty where nothing tells.
        devices: what it finds; of a provider that is part of its build of onnxruntime, what a session could be made
            for.
        refused: devices that it should drive, with why it does not.
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
        """Emulators call themselves a CPU."""
        types = {device.type for device in self.devices}
        return "npu" in self.ep.emulates and bool(types) and "npu" not in types


@dataclass(frozen=True)
class DetectedDevices:
    """All providers, and what is wrong with the configuration that says where they are; empty when nothing is."""

    providers: tuple[ProviderFound, ...]
    problem: str = ""

    def drivers(self) -> dict[Device, list[ProviderFound]]:
        """Every device that a provider finds, with all that drive it.

        One of which no more is known than its type is taken for the only one of that type, if there is such.
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
    """Look for *providers*, by default all, and ask those that are installed."""
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
    answer = _ask(ep, environment, executor)
    told = answer.told
    devices = tuple(_device(value) for value in _objects(told.get("devices")))
    tried = {str(name): str(why) for name, why in _object(told.get("tried")).items()}
    devices += tuple(Device(name) for name, why in tried.items() if not why)
    why_not, how = answer.error, answer.advice
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
        sdk_version=str(told.get("sdk_version", "")),
        devices=devices,
        refused={name: why for name, why in tried.items() if why},
    )


@dataclass(frozen=True)
class _Answer:
    """What the process of a provider told; ``error`` is empty when all went well."""

    told: JsonObject
    error: str
    advice: str


def _ask(ep: ExecutionProvider, environment: Environment | None, executor: LocalExecutor) -> _Answer:
    node = Node(
        id=DEVICES.name,
        stage=DEVICES,
        config={"execution_provider": ep.name},
        inputs={},
        interpreter=None if environment is None else environment.python,
    )
    # What Windows still holds open when its process was ended is left to the system.
    with tempfile.TemporaryDirectory(prefix="winml-dag-sys-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        outcome = executor.run(Job(node, folder, DEVICES.timeout_seconds))
        if not outcome.error or (folder / RESULT_FILE).exists():
            return _Answer(outcome.metrics, outcome.error, outcome.advice)
        # It crashed or hung. Its log goes with the folder.
        words = outcome.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        return _Answer({}, outcome.error, f"Its last words: {last[:_LONGEST_WORDS]}" if last else "")


def _first_present(present: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    return next(((name, present[normalised(name)]) for name in names if normalised(name) in present), None)


def _device(value: JsonObject) -> Device:
    return Device(
        str(value.get("type")),
        str(value.get("vendor")),
        _integer(value.get("vendor_id")),
        _integer(value.get("device_id")),
        tuple((str(name), str(text)) for name, text in _object(value.get("metadata")).items()),
    )


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _objects(value: JsonValue) -> list[JsonObject]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _integer(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0
