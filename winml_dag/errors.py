"""All errors for users, each with the exit code of the command line.

The message states what happened and to which file or key; ``advice`` states what to do next. Library code raises these
errors and only the command line prints them, so that the Python API and the CLI report the same. Also here: what a
message suggests instead of an unknown word.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winml_dag.canonical import JsonObject


class WinmlDagError(Exception):
    """Base class of all errors that a user can fix; never shown with a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, advice: str = "") -> None:
        # Messages of libraries have no full stop, so the advice would continue their sentence.
        goes_on = bool(advice) and (message[-1:].isalnum() or message.endswith(("'", '"', ")", "]")))
        self.message = f"{message}." if goes_on else message
        super().__init__(self.message)
        self.advice = advice
        self.metrics: JsonObject = {}

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".rstrip()


class StageError(WinmlDagError):
    """A stage failed: raised inside of it, reported with its log."""


@contextmanager
def stage_errors_of(place: str) -> Iterator[None]:
    """Begin the messages of StageErrors with the *place* that they are about."""
    try:
        yield
    except StageError as error:
        raise StageError(f"{place}: {error.message}", advice=error.advice) from error


class MeasuredError(StageError):
    """A stage failed because of a measured value. ``metrics``: all that it had measured by then."""

    def __init__(self, message: str, *, advice: str = "", metrics: JsonObject) -> None:
        super().__init__(message, advice=advice)
        self.metrics = metrics


class StoreError(WinmlDagError):
    """The cache cannot be used: unknown format, no permission, disk full."""


class UsageError(WinmlDagError, ValueError):
    """Options or inputs that do not fit together: an option's value, a graph that is not one."""

    exit_code = 2


class RecipeError(UsageError):
    """An invalid recipe. ``problems`` has one line for each finding, all collected at once."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])


class InputError(WinmlDagError):
    """A model, data file or folder that is missing, unreadable or of another kind than its name says."""

    exit_code = 3


class Interrupted(WinmlDagError):
    """The user stopped the run (Ctrl-C). Child processes have ended, and no partial results remain."""

    exit_code = 130


def warn(sentence: str) -> None:
    """Log a warning of this package, or print it if the program does not use logging."""
    # Importing logging here would take 8 ms, and fail when too many files are open, which is one of the warnings.
    logging = sys.modules.get("logging")
    if logging is None:
        print(sentence, file=sys.stderr)
    else:
        logging.getLogger("winml_dag").warning("%s", sentence)


# The signals that end a build, limited to those that this system has.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
ENDING_SIGNALS: tuple[signal.Signals, ...] = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


def few(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first *most* of *names*: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{separator.join(names[:most])}{more}"


# More than any built-in list has; the labels of an axis may be thousands.
_MOST_SHOWN = 200


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """Return ``; did you mean 'samples'?`` for the nearest of *choices*, or nothing if none is near."""
    # Imported here, because only errors need it.
    from difflib import get_close_matches

    by_folded, folded = {choice.casefold(): choice for choice in choices}, str(word).casefold()
    begun = [choice for choice in by_folded if len(folded) > 2 and choice.startswith(folded)]
    # Of names that begin each other, such as openvino and openvinoexecutionprovider, the shortest.
    begun = sorted((choice for choice in begun if begun[0].startswith(choice)), key=len)
    nearest = begun or get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def known_instead(word: object, choices: Iterable[str]) -> str:
    """Call :func:`did_you_mean`; if none is near, list all of *choices*, or the first of very many."""
    choices = tuple(choices)
    return did_you_mean(word, choices) or f"; known are {few(choices, _MOST_SHOWN)}"
