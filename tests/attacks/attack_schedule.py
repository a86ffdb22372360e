"""Schedules of moves, builds and other commands, drawn by Hypothesis, and the invariants after any of them.

An undisturbed build gives what the oracle says, or ends with an error when something blocks it. A disturbed build may
end in any way. The next one must be correct, which reveals whatever the disturbed one has stored.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import attack_moves
from attack_commands import AT_STAGES, AT_THE_END, CALL, Command, Happenings, warm_up
from attack_moves import BETWEEN_BUILDS_ONLY, BLOCKING, HARMLESS, ON_CACHE, Move
from attacked_project import RECIPE, TWIN, Site, expected
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

_ENDS = {0, 1, 2, 3}
_ENDS_OF = {"kill": {-signal.SIGKILL}, "interrupt": {130, -signal.SIGINT}}
# Approximate number of system calls in one run of all stages.
_MOST_CALLS = 1500
# Files of the user, which are only read.
_READ = ("src", "data", "tools", "cur", RECIPE, TWIN)
# Of 20 to 40 steps each: about fifty steps, which is as many as the tests ask for.
_SCHEDULES_AT_ONCE = 2


@dataclass(frozen=True)
class Do:
    """The move *what* of ``attack_moves``, or within a build ``kill`` or ``interrupt``."""

    what: str
    number: int = 0

    @property
    def may_block(self) -> bool:
        return getattr(attack_moves, self.what, None) in BLOCKING

    def __call__(self, site: Site) -> None:
        if self.what in _ENDS_OF:
            os.kill(os.getpid(), signal.SIGKILL if self.what == "kill" else signal.SIGINT)
            return
        # Impossible moves are skipped. A move that stops halfway leaves a state like any other.
        with suppress(OSError, StopIteration, IndexError, ValueError):
            getattr(attack_moves, self.what)(site, self.number)


@dataclass(frozen=True)
class At:
    """Run *do* when *point* of a build is reached for the *time*-th time."""

    point: str
    time: int
    do: Do


@dataclass(frozen=True)
class Build:
    """Build *recipe*, and *beside* at the same time in another process.

    *by*: the path to build from; ``at`` is a link to the project or its clone. *twice*: build again without changes.
    """

    recipe: str = RECIPE
    during: tuple[At, ...] = ()
    beside: str = ""
    by: str = "project"
    jobs: int = 1
    twice: bool = False
    rebuild: bool = False

    @property
    def options(self) -> list[str]:
        return ["--jobs", str(self.jobs), *(["--rebuild"] if self.rebuild else [])]

    @property
    def is_disturbed(self) -> bool:
        return bool(self.during or self.beside)


@dataclass(frozen=True)
class Ask:
    """A command that builds nothing."""

    command: str
    recipe: str = RECIPE


Step: TypeAlias = Do | Build | Ask


def _moves(*groups: Sequence[Move], without: Sequence[Move] = ()) -> st.SearchStrategy[Do]:
    names = [move.__name__ for group in groups for move in group if move not in without]
    return st.builds(Do, st.sampled_from(names), st.integers(0, 83))


def _moments(what: st.SearchStrategy[Do]) -> st.SearchStrategy[tuple[At, ...]]:
    at_stages = st.builds(At, st.sampled_from(AT_STAGES), st.integers(1, 7), what)
    at_the_end = st.builds(At, st.sampled_from(AT_THE_END), st.just(1), what)
    at_calls = st.builds(At, st.just(CALL), st.integers(1, _MOST_CALLS), what)
    return st.lists(st.one_of(at_stages, at_stages, at_the_end, at_calls), min_size=1, max_size=3).map(tuple)


def there_and_back(time: int, number: int) -> tuple[At, ...]:
    """Change a file only while one stage runs."""
    return (
        At("before start", time, Do("change", number)),
        At("before check", time, Do("change_back", number)),
    )


_BETWEEN = _moves(HARMLESS, HARMLESS, BLOCKING, ON_CACHE)
_WITHIN = st.one_of(
    _moves(HARMLESS, HARMLESS, BLOCKING, ON_CACHE, without=BETWEEN_BUILDS_ONLY), st.sampled_from([*map(Do, _ENDS_OF)])
)
_RECIPES = st.sampled_from([RECIPE, RECIPE, RECIPE, RECIPE, TWIN])
_PLACES = st.sampled_from(["project", "project", "project", "at", "clone"])
_QUIET = st.builds(Build, _RECIPES, by=_PLACES, twice=st.booleans(), rebuild=st.sampled_from([False, False, True]))
_DISTURBED = st.builds(
    Build,
    _RECIPES,
    st.one_of(st.builds(there_and_back, st.integers(1, 6), st.integers(0, 27)), _moments(_WITHIN)),
    beside=st.sampled_from(["", "", "", RECIPE, TWIN]),
    by=_PLACES,
    jobs=st.sampled_from([1, 1, 3]),
    # Otherwise most stages are cached after a few steps, and nothing is running when actions happen.
    rebuild=st.booleans(),
)
_ASK = st.builds(Ask, st.sampled_from(["plan", "why", "verify", "clean"]), _RECIPES)
SCHEDULES = st.lists(
    st.one_of(_BETWEEN, _BETWEEN, _BETWEEN, _BETWEEN, _QUIET, _DISTURBED, _ASK), min_size=20, max_size=40
)


_LOSE = {"manifest": {"start_anew", "lose_bookkeeping"}, "blob": {"truncate_blob"}}


@dataclass
class Siege:
    """A project under attack, and its history. *coarse_clock*: files count as racy as long as on FAT."""

    site: Site
    coarse_clock: bool = False
    is_blocked: bool = field(default=False, init=False)
    _vouchers_lost: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.site.make()

    def play(self, schedule: list[Step]) -> None:
        for step in schedule:
            match step:
                case Do():
                    self._expect(step)
                    step(self.site)
                case Build(is_disturbed=True):
                    self.disturb(step)
                    self.build(step.recipe, step.by)
                case Build():
                    self.build(step.recipe, step.by, *step.options)
                    if step.twice:
                        self.build(step.recipe, step.by)
                        self._verify(step.recipe, step.by)
                case Ask():
                    self._ask(step)
        for recipe in (RECIPE, TWIN):
            self.build(recipe, "project")
        self._start_anew()
        self._verify(RECIPE, "project")

    def build(self, recipe: str, by: str, *options: str) -> None:
        """Run an undisturbed build. If something blocks it, remove that and build again."""
        folder = self._folder(by)
        with self._untouched(*(folder / name for name in _READ)):
            code, said = self._run(["build", "-c", f"{by}/{recipe}", *options])
        if code == 0:
            self._compare(recipe, folder, said)
            return
        assert self.is_blocked, f"Nothing was in the way, and yet:\n{said}"
        assert "error: " in said, f"There is no word of what was wrong:\n{said}"
        self._start_anew()

    def _start_anew(self) -> None:
        """Restore inputs that have been built before, and remove everything that blocks."""
        self.site.make()
        self.is_blocked = False
        self._vouchers_lost = set()
        for recipe in (RECIPE, TWIN):
            self.build(recipe, "project")

    def _expect(self, move: Do) -> None:
        """Record whether the next build may fail after *move*.

        An output is recognized as owned by its manifest or its blob; without both, it may be foreign.
        """
        self._vouchers_lost |= {voucher for voucher, moves in _LOSE.items() if move.what in moves}
        self.is_blocked |= move.may_block or len(self._vouchers_lost) == len(_LOSE)

    def _compare(self, recipe: str, folder: Path, said: str) -> None:
        try:
            right = expected(self.site, folder, recipe)
        except OSError as error:
            raise AssertionError(f"What cannot be built was built: {error}\n{said}") from error
        found = {name: _content(folder / name) for name in right}
        wrong = {name: (text, right[name]) for name, text in found.items() if text != right[name]}
        assert not wrong, f"These are wrong (what is there, and what should be): {wrong}\n{said}"
        assert os.access(folder / ("build" if recipe == RECIPE else "twin") / "mark.txt", os.X_OK)

    def disturb(self, build: Build) -> None:
        happens: dict[tuple[str, int], list[Callable[[], None]]] = {}
        for at in build.during:
            self._expect(at.do)
            happens.setdefault((at.point, at.time), []).append(partial(at.do, self.site))
        self._folder(build.by)
        with self._untouched():
            command = self._start(["build", "-c", f"{build.by}/{build.recipe}", *build.options], happens)
            others = [self._start(["build", "-c", f"{build.by}/{build.beside}"])] if build.beside else []
            ended = [each.wait() for each in (command, *others)]
        for place, (code, said) in enumerate(ended):
            what = {at.do.what for at in build.during} if place == 0 else set()
            ends = {code for kind, codes in _ENDS_OF.items() if kind in what for code in codes}
            _check(code in _ENDS | ends, code, said)

    def _verify(self, recipe: str, by: str) -> None:
        """Assert that a correct build also passes its own verification."""
        manifests = Path(by, ".winml-dag", recipe)
        if (self.site.root / manifests).is_dir():
            code, said = self._run(["verify", str(manifests)])
            assert code == 0, said

    def _ask(self, ask: Ask) -> None:
        with self._untouched(*(self.site.project / name for name in _READ)):
            where = f"project/.winml-dag/{ask.recipe}" if ask.command == "verify" else f"project/{ask.recipe}"
            code, said = self._run([ask.command, *(() if ask.command == "verify" else ("-c",)), where])
        if code and ask.command in ("plan", "why"):
            assert self.is_blocked, f"Nothing was in the way, and yet:\n{said}"

    def _run(self, arguments: list[str]) -> tuple[int, str]:
        code, said = self._start(arguments).wait()
        _check(code in _ENDS, code, said)
        return code, said

    def _start(self, arguments: list[str], happens: Happenings | None = None) -> Command:
        return Command(self.site, self.site.root, arguments, happens or {}, coarse_clock=self.coarse_clock)

    def _folder(self, by: str) -> Path:
        folder = self.site.root / by
        if not folder.is_dir():
            Do("clone")(self.site)
        return folder

    def _untouched(self, *read: Path) -> _Untouched:
        return _Untouched((self.site.outside, *read))


class _Untouched:
    """Asserts that all files below these folders are still the very same at the end of the block."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._before: dict[str, tuple[object, ...]] = {}

    def __enter__(self) -> None:
        self._before = self._look()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            after = self._look()
            touched = {path for path in {*self._before, *after} if self._before.get(path) != after.get(path)}
            assert not touched, f"Files were touched that are none of the build's: {touched}"

    def _look(self) -> dict[str, tuple[object, ...]]:
        return {str(path): _identity(path) for folder in self._folders for path in (folder, *_files(folder))}


