"""Starts a program that may not read one folder, and write only where it should: Landlock, on Linux.

Run as a file: ``python -I -S confine.py HIDDEN FOLDER PROGRAM ARGUMENTS...``. It imports nothing of ours, takes its
own rights away, and becomes the program. Landlock knows no "all but this", so everything beside each folder on the way
to HIDDEN is allowed in its place. What no rule of it can do (statting a file, changing its mode) stays possible; its
bytes are out of reach.
"""

# Every module that it does not import starts it sooner.
# ruff: noqa: PTH112, PTH120

import ctypes
import os
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READING = _EXECUTE | _READ_FILE | _READ_DIR
# Removing and making, all kinds of files: bits 4 to 12. Then what later versions brought: moving, truncating.
_MAKING = 0x1FF0
_MOVING, _TRUNCATING = 1 << 13, 1 << 14
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATING

# Programs write to these as a matter of course.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")


def landlock_version() -> int:
    """0 where the kernel has no Landlock, or does not let us use it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


class _Rules:
    def __init__(self, version: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.writing = _WRITE_FILE | _MAKING
        if version >= 2:
            self.writing |= _MOVING
        if version >= 3:
            self.writing |= _TRUNCATING
        ruleset = struct.pack("=Q", _READING | self.writing)
        self._ruleset = self._call(_CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0)

    def allow(self, path: str, rights: int) -> None:
        """Allow *rights* on *path* and all below it; a path that is not there needs none."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if not os.path.isdir(path):
                rights &= _ON_FILES
            self._call(_ADD_RULE, self._ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
        finally:
            os.close(descriptor)

    def enforce(self) -> None:
        if self._libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        self._call(_RESTRICT_SELF, self._ruleset, 0)

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._libc.syscall(number, *arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


def _beside(hidden: str) -> list[str]:
    """Everything but *hidden* and the folders that it lies in: what lies beside each of them.

    No links: what one leads to is allowed by its own place, and may be *hidden*.
    """
    found = []
    while hidden != os.path.dirname(hidden):
        parent, name = os.path.split(hidden)
        try:
            with os.scandir(parent) as entries:
                found += [entry.path for entry in entries if entry.name != name and not entry.is_symlink()]
        except OSError:
            pass
        hidden = parent
    return found


def _programs(hidden: str) -> list[str]:
    """What must stay readable even below *hidden*: programs and Python's own folders, such as a ``.venv``."""
    search = [sys.prefix, sys.base_prefix, *os.environ.get("PATH", "").split(os.pathsep)]
    search += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    real = {os.path.realpath(folder) for folder in search if folder}
    # Not the hidden folder itself, nor one around it, if somebody has it on the path.
    return [folder for folder in real if not f"{hidden}/".startswith(f"{folder.rstrip('/')}/")]


def confine(hidden: str, folder: str) -> None:
    """Take away this process's right to read *hidden* and to write anything but *folder*, temporary files, devices."""
    rules = _Rules(landlock_version())
    hidden, folder = os.path.realpath(hidden), os.path.realpath(folder)
    for path in [*_beside(hidden), *_programs(hidden)]:
        rules.allow(path, _READING)
    rules.allow(folder, _READING | rules.writing)
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        # Not when the hidden folder lies in it: what may be written below it may be made to be read.
        if not f"{hidden}/".startswith(f"{os.path.realpath(path)}/"):
            rules.allow(path, _READING | rules.writing)
    for path in _DEVICES:
        rules.allow(path, _READ_FILE | _WRITE_FILE | _READ_DIR)
    rules.enforce()


def main() -> None:
    hidden, folder, program, *arguments = sys.argv[1:]
    confine(hidden, folder)
    try:
        os.execve(program, arguments, os.environ)
    except OSError as error:
        sys.exit(f"{program} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
