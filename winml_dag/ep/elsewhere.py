"""Execution providers on remote machines: what planning has to know of them.

Like the environments that the user configures, these apply to the whole process, as long as those machines are
connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Environment:
    """An environment of a remote machine.

    Attributes:
        distributions: installed packages with versions; names are normalized.
        tools: what else is in the keys of work for its target: packages that provide the execution provider, digests of
            its libraries, and possibly the processor or devices.
        pools: devices that it reserves.
    """

    distributions: Mapping[str, str]
    tools: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()


_known: dict[str, Environment] = {}


def environment_name(ep: str, device: str) -> str:
    """Return the name of the environment for a target, the same on every machine; *ep* is the alias: ``qnn/npu``."""
    return f"{ep}/{device}"


def environment_elsewhere(name: str) -> Environment | None:
    """Return the environment of that name, if some machine has it."""
    return _known.get(name)


def is_elsewhere(ep: str) -> bool:
    """Return whether some machine has the provider with the alias *ep*, for any device."""
    return any(name.startswith(f"{ep}/") for name in _known)


@contextmanager
def knowing(environments: Mapping[str, Environment]) -> Iterator[None]:
    """Make *environments* available in addition to those of this machine, inside the block."""
    before = dict(_known)
    _known.update(environments)
    try:
        yield
    finally:
        _known.clear()
        _known.update(before)
