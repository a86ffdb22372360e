"""The cache commands as a user types them: their output, as text and as JSON, and their exit codes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from winml_dag.cli import run
from winml_dag.cli.cache import command
from winml_dag.store.cache_folder import log_build
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.remote.settings import SigningKey
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.store import Store

FIXTURES = Path(__file__).parents[3] / "cache_fixtures"
KEYS = {name: digit * 64 for name, digit in (("export", "a"), ("optimize", "b"), ("quantize", "c"))}
MADE = {"export": "2026-01-03", "optimize": "2026-01-01", "quantize": "2026-01-02"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three records, last used in the order of their stages."""
    store = Store(tmp_path / "cache")
    for number, (stage, key) in enumerate(KEYS.items()):
        folder = tmp_path / "out"
        folder.mkdir()
        (folder / f"{stage}.onnx").write_bytes(stage.encode() * 1000 * (3 - number))
        log = tmp_path / "log.txt"
        log.write_text("".join(f"line {line} of {stage}\n" for line in range(30)))
        made = KeyInputs(stage, 1, {stage: {"opset": 21}}, {"model": "sha256:" + "0" * 64}, {"onnx": "1.23.2"})
        record = Record(
            key, "c" * 64, made, {}, {"nodes": 7}, 2.5, made_at=f"{MADE[stage]}T00:00:00+00:00", made_by="tests"
        )
        store.publish(record, {"model": folder}, log)
        os.utime(store.records.path(key), (10**9 + number, 10**9 + number))
        shutil.rmtree(folder)
    store.close()
    # Results stored in the same clock tick of the file system as the start of a collection count as in use.
    probe = tmp_path / "probe"
    probe.touch()
    stored = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == stored:
        probe.touch()
    return store


@pytest.fixture
def says(says) -> Callable[..., str]:
    return lambda *arguments, code=0: says("cache", *arguments, code=code)


@pytest.fixture
def tells(tells) -> Callable[..., dict[str, Any]]:
    return lambda *arguments: tells("cache", *arguments)


def test_info_shows_contents_and_savings(store, says, tells) -> None:
    assert "no builds yet" in says("info")
    log_build(store.folder, reused=3, ran=1, seconds_saved=75, stored_bytes=1)
    text = says("info")
    assert "records        3\n" in text
    assert "hit ratio      75%  (3 of 4 stages in 1 build since 20" in text
    assert "time saved     1 min" in text
    assert "limit          none" in text
    assert [line.split()[2:] for line in text.splitlines()[-3:]] == [[stage, KEYS[stage][:12]] for stage in KEYS]
    found = tells("info")
    assert (found["records"], found["hit_ratio"], found["seconds_saved"], found["builds"]) == (3, 0.75, 75, 1)
    assert found["largest"][0]["stage"] == "export"
    assert found["limit_bytes"] is None


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("size", ["export", "optimize", "quantize"]),
        ("used", ["quantize", "optimize", "export"]),
        ("made", ["export", "quantize", "optimize"]),
    ],
)
@pytest.mark.usefixtures("store")
def test_list_sorts_by_requested_column(says, tells, sort, order) -> None:
    assert [record["stage"] for record in tells("list", "--sort", sort)["records"]] == order
    assert [line.split()[1] for line in says("list", "--sort", sort).splitlines()[1:]] == order


def test_list_filters_by_stage_and_shows_last_use(store, tells) -> None:
    (record,) = tells("list", "--stage", "optimize")["records"]
    assert (record["key"], record["used_at"]) == (KEYS["optimize"], "2001-09-09T01:46:41+00:00")
    assert tells("list", "--stage", "compile")["records"] == []
    # What a plan that stands was used for counts as used.
    (store.folder / "standing").mkdir()
    keys = store.folder / "standing" / "plan.keys"
    keys.write_text(KEYS["export"])
    os.utime(keys, (10**9 + 50, 10**9 + 50))
    (first, *_) = tells("list")["records"]
    assert (first["stage"], first["used_at"]) == ("export", "2001-09-09T01:47:30+00:00")


