"""One cluster for all tests: three workers, one of them with QNN, and builds in an environment without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_lab import HOOK, Lab, environment

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform == "win32":
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs named pipes and links"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    # Of the module: a scheduler and three workers that wait take a tenth of a processor.
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
    without = environment(folder / "without-qnn", without="onnxruntime_qnn")
    lab = Lab(folder, without)
    try:
        lab.start_scheduler()
        lab.start_worker("first", without, "--tag", "spare", hangs=True)
        lab.start_worker("second", without, "--tag", "spare", hangs=True)
        lab.start_worker("qnn", Path(sys.executable))
        lab.await_workers()
        yield lab
    finally:
        lab.close()
