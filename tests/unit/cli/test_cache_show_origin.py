"""``cache show`` of a record from a remote: who made it, where, and who signed it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from winml_dag.cli import run
from winml_dag.engine.keys import cache_key
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.remote.settings import SigningKey
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

MADE = KeyInputs("export", 1, {"export": {"opset": 21}}, {}, {"torch": "2.13"})
MAKER = Maker("winml_dag 0.1.0", run="https://ci/77", revision="4f1c2a9", host="Linux x86_64", tools={"onnx": "1.23"})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    trust = Trust((SigningKey("ci-2026", b"k" * 32),), MAKER, key_of=cache_key)
    record = Record(
        cache_key(MADE), MADE.config_hash, MADE, {}, made_at="2026-11-22T10:00:00+00:00", made_by="winml_dag"
    )
    store = Store(tmp_path / "cache")
    store.records.write(trust.verify(trust.sign(record, "main"), record.cache_key, "main"))
    store.records.write(replace(record, cache_key="0" * 64))
    store.close()
    return tmp_path / "cache"


def test_what_the_remote_said_is_shown(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "show", cache_key(MADE), "--cache-dir", str(cache)]) == 0
    shown = capsys.readouterr().out

    assert "from a remote, which says\n" in shown
    for line in ("maker.run: https://ci/77", "maker.tools.onnx: 1.23", "namespace: main", "signed_by: ci-2026"):
        assert f"  {line}\n" in shown


def test_as_json_it_is_a_field_of_its_own(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "show", cache_key(MADE), "--cache-dir", str(cache), "-f", "json"]) == 0
    origin = json.loads(capsys.readouterr().out)["origin"]

    assert (origin["signed_by"], origin["namespace"], origin["maker"]["revision"]) == ("ci-2026", "main", "4f1c2a9")


def test_of_a_record_that_was_made_here_there_is_none(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "show", "0000", "--cache-dir", str(cache)]) == 0
    assert "from a remote" not in capsys.readouterr().out