@pytest.mark.usefixtures("store")
def test_show_accepts_unique_key_prefix(says, tells) -> None:
    text = says("show", "b")
    assert text.startswith(f"key        {KEYS['optimize']}\nstage      optimize, version 1\n")
    assert "  optimize.opset: 21\n" in text
    assert "  onnx: 1.23.2\n" in text
    assert "  model: optimize.onnx  15.6 KiB  xxh3-128:" in text
    assert "  nodes: 7\n" in text
    assert "log (the last 20 of 30 lines)\n  | line 10 of optimize\n" in text
    found = tells("show", KEYS["optimize"].upper())
    assert found["cache_key"] == KEYS["optimize"]
    assert found["missing"] == []
    assert len(found["log_text"].splitlines()) == 30


def test_show_reports_missing_files_and_ambiguous_prefix(store, says, tells) -> None:
    record = store.record(KEYS["export"])
    assert record is not None
    assert record.log is not None
    store.blobs.path(record.files()[0].digest).unlink()
    store.blobs.path(record.log.digest).unlink()
    assert tells("show", "a")["missing"] == ["export.onnx"]
    text = says("show", "a")
    assert "MISSING" in text
    assert "its blob is missing or damaged" in text
    assert "No record in" in says("show", "f", code=2)
    for number in range(7):
        store.records.write(Record(f"d{number:063x}", "c", record.key_inputs, record.outputs))
    errors = says("show", "d", code=2)
    assert "7 keys begin with 'd': d000000000000000 (export), d" in errors
    assert "and 2 more" in errors
    assert "Give more characters of one of them" in errors


def test_gc_reports_freed_records(store, says, tells) -> None:
    planned = tells("gc", "--max-size", "0", "--dry-run")
    assert (planned["dry_run"], planned["records"], planned["left_bytes"]) == (True, 3, 0)
    assert says("gc", "--older-than", "1d", "--dry-run").startswith("Would remove 3 records, 6 blobs and 0 leftovers, ")
    assert len(store.records.keys()) == 3
    assert says("gc", "--max-size", "20KB").startswith("Removed 2 records, 4 blobs and 0 leftovers, ")
    assert store.records.keys() == [KEYS["quantize"]]


def test_gc_limit_is_saved_and_applied_by_later_gc(store, says, tells) -> None:
    says("gc")
    assert len(store.records.keys()) == 3
    assert says("gc", "--limit", "20KB", "--dry-run").startswith("Would remove 2 records, ")
    assert tells("info")["limit_bytes"] is None
    begins = f"The cache in {store.folder} is limited to 20KB.\nRemoved 0 records, 0 blobs and 0 leftovers, "
    assert says("gc", "--limit", "20KB", "--max-size", "1GB").startswith(begins)
    says("gc")
    assert store.records.keys() == [KEYS["quantize"]]
    assert says("gc", "--limit", "none").startswith("The cache has no limit.\nRemoved 0 records, ")


def test_gc_reports_records_kept_in_use(store, says) -> None:
    with store.scratch.open():
        store.used([KEYS["export"]])
        text = says("gc", "--max-size", "0")
    assert "Kept 1 record and " in text
    assert "That is more than 0 B: collect again when no build runs." in text


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gc", "--max-size", "10"), "--max-size: '10' is not a size"),
        (("gc", "--older-than", "a week"), "--older-than: 'a week' is not a duration"),
        (("gc", "--limit", "big"), "--limit: 'big' is not a size"),
    ],
)
def test_invalid_size_or_duration_is_refused(says, arguments, words) -> None:
    assert words in says(*arguments, code=2)


def test_limit_is_set_shown_and_removed(store, says, tells, monkeypatch) -> None:
    assert says("gc", "--limit", "50GiB").startswith(f"The cache in {store.folder} is limited to 50GiB.\n")
    assert tells("info")["limit_bytes"] == 50 * 2**30
    assert "limit          50GiB\n" in says("info")
    monkeypatch.setenv("WINML_DAG_CACHE_MAX_SIZE", "1GB")
    limited = f"The cache in {store.folder} is limited to 1GB, by WINML_DAG_CACHE_MAX_SIZE.\n"
    assert says("gc", "--limit", "60GiB").startswith(limited)
    monkeypatch.setenv("WINML_DAG_CACHE_MAX_SIZE", "none")
    assert says("gc", "--limit", "none").startswith("The cache has no limit, by WINML_DAG_CACHE_MAX_SIZE.\n")


