"""Known attacks on shared caches, run against this one over a real server, and the defence each of them meets.

``docs/how-to/trust.md`` has a row for every test here, which ``test_table.py`` ensures.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from attackers import envelope, forge, place
from machines import MAIN, PULL, MachineMaker
from servers.faulty import Fault, FaultyServer

from winml_dag.errors import StoreError, UsageError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_bytes

SECRET = b"what nobody else may read"
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "contoso/models"}
PULL_REQUEST = {**GITHUB, "GITHUB_EVENT_NAME": "pull_request", "GITHUB_REF": "refs/pull/12/merge"}
PUSH_TO_MAIN = {
    **GITHUB,
    "GITHUB_EVENT_NAME": "push",
    "GITHUB_REF": "refs/heads/main",
    "GITHUB_REF_PROTECTED": "true",
}


def test_record_of_other_machine_is_used_without_attack(machine: MachineMaker, tmp_path: Path) -> None:
    """The baseline for all other tests."""
    record = machine("read-write").make(b"a model")
    reader = machine()

    found = reader.look(record)
    assert found is not None
    assert replace(found, origin={}) == record
    reader.take(record, tmp_path)
    assert (tmp_path / "model.onnx").read_bytes() == b"a model"
    assert reader.said == []


def test_unsigned_record_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = envelope(record, "main", key="")

    assert "nobody has signed it" in machine().refusal(record)


def test_record_signed_with_unknown_secret_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = envelope(record, "main", key="main:" + "A" * 43 + "=")

    assert "its signature does not match the key 'main'" in machine().refusal(record)


def test_record_changed_after_signing_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make(b"a model")
    poisoned = digest_bytes(b"another model", "sha256")
    server.content[f"/main/cas/{poisoned.partition(':')[2]}"] = b"another model"
    data = server.content[place("main", record)]
    server.content[place("main", record)] = data.replace(record.files()[0].digest.encode(), poisoned.encode())

    assert "its signature does not match the key 'main'" in machine().refusal(record)


def test_swapped_blob_is_rejected(machine: MachineMaker, server: FaultyServer, tmp_path: Path) -> None:
    record = machine("read-write").make(b"a model")
    blob = f"/main/cas/{record.files()[0].digest.partition(':')[2]}"
    server.content[blob] = b"A model"

    reader = machine()
    with pytest.raises(StoreError):
        reader.take(record, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))
    assert b"A model" not in {
        path.read_bytes() for path in (reader.folder / "cache" / "blobs").rglob("*") if path.is_file()
    }
    assert "has other bytes" in reader.said[0]


def test_record_under_another_key_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    """As if an older, correctly signed model were the result of a newer recipe."""
    builder = machine("read-write")
    old, new = builder.make(b"old", opset=17), builder.make(b"new", opset=21)
    server.content[place("main", new)] = server.content[place("main", old)]

    assert "it is that of another key" in machine().refusal(new)


def test_older_record_of_same_key_is_accepted_until_key_is_revoked(machine: MachineMaker, server: FaultyServer) -> None:
    """It is accepted: equal keys mean equal work. To revoke wrong results, revoke the key that signed them."""
    record = machine("read-write").make(b"first")
    old = server.content[place("main", record)]
    machine("read-write", keys=f"new:{MAIN.partition(':')[2]}").make(b"second")
    assert server.content[place("main", record)] == old, "the first stays"

    assert machine().look(record) is not None
    after = machine(keys=f"new:{MAIN.partition(':')[2]}")
    assert "the key 'main', which is not here" in after.refusal(record)


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "C:\\escaped", "NUL", "a/../../escaped"])
def test_output_name_outside_folder_is_rejected(name: str, machine: MachineMaker, server: FaultyServer) -> None:
    """Signed by a trusted machine that has been compromised."""
    record = machine("read-write").make()
    server.content[place("main", record)] = forge(
        record, "main", key=MAIN, change=lambda told: told["outputs"]["model"][0].update(name=name)
    )

    reader = machine()
    assert "is not a safe file name" in reader.refusal(record)
    assert not list(reader.folder.parent.rglob("*escaped*"))


def test_output_names_differing_only_in_case_are_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    """On Windows and macOS the second would overwrite the first, which was verified."""
    record = machine("read-write").make()

    def add(told: dict) -> None:  # type: ignore[type-arg]
        told["outputs"]["model"].append({**told["outputs"]["model"][0], "name": "MODEL.ONNX"})

    server.content[place("main", record)] = forge(record, "main", key=MAIN, change=add)

    assert "one name twice" in machine().refusal(record)


class Payload:
    """Creates a folder when unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.proof),)


def test_pickle_as_record_is_rejected(machine: MachineMaker, server: FaultyServer, tmp_path: Path) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = pickle.dumps(Payload(tmp_path / "proof"))

    assert "it is not two lines of JSON" in machine().refusal(record)
    assert not (tmp_path / "proof").exists()


