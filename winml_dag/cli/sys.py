"""``winml-dag sys``: what this machine has to build and run models with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import Note, echo, set_format, show
from winml_dag.cli.command import Command

if TYPE_CHECKING:
    from winml_dag.pipeline.host import DetectedDevices, Device, ProviderFound

# Packages whose versions affect the output. Other builds of onnxruntime are listed if installed.
_PACKAGES = ("onnxruntime", "onnx", "onnxscript", "numpy", "torch", "transformers")
_FORMATS = ("text", "json", "compact")


@click.command(name="sys", cls=Command)
@click.option("--list-ep", is_flag=True, help="List only the execution providers.")
@click.option("--list-device", is_flag=True, help="List only the devices and the providers that use them.")
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(_FORMATS),
    default="text",
    help="Output format [text].",
    callback=set_format,
)
def command(*, list_ep: bool, list_device: bool, format_: str) -> None:
    """Show versions, the machine, and each execution provider: whether it is installed, its version, environment and
    devices, and how to install it.

    \b
    winml-dag sys
    winml-dag sys --list-ep
    winml-dag sys --list-device --format json
    """
    from winml_dag.pipeline.host import detect_devices

    found = detect_devices()
    if found.problem:
        echo(Note(found.problem, "warning"), err=True)
    parts = (["ep"] if list_ep else []) + (["device"] if list_device else [])
    lines = (_compact if format_ == "compact" else _text)(found, parts)
    show(_json(found, parts), lines)


def _machine() -> dict[str, Any]:
    """Return the JSON fields of this machine and this Python."""
    import platform
    import sys

    from winml_dag import __version__
    from winml_dag.configuration import config_file
    from winml_dag.ep.registry import runtime_builds
    from winml_dag.installed import installed_distributions, normalised
    from winml_dag.pipeline.host import this_host
    from winml_dag.store.cache_folder import default_cache_dir

    present = installed_distributions()
    packages = {name: present.get(normalised(name)) for name in _PACKAGES}
    packages |= {name: present[normalised(name)] for name in runtime_builds() if normalised(name) in present}
    return {
        "winml_dag": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "packages": packages,
        "platform": platform.platform(),
        **asdict(this_host()),
        "cache_dir": str(default_cache_dir().absolute()),
        "config_file": str(config_file()),
    }


def _text(found: DetectedDevices, parts: list[str]) -> Iterator[str]:
    if not parts:
        yield from _machine_lines()
        yield "execution providers:"
    indent = "" if parts else "  "
    if not parts or "ep" in parts:
        yield from (f"{indent}{line}" for line in _provider_lines(found))
    if not parts:
        yield "devices:"
    if not parts or "device" in parts:
        yield from (f"{indent}{_device_line(device, drivers)}" for device, drivers in found.drivers().items())


def _machine_lines() -> Iterator[str]:
    here = _machine()
    packages, python = here["packages"], here["python"]
    there = ", ".join(f"{name} {version}" for name, version in packages.items() if version is not None)
    missing = ", ".join(name for name, version in packages.items() if version is None)
    cores = f"{here['logical_cores']} cores"
    if here["usable_cores"] != here["logical_cores"]:
        cores += f", {here['usable_cores']} of them for this process"
    cache, configuration = Path(here["cache_dir"]), Path(here["config_file"])
    yield f"winml_dag {here['winml_dag']}, Python {python['version']} ({python['executable']})"
    yield f"  packages       {there}{f'; not installed: {missing}' if missing else ''}"
    yield f"  system         {here['system']} ({here['platform']})"
    yield f"  processor      {here['processor']}, {cores}"
    yield f"  memory         {here['memory_gib']} GiB"
    if here["accelerators"]:
        yield f"  accelerators   {', '.join(here['accelerators'])}"
    yield f"  cache          {cache}{'' if cache.is_dir() else ' (does not exist yet)'}"
    yield f"  configuration  {configuration}{'' if configuration.is_file() else ' (does not exist)'}"


def _provider_lines(found: DetectedDevices) -> Iterator[str]:
    for provider in found.providers:
        yield f"{provider.ep.alias:<13}  {provider.ep.name:<29}  {_state(provider)}"


def _state(provider: ProviderFound) -> str:
    if not provider.is_available:
        what = "" if provider.package is None else f" {_installed(provider)}"
        state = "not available" if provider.installed else "not installed"
        why = f"{provider.why_not} " if provider.installed else ""
        return f"{state}:{what} {why}{provider.how}".rstrip()
    types = ", ".join(dict.fromkeys(device.type for device in provider.devices))
    emulated = " (emulating its npu)" if provider.emulates_npu else ""
    return f"available on {types}{emulated}: {_installed(provider)}"


def _installed(provider: ProviderFound) -> str:
    parts = [] if provider.package is None else [" ".join(provider.package)]
    if provider.sdk_version:
        parts.append(f"SDK {provider.sdk_version}")
    if provider.environment is not None:
        if provider.runtime is not None and provider.runtime != provider.package:
            parts.append(" ".join(provider.runtime))
        parts.append(f"in {provider.environment}")
    return ", ".join(parts)


def _device_line(device: Device, drivers: list[ProviderFound]) -> str:
    numbers = f" {device.vendor_id:#06x}:{device.device_id:#06x}" if device.vendor_id or device.device_id else ""
    metadata = "".join(f", {name} {value}" for name, value in device.metadata)
    by = ", ".join(f"{each.ep.alias}{' (emulating its npu)' if each.emulates_npu else ''}" for each in drivers)
    return f"{device.type:<4} {device.vendor or 'unknown vendor'}{numbers}{metadata}: {by}"


def _compact(found: DetectedDevices, parts: list[str]) -> Iterator[str]:
    """Yield one line per part, for a quick overview and for scripts."""
    aliases = " ".join(each.ep.alias for each in found.providers if each.is_available)
    devices = " ".join(dict.fromkeys(device.type for device in found.drivers()))
    if parts:
        yield from (aliases if part == "ep" else devices for part in parts)
        return
    here = _machine()
    parts = [
        f"winml_dag {here['winml_dag']}",
        f"python {here['python']['version']}",
        f"onnxruntime {here['packages']['onnxruntime'] or 'none'}",
        *(here["system"], here["processor"], f"{here['usable_cores']} cores", f"{here['memory_gib']} GiB"),
        *(f"ep: {aliases}", f"devices: {devices}"),
    ]
    yield " | ".join(parts)


def _json(found: DetectedDevices, parts: list[str]) -> JsonObject:
    lists: dict[str, JsonValue] = {}
    if not parts or "ep" in parts:
        lists["execution_providers"] = [_provider_json(provider) for provider in found.providers]
    if not parts or "device" in parts:
        lists["devices"] = [_device_json(device, drivers) for device, drivers in found.drivers().items()]
    return {**({} if parts else _machine()), **lists}


def _provider_json(provider: ProviderFound) -> JsonObject:
    ep = provider.ep
    return {
        "alias": ep.alias,
        "name": ep.name,
        "drives": ep.devices,
        "available": provider.is_available,
        "installed": provider.installed,
        "why_not": provider.why_not or None,
        "how_to_get": provider.how or None,
        "package": _package_json(provider.package),
        "onnxruntime": _package_json(provider.runtime),
        "environment": None if provider.environment is None else str(provider.environment),
        "sdk_version": provider.sdk_version or None,
        "compiles": ep.makes_ep_context,
        "emulates_npu": provider.emulates_npu,
        "devices": [device.type for device in provider.devices],
        "refused": provider.refused,
    }


def _package_json(package: tuple[str, str] | None) -> JsonObject | None:
    return None if package is None else {"name": package[0], "version": package[1]}


def _device_json(device: Device, drivers: list[ProviderFound]) -> JsonObject:
    return {
        **asdict(device),
        "vendor": device.vendor or None,
        "metadata": dict(device.metadata),
        "execution_providers": [provider.ep.alias for provider in drivers],
    }
