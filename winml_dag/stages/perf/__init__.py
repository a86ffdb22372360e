"""perf: how long a model takes to load and to run on its target, and how much memory it needs.

This is the declaration; the work is in :mod:`winml_dag.stages.perf.measurement`. A measurement is of one host, so the
properties that distinguish hosts are part of its config and of its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.stage import InputSlot, Stage
from winml_dag.ep.availability import RunTarget
from winml_dag.stages import artifact_types

REPORT_FILE = "perf.json"
PICTURE_FILE = "histogram.png"


@dataclass(frozen=True)
class PerfFields:
    """How to measure.

    Attributes:
        warmup: inferences that run before the measured ones.
        iterations: inferences that are measured; None if ``duration`` is given.
        duration: seconds after which measuring ends, with the inference that is running then.
        threads: of one operator; None uses onnxruntime's default, the number of cores.
        batch_size: samples in one inference: how many to give to a model that takes any number, or the size of the
            first axis of a model with fixed inputs; None for one.
        sizes: of axes that the model leaves open, by name; for random inputs, and 1 by default.
        seed: of random inputs, which are used if there is no ``data`` input; None if there is.
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
    """``host``: the properties that distinguish this host from others, by name."""

    perf: PerfFields
    target: RunTarget
    host: Mapping[str, str]


PERF = Stage(
    name="perf",
    version=2,
    work="winml_dag.stages.perf.measurement:run",
    config="winml_dag.stages.perf:PerfConfig",
    inputs={
        "model": InputSlot(artifact_types.ANY_MODEL),
        "baseline": InputSlot(artifact_types.ANY_MODEL, required=False),
        "data": InputSlot(frozenset({artifact_types.CALIBRATION_DATA}), required=False),
    },
    outputs={"report": artifact_types.PERFORMANCE},
    packages=("onnxruntime", "numpy"),
    alone=True,  # a concurrent process would be measured too
)


@dataclass(frozen=True)
class HistogramConfig:
    """``title``: a short description of what was measured."""

    title: str


# A separate stage: the drawing code has no part in the key of a measurement, which would otherwise be repeated for it.
HISTOGRAM = Stage(
    name="histogram",
    version=1,
    work="winml_dag.stages.perf.histogram:run",
    config="winml_dag.stages.perf:HistogramConfig",
    inputs={"report": InputSlot(frozenset({artifact_types.PERFORMANCE}))},
    outputs={"picture": artifact_types.PICTURE},
    packages=("matplotlib",),
)
