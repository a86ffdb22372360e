"""Which remotes there are and what may be done with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """What may be done with a remote. ``OFF``: nothing, but cache keys are the same as with it."""

    READ = "read"
    READ_WRITE = "read-write"
    OFF = "off"


@dataclass(frozen=True)
class SigningKey:
    """A secret of at least 32 bytes that signs records. Signatures name it by its *id*, which is not secret."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class TierSettings:
    """One remote.

    Attributes:
        url: ``http(s)://``, ``s3://``, ``az://``, ``gs://`` or ``file://``; without the namespace.
        mode: what may be done with it.
        namespace: what is shared under one trust, such as ``main`` or ``pull/12``: a path below *url*, and part of what
            is signed. Empty: directly at *url*.
        trusted: ids of the keys that may have signed a record from here; None: any that we have.
        is_back_filled: whether what a farther remote had is put here too, if it may be written.
        gets_token: whether the token of this machine is sent there; not, where only a project has named it.
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
        levels: asked in this order.
        keys: the first signs, all are accepted.
        accept_unsigned: believe records that are not signed, for a folder that only its owner writes to.
    """

    levels: tuple[TierSettings, ...]
    keys: tuple[SigningKey, ...] = ()
    accept_unsigned: bool = False
