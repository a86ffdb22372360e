"""Disks that fill up at one write after the other or are read-only, and permissions lost during a run."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fault_engine import Step
from fault_lab import Impossible, Lab, Told, at_step

# On Windows these files are imported too, and skipped.
_LIBC = ctypes.CDLL(None if sys.platform != "win32" else "msvcrt", use_errno=True)
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVELY_PRIVATE = 0x4000 | 0x40000
_REMOUNT, _READ_ONLY = 0x20, 0x1
_DROP_FROM_BOUNDS = 24
_OVERRIDES_OF_PERMISSIONS = (1, 2)
_CAPABILITIES_VERSION = 0x20080522

_PAGE = 4096
_ROOMY = "size=64m,nr_inodes=10000"
_FULL = re.compile(r"full|No space left on device|Errno 28")
_DENIED = re.compile(r"[Pp]ermission denied|cannot be (written|read|used)|Errno 13|readonly database")


def full_disk(lab: Lab) -> Iterator[None]:
    """Run on disks with room for none to all of the needed pages, in random order."""
    yield from _sweep(lab, lambda used: used.f_blocks - used.f_bfree, lambda pages: f"size={pages * _PAGE}")


def no_more_files(lab: Lab) -> Iterator[None]:
    """Run on disks with room for none to all of the needed files and folders, which breaks their creation."""
    yield from _sweep(lab, lambda used: used.f_files - used.f_ffree, lambda files: f"size=64m,nr_inodes={files}")


def _sweep(lab: Lab, used: Callable[[os.statvfs_result], int], limited_to: Callable[[int], str]) -> Iterator[None]:
    """Try each size on a new disk and on one whose cache already has some of the results."""
    _own_mounts()
    disk = lab.folder / "disk"
    disk.mkdir()
    lab.cache = disk / "cache"
    steps = lab.graphs.new(3, 3)
    known = steps[:2]
    needs = []
    for before in ([], known):
        with _mounted(disk, _ROOMY):
            _make_known(lab, before)
            start = used(os.statvfs(disk))
            assert lab.run(steps).done
            needs.append(used(os.statvfs(disk)) - start)
    # Temporary files, scratch and journals, need extra room, so the sweep continues beyond the need.
    places = [(room, before) for need, before in zip(needs, ([], known), strict=True) for room in range(need * 3 // 2)]
    lab.chance.shuffle(places)
    for room, before in places:
        with _mounted(disk, _ROOMY):
            _make_known(lab, before)
            _remount(disk, limited_to(max(1, used(os.statvfs(disk)) + room)))  # 0 would mean no limit
            _said_in_words(lab, steps, lab.run(steps), _FULL)
            _remount(disk, _ROOMY)
            lab.check(steps)
        yield


def _make_known(lab: Lab, steps: list[Step]) -> None:
    if steps:
        assert lab.run(steps).done


def read_only(lab: Lab) -> Iterator[None]:
    """Runs with nothing to do succeed. Stages that must run report an error with the reason."""
    _own_mounts()
    disk = lab.folder / "disk"
    disk.mkdir()
    lab.cache = disk / "cache"
    while True:
        with _mounted(disk, _ROOMY):
            known = lab.graphs.new()
            lab.build(known)
            _remount(disk, "", _READ_ONLY)
            told = lab.run(known)
            assert told.done, f"Nothing was needed, and yet: {told.words}"
            assert set(told.status.values()) == {"reused"}
            lab.compare(known, told)
            more = lab.graphs.new(fresh=1)
            told = lab.run(more)
            assert not told.done
            for word in ("read-only", str(lab.cache), "--cache-dir"):
                assert word in " ".join(told.words), told.words
            _remount(disk, _ROOMY)
            lab.check(more)
            lab.check(known)
        yield


def permission_lost(lab: Lab) -> Iterator[None]:
    """Remove the permissions of a cache folder or file at a random step of an engine, and restore them afterwards."""
    _obey_permissions()
    steps_of_a_run = lab.run(lab.graphs.new()).steps
    while True:
        steps = lab.graphs.new()
        closed = lab.chance.choice([path for path in lab.cache.rglob("*") if "scratch" not in path.parts])
        mode = lab.chance.choice([0o000, 0o444, 0o555])
        before = closed.stat().st_mode
        told = lab.run(steps, at_step(lab.chance.randint(1, steps_of_a_run), partial(closed.chmod, mode)))
        with suppress(FileNotFoundError):
            closed.chmod(before)
        _said_in_words(lab, steps, told, _DENIED)
        lab.check(steps)
        yield


def _said_in_words(lab: Lab, steps: list[Step], told: Told, words: re.Pattern[str]) -> None:
    """Assert that either everything succeeded and is correct, or each error names the cause."""
    if told.done:
        lab.compare(steps, told)
    for error in told.words:
        assert words.search(error), f"This error does not name the fault: {error}"


def _own_mounts() -> None:
    """Give this process a mount namespace of its own, so that its mounts vanish when it ends."""
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER):
        raise Impossible("The system gives this user no mounts of its own (unshare).")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount(b"none", Path("/"), None, _RECURSIVELY_PRIVATE, "")


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    _mount(b"tmpfs", folder, b"tmpfs", 0, options)
    try:
        yield
    finally:
        _LIBC.umount2(bytes(folder), 2)


def _remount(folder: Path, options: str, flags: int = 0) -> None:
    _mount(b"tmpfs", folder, b"tmpfs", _REMOUNT | flags, options)


def _mount(what: bytes, folder: Path, kind: bytes | None, flags: int, options: str) -> None:
    if _LIBC.mount(what, bytes(folder), kind, ctypes.c_ulong(flags), options.encode()):
        raise Impossible(f"mount {folder} {options}: {os.strerror(ctypes.get_errno())}.")


def _obey_permissions() -> None:
    """Make root obey permissions, here and in child processes, by dropping the override capabilities.

    Another user, such as nobody, might not be able to read this checkout and its Python.
    """
    if os.geteuid() != 0:
        return
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    failed = _LIBC.capget(header, sets)
    for capability in _OVERRIDES_OF_PERMISSIONS:
        failed |= _LIBC.prctl(_DROP_FROM_BOUNDS, capability, 0, 0, 0)
        for place in (0, 1):  # effective, permitted
            sets[place] &= ~(1 << capability)
    if failed or _LIBC.capset(header, sets):
        raise Impossible("The system does not let root give up its override of permissions.")
