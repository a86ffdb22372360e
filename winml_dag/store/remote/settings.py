"""Which remotes there are and what may be done with them, settled before anything is asked of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """What may be done with a remote. ``OFF``: nothing, though keys are made as with it."""

    READ = "read"
    READ_WRITE = "read-write"
    OFF = "off"


@dataclass(frozen=True)
class SigningKey:
    """A secret that records are signed with, at least 32 bytes; *id* is what a signature calls it, and no secret."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class LevelSettings:
    """One remote.

    Attributes:
        url: ``http(s)://``, ``s3://``, ``az://``, ``gs://`` or ``file://``; without the namespace.
        mode: what may be done with it.
        namespace: what is shared under one trust, such as ``main`` or ``pull/12``; the path below *url* that everything
            of it lies under, and part of what is signed. Empty: directly at *url*.
        trusted: ids of the keys that a record from here may be signed with; None: any that we have.
        is_back_filled: whether what a farther level had is put here too, where that may be.
        gets_token: whether it is told the token of this machine; not, where only a project has named it.
    """

    url: str
    mode: Mode = Mode.READ
    namespace: str = ""
    trusted: frozenset[str] | None = None
    is_back_filled: bool = True
    gets_token: bool = False


@dataclass(frozen=True)
class RemoteSettings:
    """All remotes, the nearest first, and what records are signed with.

    Attributes:
        levels: asked in this order; what is found in one is put into those before it that may be written.
        keys: the first signs, all are accepted.
        accept_unsigned: believe what nobody has signed: for a folder that only its owner writes to.
    """

    levels: tuple[LevelSettings, ...]
    keys: tuple[SigningKey, ...] = ()
    accept_unsigned: bool = False
