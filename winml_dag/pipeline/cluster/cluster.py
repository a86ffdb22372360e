"""The cluster of a build: an existing one, by the address of its scheduler, or workers started on this machine.

Workers on this machine are started for the build and end with it. Nobody else can use them: since dask executes what it
is sent, their connections are encrypted, with a key that is generated for each run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Scheduler, Security, SpecCluster
from pydantic import ValidationError

from winml_dag import __version__
from winml_dag.engine.exchange import LOG_FILE, log_tail
from winml_dag.engine.graph import Graph
from winml_dag.engine.process import ProcessGroup, python_path
from winml_dag.engine.resources import UNLIMITED, Capacity
from winml_dag.engine.run import Runner
from winml_dag.ep.availability import installed, knowing
from winml_dag.ep.registry import find_ep
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.cluster.report import NO_REPORT, Report, Worker, environments_of, folder_identity
from winml_dag.pipeline.cluster.runs import ClusterRuns, Inputs
from winml_dag.pipeline.cluster.worker import silence
from winml_dag.pipeline.cluster.workers import ClusterAdmission, Workers, connect
from winml_dag.pipeline.remotes import allowed_remotes
from winml_dag.pipeline.request import RemoteOptions
from winml_dag.store.quantities import counted
from winml_dag.store.remote.settings import Mode, RemoteSettings
from winml_dag.store.store import Store

# Time for workers on this machine to start, most of it for imports, which take long on a busy machine.
_STARTING_SECONDS = 120


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a cluster.

    *scheduler* None: start *workers* on this machine for the build. *tags*: use only workers that have all of these.
    *places* and *memory_bytes*: slots and memory of this machine, for local runs.
    """

    scheduler: str | None
    workers: int
    tags: tuple[str, ...]
    places: int
    memory_bytes: int | None


class Cluster:
    """The workers of a build, for all of its graphs; see :func:`open_cluster`."""

    def __init__(self, client: Any, options: ClusterOptions, store: Path, settings: RemoteSettings | None) -> None:
        self._options = options
        self._store = folder_identity(store)
        self._function = Store(store).function
        self._settings = settings
        self.workers = Workers(client, self._read)
        here = Capacity.of_this_machine(options.places, options.memory_bytes)
        self.admission = ClusterAdmission(here, self.workers)

    def runs(
        self,
        runner: Runner,
        graph: Graph,
        store: Store,
        scratch: Path,
        *,
        timeout_seconds: float | None,
        rebuild: bool,
    ) -> ClusterRuns:
        """The runs of *graph*; *runner* does what cannot leave this machine."""
        return ClusterRuns(
            runner,
            Inputs(graph, store, scratch),
            store,
            self.workers,
            self.admission,
            () if self._settings is None else self._settings.tiers,
            timeout_seconds=timeout_seconds,
            rebuild=rebuild,
        )

    def _read(self, address: str, text: str) -> Worker:
        """The worker at *address* with its report."""
        function = self._function
        try:
            report = Report.model_validate_json(text)
        except ValidationError:
            return Worker(address, NO_REPORT, function, False, "is of another version of winml_dag")
        refusal = ""
        shares_store = report.store == self._store
        if report.version != __version__:
            refusal = f"has winml_dag {report.version}, not {__version__}"
        elif lacking := [tag for tag in self._options.tags if tag not in report.tags]:
            refusal = f"has no tag {', '.join(lacking)}"
        elif not shares_store and self._settings is None:
            refusal = "has a cache folder of its own, and there is no remote"
        return Worker(address, report, function, shares_store, refusal)


@contextmanager
def open_cluster(
    options: ClusterOptions,
    store: Path,
    remote: RemoteOptions,
    report: Callable[[str], None],
) -> Iterator[Cluster]:
    """The cluster for *options*, for builds with the cache folder *store* and the remotes of *remote*.

    While it is open, planning includes the environments of its workers. *report* is called with a sentence about it.

    Raises:
        UsageError: when there is no scheduler, or workers could not access inputs.
    """
    settings = allowed_remotes(remote)[0] if remote.in_use else None
    # Create it if necessary: it identifies workers that use the same store.
    Store(store, function=None if settings is None else "sha256")
    with ExitStack() as closing:
        if options.scheduler is None:
            client = closing.enter_context(_workers_here(options, store))
        else:
            client = connect(options.scheduler)
            closing.callback(client.close)
        cluster = Cluster(client, options, store, settings)
        used = [worker for worker in cluster.workers if not worker.refusal]
        if not used:
            _refuse(options.scheduler or "this machine", list(cluster.workers), settings)
        report(_sentence(used))
        elsewhere = {
            name: environment
            for name, environment in environments_of(used).items()
            if not installed(find_ep(name.partition("/")[0]))
        }
        closing.enter_context(knowing(elsewhere))
        yield cluster


