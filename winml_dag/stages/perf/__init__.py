"""perf: how long a model takes to load and to run on its target, and how much memory it needs.

This is the declaration; the work is in :mod:`winml_dag.stages.perf.measurement`. A measurement is of one host, so what
tells hosts apart is part of its config, and with it of its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.stages import kinds
from winml_dag.stages.target import RunTarget

REPORT_FILE = "perf.json"
PICTURE_FILE = "histogram.png"


@dataclass(frozen=True)
class PerfFields:
    """How to measure.

    Attributes:
        warmup: inferences that are run before, and not counted.
        iterations: inferences that are measured; None where ``duration`` says when to end.
        duration: seconds after which measuring ends, with the inference that runs then.
        threads: of one operator; None leaves it to onnxruntime, which takes the number of cores.
        batch_size: samples in one inference: how many to give a model that takes any number, and what the first axis of
            one is whose inputs are fixed; None for one.
        sizes: of axes that the model leaves open, by their names; for random inputs, and 1 where nothing is said.
        seed: of random inputs, which are used when there is no ``data`` input; None when there is.
        loads: processes that load the model, each for the first time.
    """

    warmup: int = 10
    iterations: int | None = 100
    duration: float | None = None
    threads: int | None = None
    batch_size: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = 0
    loads: int = 5


@dataclass(frozen=True)
class PerfConfig:
    """``host``: what tells this host from others, by name."""

    perf: PerfFields
    target: RunTarget
    host: Mapping[str, str]


PERF = Stage(
    name="perf",
    version=2,
    work="winml_dag.stages.perf.measurement:run",
    config="winml_dag.stages.perf:PerfConfig",
    inputs={
        "model": InputSlot(kinds.ANY_MODEL),
        "baseline": InputSlot(kinds.ANY_MODEL, required=False),
        "data": InputSlot(frozenset({kinds.CALIBRATION_DATA}), required=False),
    },
    outputs={"report": kinds.PERFORMANCE},
    packages=("onnxruntime", "numpy"),
    alone=True,  # whatever runs beside it would be measured too
)


@dataclass(frozen=True)
class HistogramConfig:
    """``title``: what was measured, in a few words."""

    title: str


# A stage of its own: what draws has no part in the key of a measurement, which would be made anew for it.
HISTOGRAM = Stage(
    name="histogram",
    version=1,
    work="winml_dag.stages.perf.histogram:run",
    config="winml_dag.stages.perf:HistogramConfig",
    inputs={"report": InputSlot(frozenset({kinds.PERFORMANCE}))},
    outputs={"picture": kinds.PICTURE},
    packages=("matplotlib",),
)
