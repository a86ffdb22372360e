"""What a library's exception says: one line for the user, all of it for the log."""

from __future__ import annotations

import traceback


def logged_reason(error: BaseException) -> str:
    """The first line of *error*; its traceback goes to stderr, which is the stage's log."""
    traceback.print_exception(error)
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
