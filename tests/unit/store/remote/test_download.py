"""Blobs from remotes: whatever the remotes do, named files are correct, and nothing is fetched twice."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_samples import Machine, ScriptedRemote, digest_of, entry
from servers.memory import MemoryRemote

from winml_dag.store.blobs import STAMP_NS
from winml_dag.store.remote import download
from winml_dag.store.remote.download import RESUMED_BYTES
from winml_dag.store.remote.protocol import RemoteError

SMALL = b"model" * 100
# Larger than the minimum for resuming, with no two equal parts.
LARGE = random.Random(0).randbytes(1 << 16) * ((RESUMED_BYTES >> 16) + 3)


class FaultyRemote(MemoryRemote):
    """Changes the data of each blob by the next of ``faults``; without any, data is unchanged."""

    def __init__(self, *faults: Callable[[bytes], Iterator[bytes]]) -> None:
        super().__init__()
        self.faults = list(faults)
        self.offsets: list[int] = []

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        fault = self.faults.pop(0) if self.faults else None
        self.offsets.append(offset)
        right = b"".join(super().read(digest, offset))
        return iter([right]) if fault is None else fault(right)


def breaks_off(after: float) -> Callable[[bytes], Iterator[bytes]]:
    def read(right: bytes) -> Iterator[bytes]:
        yield right[: int(len(right) * after)]
        raise RemoteError("unreachable", "broke off")

    return read


def wrong(right: bytes) -> Iterator[bytes]:
    yield right[:-1] + bytes([right[-1] ^ 1]) if right else b"!"


def shorter(right: bytes) -> Iterator[bytes]:
    yield right[: len(right) // 2]


def longer(right: bytes) -> Iterator[bytes]:
    yield right
    yield b"more"


def endless(_: bytes) -> Iterator[bytes]:
    while True:
        yield bytes(1 << 20)


def gone(_: bytes) -> Iterator[bytes]:
    raise KeyError


def unreachable(_: bytes) -> Iterator[bytes]:
    raise RemoteError("unreachable", "cannot be reached")


def with_blobs(remote: MemoryRemote, *blobs: bytes) -> MemoryRemote:
    remote.blobs.update({digest_of(data): data for data in blobs})
    return remote


def machine(tmp_path: Path, *remotes: MemoryRemote) -> Machine:
    return Machine(tmp_path / "cache", *remotes)


def test_fetched_blobs_are_stamped_and_counted(tmp_path: Path) -> None:
    here = machine(tmp_path, with_blobs(MemoryRemote(), SMALL, LARGE, b""))
    files = [entry(SMALL), entry(LARGE), entry(b"")]
    assert here.remotes.fetch(files) == []
    assert [here.bytes_of(file) for file in files] == [SMALL, LARGE, b""]
    assert {here.store.blobs.path(file.digest).stat().st_mtime_ns for file in files} == {STAMP_NS}
    assert not here.partial_files()
    traffic = here.remotes.traffic()
    assert sum(here.received) == len(SMALL) + len(LARGE)
    # Empty blobs need no request.
    assert (traffic.blobs_fetched, traffic.bytes_fetched, traffic.requests) == (2, len(SMALL) + len(LARGE), 2)


def test_local_blobs_are_not_fetched(tmp_path: Path) -> None:
    remote = with_blobs(MemoryRemote(), SMALL)
    here = machine(tmp_path, remote)
    here.make(SMALL)
    assert here.remotes.fetch([entry(SMALL)]) == []
    assert remote.calls == []


def test_blobs_missing_in_all_remotes_are_returned(tmp_path: Path) -> None:
    here = machine(tmp_path, with_blobs(MemoryRemote(), SMALL), MemoryRemote())
    nowhere, of_this_machine = entry(b"nowhere"), entry(SMALL, "other")
    assert here.remotes.fetch([nowhere, entry(SMALL), of_this_machine]) == [nowhere]
    assert here.remotes.traffic().refused == 0


@pytest.mark.parametrize(
    ("fault", "data"), [(wrong, SMALL), (shorter, SMALL), (longer, SMALL), (endless, SMALL), (wrong, LARGE)]
)
def test_wrong_bytes_are_refused_and_next_tier_is_tried(
    tmp_path: Path, data: bytes, fault: Callable[[bytes], Iterator[bytes]]
) -> None:
    liar, honest = FaultyRemote(fault), MemoryRemote()
    here = machine(tmp_path, with_blobs(liar, data), with_blobs(honest, data))
    assert here.remotes.fetch([entry(data)]) == []
    assert here.bytes_of(entry(data)) == data
    (said,) = here.said
    assert said.startswith("The remote http://level0/c ")
    assert said.endswith("that is refused.")
    assert "secret" not in said
    assert here.remotes.traffic().refused == 1
    # Of what is endless no more is read than there should be, but for the first piece.
    assert here.remotes.traffic().bytes_fetched <= 2 * len(data) + (1 << 20)


def test_repeatedly_wrong_remote_is_ignored(tmp_path: Path) -> None:
    remote = FaultyRemote(*[wrong] * 9)
    here = machine(tmp_path, with_blobs(remote, SMALL, LARGE))
    for data in (SMALL, SMALL, SMALL, LARGE):
        assert here.remotes.fetch([entry(data)]) == [entry(data)]
    assert len(remote.offsets) == here.remotes.traffic().refused == 3
    assert "is ignored for the rest of this run" in here.said[-1]
    assert not here.partial_files()


def test_interrupted_large_download_is_resumed(tmp_path: Path) -> None:
    remote = FaultyRemote(breaks_off(0.5), breaks_off(0.5))
    here = machine(tmp_path, with_blobs(remote, LARGE))
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert here.bytes_of(entry(LARGE)) == LARGE
    assert remote.offsets == [0, len(LARGE) // 2, len(LARGE) * 3 // 4]
    assert here.remotes.traffic().bytes_fetched == len(LARGE)
    assert not here.said


def test_download_may_break_off_often_while_it_progresses(tmp_path: Path) -> None:
    remote = FaultyRemote(*[breaks_off(0.2)] * 10)
    here = machine(tmp_path, with_blobs(remote, LARGE))
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert here.remotes.traffic().bytes_fetched == len(LARGE)


def test_next_run_resumes_an_interrupted_download(tmp_path: Path) -> None:
    dead = FaultyRemote(breaks_off(0.5), *[unreachable] * 10)
    assert machine(tmp_path, with_blobs(dead, LARGE)).remotes.fetch([entry(LARGE)]) == [entry(LARGE)]
    remote = FaultyRemote()
    here = machine(tmp_path, with_blobs(remote, LARGE))
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert remote.offsets == [len(LARGE) // 2]
    assert here.bytes_of(entry(LARGE)) == LARGE


def test_next_tier_resumes_an_interrupted_download(tmp_path: Path) -> None:
    near, far = FaultyRemote(breaks_off(0.5), *[unreachable] * 10), FaultyRemote()
    here = machine(tmp_path, with_blobs(near, LARGE), with_blobs(far, LARGE))
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert far.offsets == [len(LARGE) // 2]


@pytest.mark.parametrize("kept", [LARGE[:100] + b"!" + LARGE[101:5000], LARGE[:-1] + b"!", LARGE + b"more"])
def test_damaged_partial_file_is_fetched_again_without_blame(tmp_path: Path, kept: bytes) -> None:
    remote = FaultyRemote()
    here = machine(tmp_path, with_blobs(remote, LARGE))
    here.store.incoming.mkdir()
    partial = here.store.incoming / f"{digest_of(LARGE).partition(':')[2]}.partial"
    partial.write_bytes(kept)
    # As left by a process killed just before the last step.
    partial.chmod(0o444)
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert here.bytes_of(entry(LARGE)) == LARGE
    assert remote.offsets[-1] == 0
    assert not here.said


def test_complete_partial_file_needs_no_request(tmp_path: Path) -> None:
    remote = MemoryRemote()
    here = machine(tmp_path, remote)
    here.store.incoming.mkdir()
    (here.store.incoming / f"{digest_of(LARGE).partition(':')[2]}.partial").write_bytes(LARGE)
    assert here.remotes.fetch([entry(LARGE)]) == []
    assert remote.calls == []


def test_concurrent_fetches_download_a_blob_once(tmp_path: Path) -> None:
    both_want = threading.Barrier(2)
    remote = with_blobs(ScriptedRemote(), SMALL)
    machines = [machine(tmp_path, remote), machine(tmp_path, remote)]
    missing: list[object] = []

    def want(here: Machine) -> None:
        both_want.wait(60)
        missing.extend(here.remotes.fetch([entry(SMALL)]))

    threads = [threading.Thread(target=want, args=(here,)) for here in machines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
    assert [method for method, _ in remote.calls] == ["read"]


def test_fetch_does_not_wait_for_a_stalled_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock advances by a second per reading.
    monkeypatch.setattr(download, "monotonic", itertools.count().__next__)
    here = machine(tmp_path, with_blobs(MemoryRemote(), SMALL))
    with here.store.locks.hold_in_use(f"blob-{digest_of(SMALL).partition(':')[2]}"):
        assert here.remotes.fetch([entry(SMALL)]) == []
    assert here.bytes_of(entry(SMALL)) == SMALL


# Blobs resume at a smaller size in this test, which makes some hundreds.
_LARGE_ENOUGH = 50_000
FAULTS = st.sampled_from(
    [None, None, breaks_off(0.3), breaks_off(0.9), wrong, shorter, longer, gone, unreachable, endless]
)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 1, 700, _LARGE_ENOUGH, _LARGE_ENOUGH + 5]), min_size=1, max_size=4),
    near=st.lists(FAULTS, max_size=8),
    far=st.lists(FAULTS, max_size=4),
    runs=st.integers(1, 3),
)
def test_named_blobs_are_correct_under_any_faults(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    near: list[Callable[[bytes], Iterator[bytes]] | None],
    far: list[Callable[[bytes], Iterator[bytes]] | None],
    runs: int,
) -> None:
    folder = tmp_path_factory.mktemp("machine")
    blobs = [bytes([number]) * size for number, size in enumerate(sizes)]
    files = [entry(blob) for blob in blobs]
    remotes = [with_blobs(FaultyRemote(*faults), *blobs) for faults in (near, far)]  # type: ignore[arg-type]
    for _ in range(runs):
        here = machine(folder, *remotes)
        monkeypatch.setattr(download, "RESUMED_BYTES", _LARGE_ENOUGH)
        missing = here.remotes.fetch(files)
        for file, blob in zip(files, blobs, strict=True):
            assert here.bytes_of(file) == (None if file in missing else blob)
        expected = {file.digest.partition(":")[2] for file in missing if file.size >= _LARGE_ENOUGH}
        assert {path.stem for path in here.partial_files()} <= expected
    # No fault is permanent: once remotes work correctly, everything arrives.
    assert machine(folder, with_blobs(MemoryRemote(), *blobs)).remotes.fetch(files) == []
