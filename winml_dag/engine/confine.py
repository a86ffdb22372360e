"""Start a program that cannot read one folder and can write only to allowed paths, with Landlock on Linux.

Run as a script: ``python -I -S confine.py HIDDEN FOLDER PROGRAM ARGUMENTS...``. It imports nothing from this package,
drops its own rights, and executes the program. Landlock has no deny rules, so the script instead allows every sibling
of each folder on the path to HIDDEN. Operations that Landlock does not restrict (stat of a file, changing its mode)
stay possible, but the file's bytes cannot be read.
"""

# Each module that is not imported makes startup faster.
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
# Removing and creating files of every type: bits 4 to 12. Later versions added moving and truncating.
_MAKING = 0x1FF0
_MOVING, _TRUNCATING = 1 << 13, 1 << 14
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATING

# Programs routinely write to these.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")


def landlock_version() -> int:
    """The Landlock version; 0 if the kernel has no Landlock or does not permit its use."""
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
        """Allow *rights* on *path* and everything below it; a path that does not exist is ignored."""
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
    """Everything except *hidden* and its parent folders: the siblings of each of them.

    Links are skipped. A rule for the link's target covers it, and the target may be *hidden*.
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
    """Folders that must stay readable even below *hidden*: programs and Python's own folders, such as a ``.venv``."""
    search = [sys.prefix, sys.base_prefix, *os.environ.get("PATH", "").split(os.pathsep)]
    search += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    real = {os.path.realpath(folder) for folder in search if folder}
    # Exclude the hidden folder and its parents, in case one of them is on the search path.
    return [folder for folder in real if not f"{hidden}/".startswith(f"{folder.rstrip('/')}/")]


def confine(hidden: str, folder: str) -> None:
    """Drop this process's right to read *hidden*, and to write outside of *folder*, temporary folders and devices."""
    rules = _Rules(landlock_version())
    hidden, folder = os.path.realpath(hidden), os.path.realpath(folder)
    for path in [*_beside(hidden), *_programs(hidden)]:
        rules.allow(path, _READING)
    rules.allow(folder, _READING | rules.writing)
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        # Skip it if it contains the hidden folder: write access below it could be turned into read access.
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
