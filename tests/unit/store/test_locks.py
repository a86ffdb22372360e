from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from store_samples import KEY, OTHER_KEY

from winml_dag.errors import Interrupted, StoreError
from winml_dag.store.locks import Locks
from winml_dag.store.store import Store

HOLD = """
import sys
from pathlib import Path
from winml_dag.store.store import Store
with Store(Path(sys.argv[1])).claim(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def holder(store: Store):
    """Another process that holds KEY until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.folder), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def is_free(store: Store, key: str) -> bool:
    try:
        with store.claim(key, gives_up=lambda: True):
            return True
    except Interrupted:
        return False


def test_claim_excludes_other_processes_until_released(store, holder) -> None:
    assert not is_free(store, KEY)
    assert is_free(store, OTHER_KEY)
    got = threading.Event()

    def wait() -> None:
        with store.claim(KEY):
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not got.is_set()
    holder.communicate("")
    waiter.join()
    assert got.is_set()


def test_claim_ends_when_its_process_is_killed(store, holder) -> None:
    os.kill(holder.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    holder.wait()
    with store.claim(KEY):
        pass


def test_claims_of_threads_are_exclusive(store) -> None:
    inside, most, refused = 0, 0, threading.Event()

    def waits() -> bool:
        refused.set()
        return False

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with store.claim(KEY, waits):
                inside += 1
                # The first one stays until another has tried to enter, and has to wait.
                assert refused.wait(30)
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused.is_set()
    assert most == 1


def test_hold_unused_is_refused_while_store_is_in_use(store, holder) -> None:
    with pytest.raises(StoreError, match="in use"), store.locks.hold_unused():
        pass
    holder.communicate("")
    with store.locks.hold_unused():
        pass


def test_claim_waits_while_store_is_held_exclusively(store) -> None:
    got, waits = threading.Event(), threading.Event()

    def still_waits() -> bool:
        waits.set()
        return False

    def work() -> None:
        with store.claim(KEY, gives_up=still_waits):
            got.set()

    with store.locks.hold_unused():
        waiter = threading.Thread(target=work)
        waiter.start()
        assert waits.wait(60)
        assert not got.is_set()
    waiter.join()
    assert got.is_set()


def test_unusable_lock_folder_is_reported(tmp_path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(StoreError, match="a file is where a folder should be"), Locks(tmp_path / "locks").hold("x"):
        pass


COUNT_UP = """
import sys
from pathlib import Path
from winml_dag.store.store import Store
store, counter = Store(Path(sys.argv[1])), Path(sys.argv[2])
for _ in range(25):
    with store.locks.hold("0123456789"):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Links are refused with O_NOFOLLOW.")
@pytest.mark.timeout(30)
def test_lock_file_that_is_a_link_is_refused(tmp_path) -> None:
    locks = Locks(tmp_path / "locks")
    (tmp_path / "locks").mkdir()
    for target in (tmp_path / "elsewhere", tmp_path / "missing" / "elsewhere"):
        (tmp_path / "locks" / "one.lock").symlink_to(target)
        with pytest.raises(StoreError, match="Cannot lock one"), locks.hold("one"):
            pass
        assert not target.exists()
        (tmp_path / "locks" / "one.lock").unlink()


def test_free_lock_files_can_be_removed_during_use(tmp_path) -> None:
    """Each turn reads a number and writes it plus one: two concurrent turns would lose one."""
    store = Store(tmp_path / "cache")
    counter = tmp_path / "counter"
    counter.write_text("0")
    takers = [
        subprocess.Popen([sys.executable, "-c", COUNT_UP, str(store.folder), str(counter)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    while any(taker.poll() is None for taker in takers):
        store.locks.remove_free()
    assert [taker.communicate()[1] for taker in takers] == [b"", b""]
    assert counter.read_text() == "50"


def test_only_held_lock_files_are_kept(store, holder) -> None:
    holder.kill()
    holder.wait()
    folder = store.folder / "locks"
    assert [file.name for file in folder.iterdir()] == [f"{KEY}.lock"]
    with store.locks.hold("held"):
        store.locks.remove_free()
        assert [file.name for file in folder.iterdir()] == ["held.lock"]


def test_exclusive_holder_may_take_any_lock(store) -> None:
    with store.locks.hold_unused():
        with store.locks.hold("index"):
            pass
        with store.locks.try_hold("index") as free:
            assert free


def test_released_locks_leave_no_files(store) -> None:
    for number in range(3):
        with store.claim(f"{number:064}"), store.scratch.open():
            pass
    assert list((store.folder / "locks").iterdir()) == []


def test_claiming_a_held_key_in_the_same_thread_raises(store) -> None:
    with store.claim(KEY), pytest.raises(RuntimeError), store.claim(KEY, gives_up=lambda: True):
        pass
