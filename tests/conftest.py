"""Setup of all tests: keyboard interrupts work, and no environment variable or cache of the user is used.

Shells ignore SIGINT in background processes, and every child inherits that, so builds under test could not be
interrupted. Bytecode is written, since otherwise every one of the thousands of processes under test would compile the
package again, which doubles the time of a plan.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from oneprocess import OneProcess
from remotes import for_all
from servers.faulty import FaultyServer

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The duration of an example says nothing: the first one imports modules, and the machine may be busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

gc.disable()  # until all tests are collected, which takes an eighth longer with it

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for variable in (
    "WINML_DAG_CACHE_DIR",
    "WINML_DAG_CONFIG",
    "WINML_DAG_EP_ENVIRONMENTS",
    "WINML_DAG_SUPPORT_DIR",
    "WINMLCLI_RULES_DIR",
):
    os.environ.pop(variable, None)
# Builds under test are no CI runs, even if CI runs the tests: a pull request has fewer rights on remotes.
for variable in ("GITHUB_ACTIONS", "TF_BUILD", "GITLAB_CI"):
    os.environ.pop(variable, None)
for variable in [name for name in os.environ if name.startswith("WINML_DAG_REMOTE")]:
    os.environ.pop(variable)
os.environ.update(for_all())
# By default, threads of OpenMP that wait keep a processor busy, which other tests need: exporting thirty small models
# beside other work took 40 s of processor time, and 22 with this. It is read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-skipped", type=Path, help="write the ids of skipped tests to this file, for pytest @FILE")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if path := config.getoption("--write-skipped"):
        skipped = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get("skipped", []))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{test}\n" for test in skipped), encoding="utf-8")


def pytest_collection_finish() -> None:
    gc.freeze()  # nothing that was imported goes away
    gc.enable()


@pytest.fixture(scope="session")
def commands() -> Iterator[OneProcess]:
    with closing(OneProcess()) as process:
        yield process


@pytest.fixture(scope="session")
def faulty_server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture
def server(faulty_server: FaultyServer) -> FaultyServer:
    """An empty server without faults."""
    faulty_server.reset()
    return faulty_server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a given size, such as ``300k``."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if sys.platform == "win32" or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system takes Linux and root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
