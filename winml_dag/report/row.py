"""One row of a report: all that there is to say of one build among others, whatever it was gathered from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.pipeline.sweep.result import CellStatus, Failure, GoalResult, SharedGraph, StageRun

FORMAT = 1


@dataclass(frozen=True)
class Size:
    """On disk, in bytes: ``model`` is what is shipped (model, weights and binary, each file once), of which ``sidecar``
    are beside the ONNX file; ``folder`` is the whole output folder, files of equal content once.
    """

    model: int
    sidecar: int
    folder: int
    embeds_binary: bool = False


@dataclass(frozen=True)
class Latency:
    """What perf measured, in milliseconds; ``load_seconds`` is creating the session. ``emulated``: it says nothing of
    the device. ``measured`` is ``live`` or ``cached``. ``host``: the machine, as its key in the cache has it.
    ``waited_share``: for how much of the time a thread of the model waited for a processor; None where nobody tells.
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
    """What validate found: the model against its float one, on ``samples``. ``bound`` is what it was held to;
    ``passed`` is None where nothing was.
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
    """What eval measured. ``drop`` is how much worse than ``reference``, in the units of ``metric``, positive when
    worse whichever way the metric goes; ``interval`` holds the value in 95 of 100 cases.
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
    """Where the nodes of a compiled model run: ``partitions`` of the provider, ``cpu_nodes`` by operator."""

    partitions: int
    cpu_nodes: Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """One build: of which model, for what, what became of it, and what it is like. A part that is None was not
    measured; ``missing`` says why, by the name of the part; ``unmeasured`` are those that were to be and could not.

    Attributes:
        name: unique in the report.
        values: by axis of the sweep, the label; empty outside of one.
        model, precision, ep, device: as people call them.
        reached: the id of the last stage with a result.
        folder: where it lies, as the user would write it.
        nodes_quantized, nodes_skipped: None for a model that is not quantized; skipped_reasons by reason.
        seconds: spent on it in the run that the report is of; ``made_in_seconds`` what all its stages took when they
            were made, ``saved_seconds`` what of that was found.
        versions: of the tools that made it, by name. digest: of the model that is shipped.
        dominated_by: the row that is at least as good in size, latency and quality, and better in one; dominated_why
            says in which, such as ``smaller and faster at equal cosine``.
        components: of a composite model; its figures are then sums (size) or those of the worst one (quality).
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


@dataclass(frozen=True)
class Report:
    """All rows of one or several folders. ``subjects``: the folders it was gathered from; ``host`` where it ran;
    ``notices``: what could not be read or judged. ``format``: of its JSON.
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
