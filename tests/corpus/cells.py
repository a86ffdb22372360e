"""The cells of the corpus: what every model is built for, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A target and a precision; ``name`` is what tables and options call them."""

    ep: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.ep}/{self.precision}"

    @property
    def is_static(self) -> bool:
        return self.precision in STATIC


# Integer types of weights and activations, as the precisions mean them for both targets.
STATIC = {"w8a8": ("QUInt8", "QUInt8"), "w8a16": ("QUInt8", "QUInt16"), "w16a16": ("QInt16", "QUInt16")}
CELLS = (
    *(Cell("cpu", precision) for precision in ("fp32", "fp16", "w8a8", "w8a16", "w16a16", "dynamic", "w4a32")),
    *(Cell("qnn", precision) for precision in ("w8a8", "w8a16", "fp16")),
)


def cell_of(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


# One cell a graph: what fails in one of them mostly fails in the others, and make test has minutes.
_QUICK = ("cpu/w8a8", "cpu/fp16", "cpu/w8a8", "cpu/w16a16")


def quick_cells(number: int) -> tuple[Cell, ...]:
    """The cells of the case of this *number* in the quick part."""
    return (cell_of(_QUICK[number % len(_QUICK)]),)
