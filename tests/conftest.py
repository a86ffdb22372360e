"""For all tests: the interrupt from the keyboard is on, and no environment or cache of the user's is named.

Shells switch it off for what they start in the background, and every process inherits that: builds under test could not
be interrupted then. Bytecode is written, since every one of the thousands of processes under test would compile our
modules anew, which doubles what a plan costs.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from remotes import for_all
from servers.faulty import FaultyServer

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing: the first one imports what it needs, on a machine with other work.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
for variable in (
    "WINML_DAG_CACHE_DIR",
    "WINML_DAG_CONFIG",
    "WINML_DAG_EP_ENVIRONMENTS",
    "WINML_DAG_SUPPORT_DIR",
    "WINMLCLI_RULES_DIR",
):
    os.environ.pop(variable, None)
# Where CI runs these tests, builds under test are none of its runs: a pull request may do less with remotes.
for variable in ("GITHUB_ACTIONS", "TF_BUILD", "GITLAB_CI"):
    os.environ.pop(variable, None)
for variable in [name for name in os.environ if name.startswith("WINML_DAG_REMOTE")]:
    os.environ.pop(variable)
os.environ.update(for_all())


def pytest_collection_finish() -> None:
    """What was imported stays: looking through PyTorch's 350,000 objects at every collection is a quarter of the time
    of an export.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def faulty_server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture
def server(faulty_server: FaultyServer) -> FaultyServer:
    """One that has nothing, and no fault."""
    faulty_server.reset()
    return faulty_server
