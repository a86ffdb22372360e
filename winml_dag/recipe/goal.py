"""What a sweep is for: which of its cells is best, under which bounds, and how a better one is searched for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from winml_dag.recipe.fields import Count, ListOf, Section, Text, problem
from winml_dag.recipe.spelling import known_instead


@dataclass(frozen=True)
class Measure:
    """Something that is known of a cell as a number.

    Attributes:
        unit: of the number; by the units of ``units`` others may be written.
        more_is_better: which way a bound on it goes.
        lowest, highest: what it can be; None without an end.
        needs: what has to be in ``measure:`` for it; empty for what every build tells.
        of_quality: whether a higher precision makes it better.
    """

    unit: str = ""
    more_is_better: bool = True
    lowest: float | None = None
    highest: float | None = None
    needs: str = ""
    of_quality: bool = True
    units: Mapping[str, float] = field(default_factory=dict)


_BYTES = MappingProxyType(
    {"B": 1, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
)

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "cosine": Measure(lowest=-1, highest=1),
        "cosine_min": Measure(lowest=-1, highest=1),
        "sqnr_db": Measure("dB", units={"dB": 1}, highest=1000),
        "max_abs_error": Measure(more_is_better=False, lowest=0),
        "accuracy": Measure(needs="eval"),
        "accuracy_drop": Measure(more_is_better=False, needs="eval"),
        "size": Measure("bytes", more_is_better=False, lowest=0, of_quality=False, units=_BYTES),
        "latency": Measure(
            "ms",
            more_is_better=False,
            lowest=0,
            needs="perf",
            of_quality=False,
            units={"us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1e3},
        ),
        "peak_memory": Measure("bytes", more_is_better=False, lowest=0, needs="perf", of_quality=False, units=_BYTES),
    }
)

_BOUND = re.compile(r"(?P<sign>[<>]=?|==?)?\s*(?P<number>-?[0-9.]+(?:e-?[0-9]+)?)\s*(?P<unit>[A-Za-zµ]*)")


@dataclass(frozen=True)
class Bound:
    """``at_least`` or at most ``value``, in the unit of the ``measure``. ``text``: as it was written."""

    measure: str
    at_least: bool
    value: float
    text: str

    def holds(self, found: float) -> bool:
        return found >= self.value if self.at_least else found <= self.value


def parse_bound(name: str, text: str) -> Bound:
    """The bound that *text*, such as ``>=0.99`` or ``<= 20 MB``, puts on the measure *name*, which there is.

    Raises:
        PydanticCustomError: for anything else, and for a bound that nothing or everything keeps.
    """
    measure = MEASURES[name]
    sign = ">=" if measure.more_is_better else "<="
    example = f'"{sign}{_EXAMPLES[name]}"'
    found = _BOUND.fullmatch(text.strip())
    if found is None or found["sign"] not in (">=", "<="):
        raise problem(f"expected a bound such as {example}, got {text!r}")
    if found["sign"] != sign:
        better = "more" if measure.more_is_better else "less"
        raise problem(f"{better} is better of this measure, so a bound is written with {sign}, such as {example}")
    unit = found["unit"]
    if unit and unit not in measure.units:
        known = f"write {', '.join(measure.units)}, or none" if measure.units else "it has none"
        raise problem(f"{unit!r} is no unit of this measure; {known}")
    try:
        value = float(found["number"]) * measure.units.get(unit, 1)
    except ValueError:
        raise problem(f"expected a bound such as {example}, got {text!r}") from None
    end, other = (measure.highest, measure.lowest) if measure.more_is_better else (measure.lowest, measure.highest)
    if end is not None and (value > end if measure.more_is_better else value < end):
        raise problem(f"no model keeps {text!r}: it is {end:g} at best")
    if other is not None and (value <= other if measure.more_is_better else value >= other):
        raise problem(f"every model keeps {text!r}: it is {other:g} at worst")
    return Bound(name, measure.more_is_better, value, text)


_EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "cosine": "0.99",
        "cosine_min": "0.95",
        "sqnr_db": "20",
        "max_abs_error": "0.1",
        "accuracy": "0.8",
        "accuracy_drop": "0.01",
        "size": "20MB",
        "latency": "5ms",
        "peak_memory": "500MB",
    }
)


def _check_measure(name: str) -> str:
    if name not in MEASURES:
        raise problem(f"unknown measure{known_instead(name, MEASURES)}")
    return name


def _check_bound_text(value: object) -> object:
    if not isinstance(value, str):
        raise problem('expected a bound in quotes, such as ">=0.99" or "<=20MB"')
    return value


class Goal(Section):
    """The winner among cells that differ only in what is chosen. ``subject_to``: bounds such as ``">=0.99"`` by the
    name of a measure. ``per``: the axes that a winner is named for each value of; None: those that change the model or
    the target. ``folder``: a template of the folder that the winner is put into; None: ``best/``, and a folder for each
    value of these axes.
    """

    minimize: Literal["latency", "size"]
    subject_to: Mapping[
        Annotated[str, AfterValidator(_check_measure)], Annotated[str, BeforeValidator(_check_bound_text)]
    ] = Field(default_factory=dict)
    per: ListOf[Text] | None = None
    folder: Text | None = None

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for name, text in self.subject_to.items():
            try:
                parse_bound(name, text)
            except PydanticCustomError as error:
                raise problem(str(error), at=("subject_to", name)) from None
        return self

    @property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(parse_bound(name, text) for name, text in self.subject_to.items())

    @property
    def measures(self) -> tuple[str, ...]:
        """What it goes by: what is minimized, then what is bounded."""
        return tuple(dict.fromkeys((self.minimize, *self.subject_to)))


class Search(Section):
    """Per-layer mixed precision where a cell of low precision misses the bounds on quality: its worst nodes are kept in
    a higher one. ``bisect`` looks for the fewest such nodes, ``all`` tries every number of them.

    ``keep``: in what they are kept; ``auto``: in 16 bits where the provider mixes widths, else in float.
    ``most_trials``: for each cell that is searched, None for as many as it takes. ``nodes_at_most``: that are kept;
    None for all but one.
    """

    method: Literal["bisect", "all"] = "bisect"
    keep: Literal["auto", "16-bit", "float"] = "auto"
    most_trials: Count | None = None
    nodes_at_most: Count | None = None