def test_pickle_in_cache_index_is_not_executed(machine: MachineMaker, tmp_path: Path) -> None:
    """Another job may have written the cache folder that CI restores: diskcache would run code from its database."""
    reader = machine()
    record = machine("read-write").make()
    assert reader.look(record) is not None
    (database,) = (reader.folder / "cache" / "index").rglob("cache.db")
    bomb = pickle.dumps(Payload(tmp_path / "proof"))
    with sqlite3.connect(database) as rows:
        assert rows.execute("UPDATE Cache SET mode = 4, value = ?", (bomb,)).rowcount > 0
    rows.close()

    assert reader.look(record) is not None, "from its file"
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("fault", [Fault.ENDLESS, Fault.ENDLESS_CHUNKS], ids=["50 GB", "without an end"])
def test_endless_record_response_is_cut_off(fault: Fault, machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.switch_on(fault, method="GET", below="ac")

    assert "8 MiB" in machine().refusal(record)
    # Socket buffers add to the bytes that are read.
    assert server.bytes_sent() < 64 << 20


@pytest.mark.parametrize("fault", [Fault.ENDLESS, Fault.ENDLESS_CHUNKS], ids=["50 GB", "without an end"])
def test_endless_blob_response_is_cut_off(
    fault: Fault, machine: MachineMaker, server: FaultyServer, tmp_path: Path
) -> None:
    record = machine("read-write").make(b"x" * 1000)
    server.switch_on(fault, method="GET", below="cas")

    reader = machine()
    with pytest.raises(StoreError):
        reader.take(record, tmp_path / "out")
    assert server.bytes_sent() < 64 << 20
    assert sum(path.stat().st_size for path in reader.folder.rglob("*") if path.is_file()) < 1 << 20


def test_compressed_response_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    """Nothing is ever decompressed, so a decompression bomb has no effect."""
    record = machine("read-write").make()
    server.switch_on(Fault.ENCODED, method="GET", below="ac")

    assert "encoded as 'gzip'" in machine().refusal(record)


@pytest.mark.parametrize("accept", ["", "1"], ids=["signed", "unsigned accepted"])
def test_deeply_nested_record_is_rejected(accept: str, machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = b'{"format":1}\n' + b"[" * 4_000_000 + b"\n"

    said = machine(WINML_DAG_REMOTE_ACCEPT_UNSIGNED=accept).refusal(record)
    assert ("it is not JSON as we write it" if accept else "nobody has signed it") in said


def test_pull_request_configured_for_main_cannot_write_there(machine: MachineMaker, server: FaultyServer) -> None:
    """The configuration is part of what a pull request can change."""
    before = dict(server.content)
    pull = machine("read-write", keys=f"{PULL},{MAIN}", **PULL_REQUEST)
    record = pull.make(b"poison")

    assert {path.rsplit("/", 2)[0] for path in server.content.keys() - before.keys()} == {"/pull/12"}
    assert "put into the namespace pull/12 only" in pull.said[0]
    assert machine("read-write", **PUSH_TO_MAIN).look(record) is None
    assert machine("read", keys=f"{PULL},{MAIN}", **PULL_REQUEST).look(record) is None, (
        "nor does one that may only read"
    )
    other = {**PULL_REQUEST, "GITHUB_REF": "refs/pull/13/merge"}
    assert machine("read-write", keys=f"{PULL},{MAIN}", **other).look(record) is None
    assert machine("read-write", keys=f"{PULL},{MAIN}", **PULL_REQUEST).look(record) is not None


def test_pull_request_record_moved_to_main_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    """With credentials that may write there, and with main's key, which signs for its own namespace only."""
    record = machine("read-write", keys=MAIN, **PULL_REQUEST).make(b"poison")
    server.content[place("main", record)] = server.content[place("pull/12", record)]

    assert "it was made for the namespace 'pull/12', not for 'main'" in machine("read-write", **PUSH_TO_MAIN).refusal(
        record
    )


def test_pull_request_key_is_not_trusted_for_main(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = envelope(record, "main", key=PULL)

    assert "the key 'pull', which is not here" in machine("read-write", **PUSH_TO_MAIN).refusal(record)

    # A developer has both keys, and configures which of them is trusted for main.
    developer = machine("", keys=f"{MAIN},{PULL}", url="")
    (developer.folder / "winml_dag.toml").write_text(
        f'[[remote]]\nurl = "{server.url}"\nnamespace = "main"\ntrusted = ["main"]\n', encoding="utf-8"
    )
    assert "the key 'pull', which this remote is not trusted with" in developer.refusal(record)


def test_pull_request_record_is_not_republished_to_main(
    machine: MachineMaker, server: FaultyServer, tmp_path: Path
) -> None:
    """They inspect its results, which puts them into their cache, and push everything they have, signed by
    themselves.
    """
    record = machine("read-write", keys=f"{PULL},{MAIN}", **PULL_REQUEST).make(b"poison")
    colleague = machine("read", keys=f"{MAIN},{PULL}", WINML_DAG_REMOTE_NAMESPACE="pull/12")
    fetched = colleague.look(record)
    assert fetched is not None
    colleague.take(fetched, tmp_path / "looked at")

    colleague.variables = {
        **colleague.variables,
        "WINML_DAG_REMOTE_NAMESPACE": "main",
        "WINML_DAG_REMOTE_MODE": "read-write",
    }
    with colleague.store() as store:
        store.offer(fetched)

    assert place("main", record) not in server.content
    assert "it comes from the namespace 'pull/12' of a pull request" in colleague.said[0]


def test_unsigned_record_is_not_republished_as_signed(
    machine: MachineMaker, server: FaultyServer, tmp_path: Path
) -> None:
    """They accept unsigned records in their own folder, and push everything they have to their team."""
    record = machine("read-write", keys="", WINML_DAG_REMOTE_ACCEPT_UNSIGNED="1").make(b"poison")
    colleague = machine("read", WINML_DAG_REMOTE_ACCEPT_UNSIGNED="1")
    found = colleague.look(record)
    assert found is not None
    colleague.take(found, tmp_path / "looked at")

    colleague.variables = {
        **colleague.variables,
        "WINML_DAG_REMOTE_NAMESPACE": "team",
        "WINML_DAG_REMOTE_MODE": "read-write",
    }
    with colleague.store() as store:
        for _ in range(5):
            store.offer(found)

    assert place("team", record) not in server.content
    assert "nobody known here had signed it" in colleague.said[0]
    assert len(colleague.said) == 4


def test_pull_request_without_key_is_refused(machine: MachineMaker) -> None:
    """From a fork, which gets no secrets: it has no key to verify with, so the user must decide."""
    with pytest.raises(UsageError, match="no key to check the records of"):
        machine("read-write", keys="", **PULL_REQUEST).make()


def test_token_is_not_sent_to_server_of_project(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    project = f'[[remote]]\nurl = "{server.url}"\n'

    def told(url: str, **variables: str) -> set[str | None]:
        server.requests.clear()
        reader = machine("", url=url, WINML_DAG_REMOTE_TOKEN="a secret", **variables)
        (reader.folder / "winml_dag.toml").write_text(project, encoding="utf-8")
        assert reader.look(record) is not None
        return {request.headers.get("Authorization") for request in server.requests}

    assert told("") == {None}
    # Remotes in the job's environment are not the project's choice, and the token's host takes precedence over all.
    assert told(server.url) == {"Bearer a secret"}
    assert told("", WINML_DAG_REMOTE_TOKEN_HOST="127.0.0.1") == {"Bearer a secret"}
    assert told(server.url, WINML_DAG_REMOTE_TOKEN_HOST="cache.example.com") == {None}


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_links_in_shared_folder_are_not_followed(machine: MachineMaker, tmp_path: Path) -> None:
    """Whoever can write to the folder replaces a blob, a record or a folder by a link."""
    shared = tmp_path / "shared"
    url = shared.as_uri()
    builder = machine("read-write", url=url)
    read, written, endless = (builder.make(bytes([opset]) * 100, opset=opset) for opset in (1, 2, 3))
    (tmp_path / "secret").write_bytes(SECRET)
    for record, target, kind in ((read, tmp_path / "secret", "cas"), (endless, Path("/dev/zero"), "ac")):
        name = record.cache_key if kind == "ac" else record.files()[0].digest.partition(":")[2]
        link = shared / "main" / kind / name
        link.unlink()
        link.symlink_to(target)
    (shared / "main" / "ac" / written.cache_key).unlink()
    (shared / "main" / "ac" / written.cache_key).symlink_to(tmp_path / "made by us")

    reader = machine("read-write", url=url)
    with pytest.raises(StoreError):
        reader.take(read, tmp_path / "out")
    assert reader.look(endless) is None
    reader.make(b"\x02" * 100, opset=2)

    assert SECRET not in {path.read_bytes() for path in reader.folder.rglob("*") if path.is_file()}
    assert not (tmp_path / "made by us").exists()
    assert (tmp_path / "secret").read_bytes() == SECRET


def test_record_with_weak_blob_digest_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    """xxh3 is fast and used by caches without a remote, but a file with a given digest is easy to construct."""
    record = machine("read-write").make()
    weak = Artifact.of([FileEntry("model.onnx", digest_bytes(b"a model"), 7)])
    server.content[place("main", record)] = forge(
        record, "main", key=MAIN, change=lambda told: told.update(outputs={"model": weak.to_json()})
    )

    assert "is not a sha256" in machine().refusal(record)


def test_record_with_mismatched_inputs_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = forge(
        record, "main", key=MAIN, change=lambda told: told.update(toolchain={"onnx": "9"})
    )

    assert "its key is not made from what it says" in machine().refusal(record)


def test_record_with_control_characters_is_rejected(machine: MachineMaker, server: FaultyServer) -> None:
    record = machine("read-write").make()
    server.content[place("main", record)] = forge(
        record, "main", key=MAIN, change=lambda told: told.update(made_by="\x1b]0;owned\x07")
    )

    assert machine().refusal(record).isprintable()
