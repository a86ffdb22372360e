"""One row of a report: all data on one build, regardless of where it was collected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from winml_dag.pipeline.sweep.result import CellStatus, Failure, GoalResult, SharedGraph, StageRun

FORMAT = 2


@dataclass(frozen=True)
class Size:
    """Sizes on disk, in bytes.

    ``model`` is what is shipped (model, weights and binary, each file once), of which ``sidecar`` is next to the ONNX
    file. ``folder`` is the whole output folder, with files of equal content counted once.
    """

    model: int
    sidecar: int
    folder: int
    embeds_binary: bool = False


@dataclass(frozen=True)
class Latency:
    """The measurements of perf, in milliseconds.

    ``load_seconds`` is the time to create the session. ``emulated``: the result says nothing about the device.
    ``measured`` is ``live`` or ``cached``. ``host``: the machine, as in its cache key. ``waited_share``: the share of
    time that a thread of the model waited for a processor; None if unknown.
    """

    p50: float
    p90: float
    p99: float
    inferences: int
    warmup: int
    measured: str
    made_at: str
    load_seconds: float | None = None
    peak_memory_bytes: int | None = None
    emulated: bool = False
    host: Mapping[str, str] = field(default_factory=dict)
    waited_share: float | None = None


@dataclass(frozen=True)
class Quality:
    """The findings of validate: the model compared with its float model, on ``samples``.

    ``bound`` is the threshold; ``passed`` is None without one.
    """

    cosine: float | None
    cosine_min: float | None
    sqnr_db: float | None
    max_abs_error: float | None
    samples: int
    data: str
    bound: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class Accuracy:
    """The measurements of eval.

    ``drop`` is how much worse than ``reference``, in the units of ``metric``, positive when worse in either direction
    of the metric. ``interval`` is the 95 % confidence interval of the value.
    """

    metric: str
    value: float
    higher_is_better: bool
    samples: int
    measured: str
    made_at: str
    reference: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    significant: bool | None = None
    bound: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a compiled model run: ``partitions`` of the provider, ``cpu_nodes`` per operator."""

    partitions: int
    cpu_nodes: Mapping[str, int]

    @property
    def on_cpu(self) -> int:
        return sum(self.cpu_nodes.values())


@dataclass(frozen=True)
class Row:
    """One build: its model, target, outcome and measurements.

    A field that is None was not measured; ``missing`` gives the reason, by name of the field. ``unmeasured`` are the
    fields whose measurement was requested and failed.

    Attributes:
        name: unique in the report.
        values: label per axis of the sweep; empty outside a sweep.
        model, precision, ep, device: names for people.
        reached: the id of the last stage with a result.
        folder: its path, as the user would write it.
        nodes_quantized, nodes_skipped: None for a model that is not quantized; skipped_reasons: counts per reason.
        seconds: time spent on it in the reported run; ``made_in_seconds``: time of all its stages when they ran,
            ``saved_seconds``: the part of that found in the cache.
        versions: of the tools that made it, by name. digest: of the model that is shipped.
        dominated_by: the row that is at least as good in size, latency and quality, and better in one; dominated_why
            says in which, such as ``smaller and faster at equal cosine``.
        components: of a composite model, whose metrics are sums (size) or those of the worst component (quality).
    """

    name: str
    values: Mapping[str, str]
    model: str
    precision: str
    ep: str
    device: str
    status: CellStatus
    why: str = ""
    task: str | None = None
    reached: str | None = None
    folder: str = ""
    stages: tuple[StageRun, ...] = ()
    failure: Failure | None = None
    size: Size | None = None
    latency: Latency | None = None
    quality: Quality | None = None
    accuracy: Accuracy | None = None
    placement: Placement | None = None
    nodes_quantized: int | None = None
    nodes_skipped: int | None = None
    skipped_reasons: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    made_in_seconds: float = 0.0
    saved_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    notices: tuple[str, ...] = ()
    command: str = ""
    trial_of: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    dominated_by: str | None = None
    dominated_why: str = ""
    components: tuple[str, ...] = ()
    winner_of: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """``qnn npu``; only one word for the CPU."""
        return " ".join(dict.fromkeys(word for word in (self.ep, self.device) if word)) or "-"

    @property
    def is_there(self) -> bool:
        return self.status in (CellStatus.BUILT, CellStatus.UP_TO_DATE)

    @property
    def without_result(self) -> str:
        """Its status with the reason, to follow its name, such as ``refused: it needs data``."""
        if self.failure is not None:
            return self.failure.sentence
        return f"{self.status}: {self.why}" if self.why else str(self.status)

    def value(self, path: str) -> Any:
        """Return the field at *path*, such as ``latency.p50``; None in a part that is missing."""
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name, None)
        return found


@dataclass(frozen=True)
class Report:
    """All rows of one or several folders.

    ``subjects``: the folders they come from. ``host``: where the report was made. ``notices``: what could not be read
    or judged. ``format``: version of its JSON.
    """

    name: str
    subjects: tuple[str, ...]
    made_at: str
    rows: tuple[Row, ...]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    graph: SharedGraph = field(default_factory=SharedGraph)
    goals: tuple[GoalResult, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    elapsed_seconds: float = 0.0
    began_at: str = ""
    made_by: str = ""
    notices: tuple[str, ...] = ()
    format: int = FORMAT
