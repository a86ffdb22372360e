"""Execution providers that are not on this machine, but on one that works for us: what planning has to know of them.

Like the environments that the user names, these hold for the whole process, for as long as there is a connection to
those machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Environment:
    """An environment of another machine.

    Attributes:
        distributions: what is installed there, with versions; names are normalised.
        tools: what besides is in the keys of work for its target: packages that bring the provider, digests of its
            libraries, and maybe the processor or devices.
        pools: devices that it takes.
    """

    distributions: Mapping[str, str]
    tools: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ()


_known: dict[str, Environment] = {}


def environment_name(ep: str, device: str) -> str:
    """What the environment for a target is called on every machine, *ep* being the alias: ``qnn/npu``."""
    return f"{ep}/{device}"


def environment_elsewhere(name: str) -> Environment | None:
    """The environment of that name, where some machine has it."""
    return _known.get(name)


def is_elsewhere(ep: str) -> bool:
    """Whether some machine has the provider with the alias *ep*, for any device."""
    return any(name.startswith(f"{ep}/") for name in _known)


@contextmanager
def knowing(environments: Mapping[str, Environment]) -> Iterator[None]:
    """For the block, *environments* are there besides those of this machine."""
    before = dict(_known)
    _known.update(environments)
    try:
        yield
    finally:
        _known.clear()
        _known.update(before)