def _sentence(used: Sequence[Worker]) -> str:
    places = sum(worker.report.places for worker in used)
    alias = sorted({name.partition("/")[0] for worker in used for name in worker.providers})
    providers = f", with {', '.join(alias)}" if alias else ""
    return f"{counted(len(used), 'worker')}, {counted(places, 'stage')} at a time{providers}"


def _refuse(where: str, workers: Sequence[Worker], settings: RemoteSettings | None) -> None:
    if not workers:
        raise UsageError(
            f"There is no worker at {where}.", advice=f"Start one on each machine with: winml-dag worker {where}"
        )
    if settings is None and any("no remote" in worker.refusal for worker in workers):
        require_shared(settings)
    refusals = "; ".join(f"{worker.address} {worker.refusal}" for worker in workers)
    raise UsageError(f"No worker at {where} can be used: {refusals}.")


def require_shared(settings: RemoteSettings | None) -> None:
    """Raise UsageError unless there is a remote through which files can go to other machines."""
    if settings is None or not any(tier.mode is Mode.READ_WRITE for tier in settings.tiers):
        raise UsageError(
            "Inputs and outputs go to workers on other machines through a remote, and there is none that this build "
            "may write to.",
            advice="Name one with --remote URL --remote-mode read-write; a folder that all of them see does: file://...",
        )


@contextmanager
def _workers_here(options: ClusterOptions, store: Path) -> Iterator[Any]:
    """Workers on this machine with the cache folder *store*, and a client of their scheduler."""
    silence()
    try:
        security = Security.temporary()
    except ImportError:
        raise UsageError(
            "The connections to workers on this machine need cryptography.",
            advice="pip install winml_dag[cluster]",
        ) from None
    # Even without a dashboard there is an HTTP server: use any port, or dask warns if its default port is in use.
    addresses = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": Scheduler, "options": {"protocol": "tls", **addresses, "security": security}}
    with ExitStack() as closing:
        folder = closing.enter_context(Store(store).scratch.open())
        cluster = closing.enter_context(
            SpecCluster(workers={}, scheduler=scheduler, security=security, silence_logs=False)
        )
        client = connect(cluster.scheduler_address, security)
        closing.callback(client.close)
        private = closing.enter_context(tempfile.TemporaryDirectory(prefix="winml-dag-tls-"))
        environment = {**os.environ, **python_path(), **_tls_environment(security, Path(private))}
        whole = Capacity.of_this_machine(1, options.memory_bytes).memory_bytes
        memory = "none" if whole == UNLIMITED else f"{whole // options.workers}B"
        places = max(1, options.places // options.workers)
        offer = ["--cache-dir", str(store), "--places", str(places), "--memory", memory]
        for number in range(options.workers):
            at = folder / f"worker-{number}"
            at.mkdir()
            # It ends with its scheduler, which is in this process, however that ends.
            worker = ProcessGroup(
                [sys.executable, "-P", "-m", "winml_dag", "worker", cluster.scheduler_address, *offer],
                folder=at,
                environment=environment,
                log=at / LOG_FILE,
            )
            closing.callback(worker.reap)
        try:
            client.wait_for_workers(options.workers, timeout=_STARTING_SECONDS)
        except TimeoutError:
            last_lines = [line for log in sorted(folder.glob(f"worker-*/{LOG_FILE}")) for line in log_tail(log, 3)]
            raise StageError(f"Workers on this machine have not begun: {' '.join(last_lines)}") from None
        yield client


def _tls_environment(security: Security, folder: Path) -> Mapping[str, str]:
    """Variables with the paths of the key and certificate of *security*, which are written to *folder*."""
    found = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}
    names = {
        "tls_ca_file": "CA_FILE",
        "tls_worker_key": "WORKER__KEY",
        "tls_worker_cert": "WORKER__CERT",
        "tls_client_key": "CLIENT__KEY",
        "tls_client_cert": "CLIENT__CERT",
    }
    for name, variable in names.items():
        path = folder / name
        path.write_text(getattr(security, name), encoding="ascii")
        found[f"DASK_DISTRIBUTED__COMM__TLS__{variable}"] = str(path)
    return found
