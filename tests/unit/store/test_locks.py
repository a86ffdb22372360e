from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from store_samples import KEY, OTHER_KEY

from winml_dag.errors import StoreError
from winml_dag.store.local import LocalStore
from winml_dag.store.locks import Locks

HOLD = """
import sys
from pathlib import Path
from winml_dag.store.local import LocalStore
with LocalStore(Path(sys.argv[1])).claim(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(store: LocalStore):
    """Another process that holds KEY until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.folder), KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def is_free(store: LocalStore, name: str) -> bool:
    with store.locks.try_hold(name) as free:
        return free


def test_a_claim_keeps_other_processes_out_until_it_ends(store, holder) -> None:
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


def test_a_claim_ends_with_its_process_however_that_dies(store, holder) -> None:
    os.kill(holder.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    holder.wait()
    with store.claim(KEY):
        pass


def test_threads_take_turns(store) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with store.claim(KEY):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_nobody_is_kept_out_while_somebody_is_in(store, holder) -> None:
    with pytest.raises(StoreError, match="in use"), store.locks.hold_unused():
        pass
    holder.communicate("")
    with store.locks.hold_unused():
        pass


def test_who_comes_while_all_are_kept_out_waits(store) -> None:
    got = threading.Event()

    def work() -> None:
        with store.claim(KEY):
            got.set()

    with store.locks.hold_unused():
        waiter = threading.Thread(target=work)
        waiter.start()
        # It takes its own lock first, and waits for the common one with that in hand.
        while is_free(store, KEY):
            pass
        assert not got.is_set()
    waiter.join()
    assert got.is_set()


def test_a_lock_folder_that_cannot_be_made_is_an_error_in_words(tmp_path) -> None:
    (tmp_path / "locks").write_text("a file")
    with pytest.raises(StoreError, match="a file is where a folder should be"), Locks(tmp_path / "locks").hold("x"):
        pass


COUNT_UP = """
import sys
from pathlib import Path
from winml_dag.store.local import LocalStore
store, counter = LocalStore(Path(sys.argv[1])), Path(sys.argv[2])
for _ in range(60):
    with store.claim("0123456789"):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def test_files_of_free_locks_can_be_removed_while_others_take_turns(store, tmp_path) -> None:
    """Each turn reads a number and writes it plus one: two turns at once would lose one."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    takers = [
        subprocess.Popen([sys.executable, "-c", COUNT_UP, str(store.folder), str(counter)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    removed = 0
    while any(taker.poll() is None for taker in takers):
        removed += store.locks.remove_free()
    assert [taker.communicate()[1] for taker in takers] == [b"", b""]
    assert removed > 0
    assert counter.read_text() == "120"


def test_the_file_of_a_lock_that_is_held_stays(store, holder) -> None:
    with store.claim(OTHER_KEY):
        pass
    assert store.locks.remove_free() >= 1
    assert [file.stem for file in (store.folder / "locks").iterdir()] == [KEY]
    assert not is_free(store, KEY)
    holder.communicate("")
    assert store.locks.remove_free() == 1
