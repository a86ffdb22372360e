"""What a worker says of itself, and which nodes it can run for that.

A node goes to workers that make the very toolchain in its key: that is worked out here from what they report, with the
rules by which this machine makes its own, and by the worker once more right before it runs.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from winml_dag import __version__
from winml_dag.canonical import JsonObject
from winml_dag.engine.cluster.order import PROTOCOL
from winml_dag.engine.machine import memory_for_runs
from winml_dag.engine.stage import Node
from winml_dag.engine.toolchain import forget_installed
from winml_dag.ep.availability import installed
from winml_dag.ep.elsewhere import Environment
from winml_dag.ep.registry import CPU, EXECUTION_PROVIDERS, RUNTIME_BUILDS, Target, find_ep
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.epplace import HERE, EpPlace, ep_place
from winml_dag.pipeline.finished.host import this_host
from winml_dag.store.digest import DigestFunction
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.local import LocalStore

FUNCTIONS: tuple[DigestFunction, ...] = ("xxh3-128", "sha256")

_RUNTIME = "onnxruntime"
_MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class Offer:
    """What the owner of a worker gives: stages at a time, memory in bytes, and words by which builds choose workers."""

    places: int
    memory_bytes: int
    tags: tuple[str, ...] = ()

    @classmethod
    def of_this_machine(cls, places: int | None, memory_bytes: int | None, tags: tuple[str, ...] = ()) -> Offer:
        return cls(places or os.cpu_count() or 1, memory_bytes or memory_for_runs(), tags)


def report_here(offer: Offer, folder: Path) -> str:
    """What this machine has, as JSON; *folder* is that of its store."""
    host = this_host()
    # Digests of libraries are in keys, with the function that all digests of a build are of.
    by_function = {function: _places(_fingerprints(folder, function)) for function in FUNCTIONS}
    environments = _environments(by_function)
    alias = {name.partition("/")[0] for name in environments if name}
    return json.dumps(
        {
            "protocol": PROTOCOL,
            "version": __version__,
            "places": offer.places,
            "memory_bytes": offer.memory_bytes,
            "tags": sorted(
                {
                    *offer.tags,
                    *(f"ep:{name}" for name in (*alias, CPU.alias)),
                    f"python:{platform.python_version()}",
                    f"system:{sys.platform}",
                }
            ),
            "host": socket.gethostname(),
            "system": host.system,
            "processor": host.processor,
            "devices": list(host.accelerators),
            "store": folder_identity(folder),
            "environments": environments,
        }
    )


def toolchain_here(node: Node, fingerprints: Fingerprints) -> tuple[EpPlace, Mapping[str, str]]:
    """Where this machine does the work of *node*, and the toolchain that it would put into its key now.

    Raises:
        UsageError: where its provider is not installed.
    """
    forget_installed()
    place = HERE
    if node.environment:
        alias, _, device = node.environment.partition("/")
        target = Target(find_ep(alias), device)
        if not installed(target.ep):
            raise UsageError(f"{target.ep.name} is not installed.")
        place = ep_place(target, fingerprints)
    return place, place.toolchain(_packages(node.toolchain, place.tools))


def folder_identity(folder: Path) -> str:
    """A text that only the same folder on the same running machine has."""
    machine = f"{uuid.getnode():x}"
    with suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    status = folder.stat()
    return f"{machine}:{status.st_dev}:{status.st_ino}"


def _fingerprints(folder: Path, function: DigestFunction) -> Fingerprints:
    return LocalStore(folder, function=function).fingerprints


def _places(fingerprints: Fingerprints) -> Mapping[str, EpPlace]:
    """By name, each environment that this machine has."""
    found = {"": HERE}
    for ep in EXECUTION_PROVIDERS:
        # A configuration that names what is no environment: this provider is not offered.
        with suppress(UsageError):
            if ep != CPU and installed(ep):
                places = [ep_place(Target(ep, device), fingerprints) for device in ep.devices]
                found |= {place.name: place for place in places}
    return found


def _environments(by_function: Mapping[DigestFunction, Mapping[str, EpPlace]]) -> JsonObject:
    places = by_function["sha256"]
    return {
        name: {
            # Most are the one that the worker runs in, and need not be told twice.
            "distributions": None if name and place.site_packages is None else dict(place.present()),
            "tools": {function: dict(found[name].tools) for function, found in by_function.items()},
            "pools": list(place.pools),
        }
        for name, place in places.items()
    }


@dataclass(frozen=True)
class Report:
    """A worker at *address*. ``refusal``: why it is not asked at all; empty when it is."""

    address: str
    version: str
    places: int
    memory_bytes: int
    tags: tuple[str, ...]
    machine: str
    system: str
    store: str
    environments: Mapping[str, Environment]
    refusal: str = ""

    @classmethod
    def read(cls, address: str, text: str, function: str = "sha256") -> Report:
        """*function*: that digests of libraries are of. Raises StageError for what is no report of this version's."""
        try:
            value: Any = json.loads(text)
            if value["protocol"] != PROTOCOL:
                raise ValueError
            told = value["environments"]
            own = told[""]["distributions"]
            return cls(
                address=address,
                version=str(value["version"]),
                places=int(value["places"]),
                memory_bytes=int(value["memory_bytes"]),
                tags=tuple(map(str, value["tags"])),
                machine=str(value["host"]),
                system=str(value["system"]),
                store=str(value["store"]),
                environments={
                    name: Environment(each["distributions"] or own, each["tools"][function], tuple(each["pools"]))
                    for name, each in told.items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StageError(f"{address} is a worker of another version of winml_dag.") from None

    @property
    def host(self) -> str:
        return self.machine

    @property
    def summary(self) -> str:
        """What it gives, in a line."""
        providers = sorted({name.partition("/")[0] for name in self.providers})
        stages = "1 stage" if self.places == 1 else f"{self.places} stages"
        return f"{stages} at a time{', with ' if providers else ''}{', '.join(providers)}"

    @cached_property
    def providers(self) -> Mapping[str, Environment]:
        """The environments for execution providers, by name."""
        return {name: environment for name, environment in self.environments.items() if name}

    def differs(self, node: Node) -> str:
        if self.refusal:
            return self.refusal
        environment = self.environments.get(node.environment)
        if environment is None:
            return f"has no {node.environment.partition('/')[0]}"
        return difference(node.toolchain, _toolchain_in(environment, node.toolchain))


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs between two toolchains, as the end of a sentence about *there*; empty when nothing does."""
    names = [
        name for name in (*here, *(name for name in there if name not in here)) if here.get(name) != there.get(name)
    ]
    if not names:
        return ""
    told = [f"{name} {_version(there.get(name))}, not {_version(here.get(name))}" for name in names[:_MOST_DIFFERENCES]]
    more = f" and {len(names) - _MOST_DIFFERENCES} more" if len(names) > _MOST_DIFFERENCES else ""
    return f"has {'; '.join(told)}{more}"


def _version(value: str | None) -> str:
    if value is None:
        return "none"
    # Of a library, as much of its digest as tells two apart.
    function, colon, digest = value.partition(":")
    return f"{function}:{digest[:12]}" if colon and len(digest) > 12 else value


def _toolchain_in(environment: Environment, like: Mapping[str, str]) -> Mapping[str, str]:
    place = EpPlace(distributions=environment.distributions, tools=environment.tools)
    return place.toolchain(_packages(like, environment.tools))


def _packages(toolchain: Mapping[str, str], tools: Collection[str]) -> list[str]:
    """The packages that *toolchain* was made from. Of onnxruntime's builds that go by other names, onnxruntime brings
    those that are installed.
    """
    named = [name for name in toolchain if name not in tools and name not in RUNTIME_BUILDS]
    has_runtime = any(name in RUNTIME_BUILDS and name not in tools for name in toolchain)
    return [*named, _RUNTIME] if has_runtime and _RUNTIME not in named else named


def environments_of(reports: Collection[Report]) -> Mapping[str, Environment]:
    """For each environment of theirs the one to plan with, where they differ: that of most places, and of those the
    first by what it is.
    """
    votes: dict[str, dict[str, int]] = {}
    by_text: dict[str, Environment] = {}
    for report in reports:
        for name, environment in report.providers.items():
            text = name + _told(environment)
            by_text[text] = environment
            counted = votes.setdefault(name, {})
            counted[text] = counted.get(text, 0) + report.places
    return {name: by_text[min(counted, key=lambda text: (-counted[text], text))] for name, counted in votes.items()}


def _told(environment: Environment) -> str:
    return json.dumps([sorted(environment.distributions.items()), sorted(environment.tools.items())])