def test_verify_exits_1_on_damage_and_0_after_repair(store, says, tells) -> None:
    assert says("verify") == "Intact: 3 records and 6 blobs. 0 records lack a blob.\n"
    (file,) = store.record(KEYS["export"]).files()
    store.blobs.path(file.digest).unlink()
    text = says("verify", code=1)
    assert f"record that lacks a blob, counts as not built: {KEYS['export']}\n" in text
    assert text.endswith("Intact: 3 records and 5 blobs. 1 record lacks a blob.\n")
    found = tells("verify", "--repair")
    assert (found["clean"], found["repaired"], found["removed"]) == (False, True, [KEYS["export"]])
    assert says("verify", "--repair") == "Intact: 2 records and 5 blobs. 0 records lack a blob.\n"


def test_clear_removes_all_records(store, says) -> None:
    assert says("clear", "-y").startswith("Removed 3 records and 6 blobs, ")
    assert store.records.keys() == []


@pytest.mark.parametrize(
    ("answer", "code", "message"), [(EOFError, 2, "so nothing was removed"), (KeyboardInterrupt, 130, "Interrupted")]
)
def test_clear_without_an_answer_removes_nothing(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: type[BaseException],
    code: int,
    message: str,
) -> None:
    def prompt(_: str) -> str:
        raise answer

    monkeypatch.setattr("click.termui.visible_prompt_func", prompt)
    assert run(["cache", "clear", "--cache-dir", str(store.folder)]) == code
    assert message in capsys.readouterr().err
    assert len(store.records.keys()) == 3


EVERY = {
    "info": ("info",),
    "list": ("list",),
    "show": ("show", "a"),
    "gc": ("gc", "--max-size", "0"),
    "verify": ("verify", "--repair"),
    "clear": ("clear", "-y"),
    "push": ("push", "--all", "--remote", "https://nowhere", "--remote-mode", "off"),
    "pull": ("pull", "-c", "recipe.yaml", "--remote", "https://nowhere", "--remote-mode", "off"),
}


@pytest.mark.parametrize("arguments", EVERY.values(), ids=EVERY)
def test_unknown_cache_format_is_refused_by_every_command(folder: Path, arguments: tuple[str, ...], says) -> None:
    shutil.copytree(FIXTURES / "format-1-unknown-format", folder / "cache")
    before = sorted((folder / "cache").rglob("*"))
    errors = says(*arguments, code=1)
    assert "has format '999', and this version knows 1 only" in errors
    assert "choose another folder" in errors
    assert sorted((folder / "cache").rglob("*")) == before


def test_unknown_format_test_covers_every_cache_command() -> None:
    """Except those about remotes, which open no cache."""
    assert command.commands.keys() - {"remote"} == EVERY.keys()


def test_show_reports_origin_and_signer_of_remote_record(folder: Path, says, tells) -> None:
    maker = Maker("winml_dag 0.1.0", run="https://ci/77", revision="4f1c2a9", host="x", tools={"onnx": "1.23"})
    trust = Trust((SigningKey("ci-2026", b"k" * 32),), maker, key_of=cache_key)
    made = KeyInputs("export", 1, {"export": {"opset": 21}}, {}, {"torch": "2.13"})
    record = Record(cache_key(made), made.config_hash, made, {}, made_at="2026-11-22T10:00:00+00:00")
    store = Store(folder / "cache")
    store.records.write(trust.verify(trust.sign(record, "main"), record.cache_key, "main"))
    store.records.write(replace(record, cache_key="0" * 64))
    store.close()
    shown = says("show", record.cache_key)
    assert "from a remote, which says\n" in shown
    for line in ("maker.run: https://ci/77", "maker.tools.onnx: 1.23", "namespace: main", "signed_by: ci-2026"):
        assert f"  {line}\n" in shown
    origin = tells("show", record.cache_key)["origin"]
    assert (origin["signed_by"], origin["namespace"], origin["maker"]["revision"]) == ("ci-2026", "main", "4f1c2a9")
    assert "from a remote" not in says("show", "0000")
