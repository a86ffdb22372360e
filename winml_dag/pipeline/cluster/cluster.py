"""The cluster of a build: one that there is, by the address of its scheduler, or workers on this machine that are
started for the build and end with it.

With those, nothing listens that anybody else could use: dask runs what it is sent, so the connections to them are
encrypted, with a key that is made for this one run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from winml_dag import __version__
from winml_dag.canonical import JsonValue
from winml_dag.engine.admission import UNLIMITED, Capacity
from winml_dag.engine.cluster.fleet import Fleet
from winml_dag.engine.cluster.inputs import Inputs
from winml_dag.engine.cluster.runs import ClusterRuns, Ordering
from winml_dag.engine.execute import LOG_FILE, log_tail, python_path
from winml_dag.engine.graph import Graph
from winml_dag.engine.process import ProcessGroup
from winml_dag.engine.run import Runner
from winml_dag.ep.availability import installed
from winml_dag.ep.elsewhere import knowing
from winml_dag.ep.registry import find_ep
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.cluster.ownworker import OwnWorker
from winml_dag.pipeline.cluster.remotes import remotes_json, require_shared
from winml_dag.pipeline.cluster.report import Offer, Report, environments_of, folder_identity
from winml_dag.pipeline.madeby import MADE_BY
from winml_dag.pipeline.opened import settled_remotes
from winml_dag.pipeline.remoteoptions import RemoteOptions
from winml_dag.store.local import LocalStore

if TYPE_CHECKING:
    from winml_dag.pipeline.cluster.dasklink import DaskLink
    from winml_dag.store.remote.settings import RemoteSettings

_EXTRA = "pip install winml_dag[cluster]"
# For a worker on this machine, most of it for imports; on a machine that is busy those take long.
_STARTING_SECONDS = 120


@dataclass(frozen=True)
class ClusterOptions:
    """*scheduler* None: *workers* on this machine, started for the build. *tags*: only workers that have all of these.
    *places* and *memory_bytes*: of this machine, for what runs here.
    """

    scheduler: str | None
    workers: int
    tags: tuple[str, ...]
    places: int
    memory_bytes: int | None


class Cluster:
    """The workers of a build, for all of its graphs; see :func:`open_cluster`."""

    def __init__(
        self, link: DaskLink, topic: str, options: ClusterOptions, store: Path, settings: RemoteSettings | None
    ):
        self._link = link
        self._topic = topic
        self._options = options
        self._store = folder_identity(store)
        self._settings = settings
        self._fleet = Fleet(Capacity.of_this_machine(options.places, options.memory_bytes))
        # Addresses of the workers that have our store.
        self._own: set[str] = set()
        self._runs: ClusterRuns | None = None
        link.follow(self._changed)
        self._changed()

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    def reports(self) -> tuple[Report, ...]:
        """All workers of ours, those that are not asked too."""
        return tuple(self._report(address, text) for address, text in sorted(self._link.reports().items()))

    def runs(
        self,
        runner: Runner,
        graph: Graph,
        store: LocalStore,
        scratch: Path,
        *,
        timeout_seconds: float | None,
        rebuild: bool,
    ) -> ClusterRuns:
        """The runs of *graph*; *runner* does what cannot leave this machine."""
        ordering = Ordering(self._topic, scratch, store.failures, timeout_seconds, rebuild, self._remotes_for)
        inputs = Inputs(graph, store, scratch, MADE_BY)
        self._runs = ClusterRuns(runner, inputs, store, self._fleet, self._link, ordering)
        return self._runs

    def _remotes_for(self, address: str) -> JsonValue:
        """None for a worker that has our store."""
        return None if address in self._own or self._settings is None else remotes_json(self._settings)

    def _changed(self) -> None:
        reports = self.reports()
        # Not looked for anew with each order: to read what a thousand workers say of themselves takes 60 ms.
        self._own = {report.address for report in reports if report.store == self._store}
        self._fleet.staff(reports)
        if self._runs is not None:
            self._runs.nudge()

    def _report(self, address: str, text: str) -> Report:
        try:
            report = Report.read(address, text, "xxh3-128" if self._settings is None else "sha256")
        except StageError as error:
            return Report(address, "", 1, 1, (), address, "", "", {}, f"is of another version: {error.message}")
        return replace(report, refusal=self._refusal(report))

    def _refusal(self, report: Report) -> str:
        if report.version != __version__:
            return f"has winml_dag {report.version}, not {__version__}"
        if lacking := [tag for tag in self._options.tags if tag not in report.tags]:
            return f"has no tag {', '.join(lacking)}"
        if report.store != self._store and self._settings is None:
            return "has a cache folder of its own, and there is no remote"
        return ""


@contextmanager
def open_cluster(
    options: ClusterOptions,
    store: Path,
    remote: RemoteOptions,
    tell: Callable[[str], None],
) -> Iterator[Cluster]:
    """The cluster that *options* mean, for builds with the cache folder *store* and the remotes of *remote*. While it
    is open, planning knows of what its workers have. *tell* gets a sentence about it.

    Raises:
        UsageError: when there is no scheduler, or workers could not get at inputs.
    """
    _require_dask()
    LocalStore(store)  # makes the folder, by which workers are recognised that use it too
    from winml_dag.pipeline.cluster.dasklink import DaskLink, connect

    settings = settled_remotes(remote)[0] if remote.is_configured or remote.mode is not None else None
    topic = f"winml-dag/{uuid4().hex}"
    with ExitStack() as closing:
        if options.scheduler is None:
            client = closing.enter_context(_workers_here(options, store))
        else:
            client = connect(options.scheduler)
            closing.callback(client.close)
        cluster = Cluster(DaskLink(client, topic), topic, options, store, settings)
        reports = cluster.reports()
        used = [report for report in reports if not report.refusal]
        if not used:
            _refuse(options, reports, settings)
        tell(_sentence(used))
        elsewhere = {
            name: environment
            for name, environment in environments_of(used).items()
            if not installed(find_ep(name.partition("/")[0]))
        }
        closing.enter_context(knowing(elsewhere))
        yield cluster


def _sentence(used: Sequence[Report]) -> str:
    places = sum(report.places for report in used)
    alias = sorted({name.partition("/")[0] for report in used for name in report.providers})
    providers = f", with {', '.join(alias)}" if alias else ""
    workers = "1 worker" if len(used) == 1 else f"{len(used)} workers"
    stages = "1 stage" if places == 1 else f"{places} stages"
    return f"{workers}, {stages} at a time{providers}"


def _refuse(options: ClusterOptions, reports: Sequence[Report], settings: RemoteSettings | None) -> None:
    where = options.scheduler or "this machine"
    if not reports:
        raise UsageError(
            f"There is no worker at {where}.", advice=f"Start one on each machine with: winml-dag worker {where}"
        )
    if settings is None and any("no remote" in report.refusal for report in reports):
        require_shared(settings)
    told = "; ".join(f"{report.address} {report.refusal}" for report in reports)
    raise UsageError(f"No worker at {where} can be used: {told}.")


def _require_dask() -> None:
    import importlib.util

    if importlib.util.find_spec("distributed") is None:
        raise UsageError("--executor dask needs dask's distributed, which is not installed.", advice=_EXTRA)


@contextmanager
def _workers_here(options: ClusterOptions, store: Path) -> Iterator[Any]:
    """Workers on this machine with the cache folder *store*, and a client of their scheduler."""
    from distributed import Scheduler, Security, SpecCluster

    from winml_dag.pipeline.cluster.dasklink import connect, silence

    silence()
    try:
        security = Security.temporary()
    except ImportError:
        raise UsageError("Workers on this machine need cryptography, for what they are told.", advice=_EXTRA) from None
    # Even without a dashboard there is an HTTP server: at any port, or dask warns of whoever has its usual one.
    addresses = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": Scheduler, "options": {"protocol": "tls", **addresses, "security": security}}
    with ExitStack() as closing:
        folder = closing.enter_context(LocalStore(store).scratch.open())
        cluster = closing.enter_context(
            SpecCluster(workers={}, scheduler=scheduler, security=security, silence_logs=False)
        )
        client = connect(cluster.scheduler_address, security)
        closing.callback(client.close)
        offer = Offer.of_this_machine(max(1, options.places // options.workers), _share(options))
        for number in range(options.workers):
            told = OwnWorker(cluster.scheduler_address, str(store), offer.places, offer.memory_bytes, _tls(security))
            closing.callback(_start(told, folder / f"worker-{number}").reap)
        try:
            client.wait_for_workers(options.workers, timeout=_STARTING_SECONDS)
        except TimeoutError:
            said = [line for log in sorted(folder.glob("worker-*/log.txt")) for line in log_tail(log, 3)]
            raise StageError(f"Workers on this machine have not begun: {' '.join(said)}") from None
        yield client


def _share(options: ClusterOptions) -> int:
    """The memory of one of several workers on this machine."""
    whole = Capacity.of_this_machine(1, options.memory_bytes).memory_bytes
    return whole if whole == UNLIMITED else whole // options.workers


def _start(told: OwnWorker, folder: Path) -> ProcessGroup:
    folder.mkdir()
    group = ProcessGroup(
        [sys.executable, "-P", "-m", "winml_dag.pipeline.cluster.ownworker"],
        folder=folder,
        environment={**os.environ, **python_path()},
        log=folder / LOG_FILE,
    )
    # By a pipe: neither the arguments nor the environment of a process are as private as a key has to be.
    group.tell(told.to_text())
    return group


def _tls(security: Any) -> Mapping[str, str]:
    """What a worker needs of *security*, in the words of dask."""
    names = ("tls_ca_file", "tls_worker_key", "tls_worker_cert", "tls_client_key", "tls_client_cert")
    return {name: getattr(security, name) for name in names}
