"""Contradictory cluster options are rejected before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.cli import run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scheduler", "tcp://one:1"], "--scheduler is for a cluster. Also give --executor dask."),
        (["--workers", "2", "--executor", "local"], "--workers is for a cluster."),
        (["--worker-tag", "npu"], "--worker-tag is for a cluster."),
        (["--executor", "dask", "--workers", "2", "--scheduler", "tcp://one:1"], "Give one of them."),
    ],
)
def test_options_of_a_cluster(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINML_DAG_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["build", "--onnx", "none.onnx", "-o", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