def _identity(path: Path) -> tuple[object, ...]:
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _check(is_stable_end: bool, code: int, said: str) -> None:
    assert "Traceback (most recent call last)" not in said, said
    assert is_stable_end, f"It ended with {code}.\n{said}"


def prepare(folder: Path) -> None:
    """Make the first command as fast as all others."""
    site = Site(folder / "warm")
    site.make()
    recipes = [str(site.project / name) for name in (RECIPE, TWIN)]
    builds = [["build", "-c", recipe] for recipe in recipes]
    asks = [[command, "-c", recipes[0]] for command in ("plan", "why", "clean")]
    warm_up(site, [*builds, *builds, ["verify", str(site.project / ".winml-dag" / RECIPE)], *asks])
    shutil.rmtree(site.root)
    # Keep the garbage collector of each child from scanning the objects here, which would copy their pages.
    gc.freeze()


def steps(folder: Path, number: int) -> int:
    """Play some schedules with the seed *number* below *folder*, and return the number of steps."""
    played = 0

    @seed(number)
    @settings(max_examples=_SCHEDULES_AT_ONCE, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(SCHEDULES, st.booleans())
    def play(schedule: list[Step], coarse_clock: bool) -> None:
        nonlocal played
        with tempfile.TemporaryDirectory(dir=folder) as root:
            Siege(Site(Path(root)), coarse_clock).play(schedule)
        played += len(schedule)

    play()
    return played
