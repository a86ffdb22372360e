"""What is said of a case: whether the provider takes it, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """``PARTIAL``: it runs, but not, or not rightly, where it was meant to: on the CPU, or with other numbers."""

    SUPPORTED = "supported"
    PARTIAL = "partial"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt.

    Attributes:
        compiled: whether the provider took the operator.
        ran: whether the model gave a result, wherever it was computed.
        agrees: whether that is the result it should be.
        words: what the provider said about what did not go; empty otherwise.
    """

    compiled: bool
    ran: bool
    agrees: bool = True
    words: str = ""

    @property
    def level(self) -> Level:
        if not self.ran:
            return Level.UNSUPPORTED
        return Level.SUPPORTED if self.compiled and self.agrees else Level.PARTIAL


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason``: one sentence on how it is known. ``compiled`` and ``ran`` are None where nothing was measured; a
    level is UNKNOWN also where too little was.
    """

    level: Level
    reason: str
    compiled: bool | None = None
    ran: bool | None = None
