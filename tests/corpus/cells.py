"""The cells of the corpus: the target and precision of each build of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A target and a precision; ``name`` is used in tables and options."""

    ep: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.ep}/{self.precision}"

    @property
    def is_static(self) -> bool:
        return self.precision in STATIC


# Integer types of weights and activations of each precision, for both targets.
STATIC = {"w8a8": ("QUInt8", "QUInt8"), "w8a16": ("QUInt8", "QUInt16"), "w16a16": ("QInt16", "QUInt16")}
CELLS = (
    *(Cell("cpu", precision) for precision in ("fp32", "fp16", "w8a8", "w8a16", "w16a16", "dynamic", "w4a32")),
    *(Cell("qnn", precision) for precision in ("w8a8", "w8a16", "fp16")),
)


def cell_of(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


# One cell per graph: a failure in one cell usually occurs in the others, and make test has only minutes.
_QUICK = ("cpu/w8a8", "cpu/fp16", "cpu/w8a8", "cpu/w16a16")


def quick_cells(number: int) -> tuple[Cell, ...]:
    """Return the cells of case *number* in the quick part."""
    return (cell_of(_QUICK[number % len(_QUICK)]),)
