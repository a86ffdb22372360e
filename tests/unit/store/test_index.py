from __future__ import annotations

import logging
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable

import diskcache
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.canonical import canonical_json
from winml_dag.store.digest import checked, with_checksum
from winml_dag.store.index import Index, TextDisk, TextOnlyError
from winml_dag.store.locks import Locks


class Harm:
    """Creates a folder when unpickled."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def new_index(tmp_path):
    opened = []

    def new_index(**settings) -> Index:
        index = Index(tmp_path / "index", tmp_path / "quarantine", Locks(tmp_path / "locks"), **settings)
        opened.append(index)
        return index

    yield new_index
    for index in opened:
        index.close()


@pytest.fixture
def alter(tmp_path):
    """Changes the database without the index noticing."""

    def alter(statement: str, values=()) -> None:
        connection = sqlite3.connect(tmp_path / "index" / "cache.db")
        with connection:
            connection.execute(statement, values)
        connection.close()

    return alter


def test_values_persist_by_namespace_and_name(new_index) -> None:
    index = new_index()
    index.write("record", {"a": {"x": [1, 2.0, None]}, "b": "text"})
    index.write("latest", {"a": "other"})
    index.close()
    again = new_index()
    assert again.read("record", ["a", "b", "absent"]) == {"a": {"x": [1, 2.0, None]}, "b": "text"}
    assert again.read("latest", ["a"]) == {"a": "other"}
    assert again.names("record") == ["a", "b"]
    again.remove("record", ["a", "absent"])
    assert again.names("record") == ["b"]
    again.clear()
    assert again.names("record") == again.names("latest") == []


def test_rows_are_found_by_tag_within_their_namespace(new_index) -> None:
    index = new_index()
    index.write("record", dict.fromkeys("abcd"), {"a": "x", "b": "y", "c": "x"})
    index.write("latest", {"a": "other"}, {"a": "x"})
    assert index.newest_tagged("record", "x", 10) == ["c", "a"]
    assert index.newest_tagged("record", "x", 1) == ["c"]
    index.write("record", {"c": None}, {"c": "y"})
    assert index.newest_tagged("record", "x", 10) == ["a"]
    assert set(index.newest_tagged("record", "y", 10)) == {"b", "c"}


def test_thousands_of_rows_are_read_at_once(new_index) -> None:
    index = new_index()
    values = {f"/models/{number}.onnx": number for number in range(2500)}
    index.write("fingerprint", values)
    assert index.read("fingerprint", values) == values


@settings(max_examples=30)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
    name=st.text(),
)
def test_checksummed_text_is_valid_only_under_its_name(name, value) -> None:
    try:
        text = with_checksum(name, canonical_json(value))
    except UnicodeEncodeError:
        return
    assert checked(name, text) == value
    with pytest.raises(ValueError, match="checksum"):
        checked(name + "x", text)


@given(at=st.integers(0, 10**6), character=st.characters())
def test_changed_character_invalidates_checksum(at, character) -> None:
    body = canonical_json({"outputs": [{"digest": "xxh3-128:" + "0" * 32, "size": 17}]})
    text = with_checksum("record:k", body)
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        with pytest.raises(ValueError, match="checksum"):
            checked("record:k", changed)


def test_row_moved_to_another_name_is_absent(new_index, alter) -> None:
    index = new_index()
    index.write("record", {"a": 1})
    alter("UPDATE Cache SET key = 'record:b'")
    assert index.read("record", ["a", "b"]) == {}


def test_pickled_row_is_never_loaded(new_index, alter, tmp_path) -> None:
    """The index is a file that others may have written, and diskcache unpickles a row whose mode is 4, even with its
    JSONDisk, which calls the base class before it parses JSON.
    """
    index = new_index()
    index.write("record", {"value": 1, "file": 2})
    index.write("latest", {"kept": "sound"})
    index.close()
    harm = pickle.dumps(Harm(tmp_path / "harmed"))
    (tmp_path / "index" / "harm.val").write_bytes(harm)
    alter("UPDATE Cache SET mode = 4, value = ? WHERE key = 'record:value'", (harm,))
    alter("UPDATE Cache SET mode = 4, value = NULL, filename = 'harm.val' WHERE key = 'record:file'")
    alter("INSERT INTO Cache (key, raw, store_time, mode, value) VALUES (?, 0, 1, 4, ?)", (harm, harm))
    alter(
        "INSERT INTO Cache (key, raw, store_time, expire_time, mode, value) VALUES (?, 0, 1, 2, 1, 'x')", (harm[:-1],)
    )

    assert index.read("record", ["value", "file"]) == {}
    assert index.names("record") == []
    assert index.read("latest", ["kept"]) == {"kept": "sound"}
    cache = diskcache.Cache(str(tmp_path / "index"), disk=TextDisk)
    assert len(cache) == 5
    assert cache.expire() == 1
    for read in (lambda: cache["record:value"], lambda: cache.get("record:file"), cache.peekitem):
        with pytest.raises((TextOnlyError, KeyError)):
            read()
    for keys in (cache, reversed(cache), cache.iterkeys()):
        with pytest.raises(TextOnlyError):
            list(keys)
    cache.clear()
    cache.close()
    assert not (tmp_path / "harmed").exists()


def test_row_naming_a_file_neither_reads_nor_deletes_it(new_index, alter, tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text('"secret"')
    index = new_index()
    index.write("record", {"a": 1, "b": 1, "c": 1})
    alter("UPDATE Cache SET mode = 3, value = NULL, filename = ?", (str(precious),))
    assert index.read("record", ["a", "b", "c"]) == {}
    index.write("record", {"a": 2})
    index.remove("record", ["b"])
    index.clear()
    assert precious.exists()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda _: b"this is no database " * 500,
    "empty header": lambda data: b"\0" * 100 + data[100:],
    # A name in the schema that is no valid text, and neither is SQLite's message about it.
    "odd text": lambda data: data.replace(b"BEGIN UPDATE Settings", b"BEGIN UPDATE \xe1ettings"),
    "truncated": lambda data: data[:6000],
}
ALTERATIONS = {
    "no tables": ("DROP TABLE Cache", "CREATE TABLE Cache (other)"),
    "odd settings": ("INSERT INTO Settings VALUES ('disk_surprise', 1)",),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *ALTERATIONS])
def test_damaged_database_is_quarantined_with_a_warning(new_index, alter, tmp_path, caplog, damage) -> None:
    index = new_index()
    index.write("record", {str(number): "x" * 500 for number in range(50)})
    index.close()
    path = tmp_path / "index" / "cache.db"
    if damage in DAMAGES:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for statement in ALTERATIONS.get(damage, ()):
        alter(statement)
    with caplog.at_level(logging.WARNING):
        index.write("record", {"1": "new"})
    assert index.read("record", ["1", "2"]) == {"1": "new"}
    assert "was damaged" in caplog.text
    assert str(tmp_path / "quarantine") in caplog.text
    assert list((tmp_path / "quarantine").glob("index-*/cache.db"))


def test_open_handle_to_damaged_database_does_not_harm_new_one(new_index, tmp_path) -> None:
    if os.name == "nt":
        pytest.skip("Windows moves no open file; the error says so")
    old, finder = new_index(), new_index()
    old.write("record", {"a": 1})
    path = tmp_path / "index" / "cache.db"
    path.write_bytes(b"x" * path.stat().st_size)
    (tmp_path / "index" / "cache.db-wal").write_bytes(b"")
    finder.write("record", {"b": 2})
    assert list((tmp_path / "quarantine").glob("index-*"))
    old.close()
    assert new_index().read("record", ["b"]) == {"b": 2}
    finder.write("record", {"c": 3})
    finder.close()
    assert new_index().read("record", ["b", "c"]) == {"b": 2, "c": 3}
    assert old.read("record", ["b"]) == {"b": 2}


def test_concurrent_damage_detection_restarts_the_index_once(new_index, tmp_path) -> None:
    first, second = new_index(), new_index()
    first.write("record", {"a": 1})
    first.close()
    path = tmp_path / "index" / "cache.db"
    path.write_bytes(b"this is no database " * 500)
    begin_afresh = Index._begin_afresh

    def come_second(index: Index, *found: object) -> None:
        if index is second:
            first.write("record", {"b": 2})
        begin_afresh(index, *found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Index, "_begin_afresh", come_second)
        second.write("record", {"c": 3})
    assert second.read("record", ["b", "c"]) == {"b": 2, "c": 3}
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_locked_database_is_skipped_with_one_warning(new_index, tmp_path, caplog) -> None:
    index = new_index(busy_seconds=0.01)
    index.write("record", {"a": 1})
    other = sqlite3.connect(tmp_path / "index" / "cache.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        index.write("record", {"a": 2})
        assert index.read("record", ["a"]) == {}
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "locked by another process" in warning
    other.execute("ROLLBACK")
    other.close()
    assert new_index().read("record", ["a"]) == {"a": 1}
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize("name", ["READONLY", "PERM", "CANTOPEN", "AUTH", "FULL", "IOERR_WRITE", "NOMEM"])
def test_unusable_database_is_ignored_with_one_warning(new_index, tmp_path, caplog, monkeypatch, name) -> None:
    index = new_index()
    index.write("record", {"a": 1})

    def refuse(*_: object, **__: object) -> None:
        error = sqlite3.OperationalError("the system says no")
        error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{name}")
        raise error

    with monkeypatch.context() as patched:
        for method in ("_sql", "transact"):
            patched.setattr(diskcache.Cache, method, refuse)
        index.write("record", {"a": 2})
        index.remove("record", ["a"])
        assert index.read("record", ["a"]) == {}
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith(
        f"The index of the cache in {tmp_path / 'index'} cannot be used: the system says no. Going on without it"
    )
    assert index.read("record", ["a"]) == {"a": 1}
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX")
@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_full_disk_or_too_many_open_files_are_not_damage(new_index, tmp_path, limit) -> None:
    index = new_index()
    index.write("record", {"a": 1})
    index.close()
    code = """
        import resource, sys
        from pathlib import Path
        from winml_dag.store.index import Index
        from winml_dag.store.locks import Locks
        folder = Path(sys.argv[1])
        index = Index(folder / "index", folder / "quarantine", Locks(folder / "locks"))
        limit = getattr(resource, sys.argv[2])
        resource.setrlimit(limit, (40_000 if sys.argv[2] == "RLIMIT_FSIZE" else 4, resource.getrlimit(limit)[1]))
        index.write("record", {"b": "x" * 100_000})
        print(index.read("record", ["b"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path, limit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr
    assert done.stderr.count("Going on without it") == 1
    assert new_index().read("record", ["a", "b"]) == {"a": 1}
    assert not (tmp_path / "quarantine").exists()


def test_folder_in_place_of_database_disables_the_index(new_index, tmp_path) -> None:
    (tmp_path / "index" / "cache.db").mkdir(parents=True)
    index = new_index()
    index.write("record", {"a": 1})
    assert index.read("record", ["a"]) == {}


def test_failed_write_is_rolled_back(new_index) -> None:
    index = new_index()
    with pytest.raises(UnicodeEncodeError):
        index.write("record", {"a": 1, "\ud800": 2})
    assert index.names("record") == []
