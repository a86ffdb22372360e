"""How much worse a build may become before a comparison calls it a regression: ``latency=+10%``, ``cosine=-0.001``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from winml_dag.errors import UsageError
from winml_dag.recipe.spelling import known_instead
from winml_dag.report.compare import Bound
from winml_dag.report.measures import MEASURES

# Bytes hardly change by themselves, cosines and accuracies not at all; a place that moves to the CPU always matters.
# Medians of latency do change: the same model measured again and again on one machine stays within this.
DEFAULTS = (
    "latency=+10%",
    "size=+1%",
    "peak_memory=+10%",
    "cosine=-0.001",
    "accuracy=-0.005",
    "partitions=+0",
    "cpu_nodes=+0",
)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9]+(\.[0-9]+)?)(?P<percent>%?)")
_OFF = "off"


def bounds_of(texts: Sequence[str]) -> tuple[Bound, ...]:
    """The default bounds, with those of *texts* in their place; ``latency=off`` takes one away.

    Raises:
        UsageError: for a measure that there is not, and for what is no bound on it.
    """
    found = {(bound := _bound(text)).measure: bound for text in DEFAULTS}
    for text in texts:
        measure, equals, value = (part.strip() for part in text.partition("="))
        if equals and value == _OFF and measure in MEASURES:
            found.pop(measure, None)
        else:
            found[measure] = _bound(text)
    return tuple(bound for bound in found.values())


def _bound(text: str) -> Bound:
    name, equals, value = (part.strip() for part in text.partition("="))
    if name not in MEASURES:
        raise UsageError(f"--bound {text}: there is no measure {name!r}{known_instead(name, MEASURES)}")
    measure = MEASURES[name]
    worse = "-" if measure.higher_is_better else "+"
    read = _NUMBER.fullmatch(value)
    if not equals or read is None:
        raise UsageError(
            f"--bound {text}: that is no bound.",
            advice=f"Write how much worse it may become: {name}={worse}5%, {name}={worse}0.01, or {name}=off.",
        )
    if read["sign"] not in ("", worse):
        better = "higher" if measure.higher_is_better else "lower"
        raise UsageError(
            f"--bound {text}: {name} is better when it is {better}, so {value} would be an improvement.",
            advice=f"Write {name}={worse}{value.lstrip('+-')}.",
        )
    is_relative = read["percent"] == "%"
    allowed = float(read["number"]) / (100 if is_relative else 1)
    return Bound(name, allowed, is_relative, f"{worse}{read['number']}{read['percent']}")
