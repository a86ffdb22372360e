"""What a status of HTTP means for a remote, whoever speaks it."""

from __future__ import annotations

from http import HTTPStatus

from winml_dag.store.remote.remote import RemoteError, Trouble

# What a put that may only create is answered with when something is there.
THERE = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_FULL = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.INSUFFICIENT_STORAGE)
_MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


def is_good(status: int) -> bool:
    return 200 <= status < 300


def refusal(status: int, because: str = "") -> RemoteError:
    """The error for a *status* that is not good. What does not pass by itself, a 400 too, counts as not allowed."""
    trouble: Trouble = "forbidden"
    if status in _FULL:
        trouble = "full"
    elif status in _MAY_PASS or (status >= 500 and status != HTTPStatus.NOT_IMPLEMENTED):
        trouble = "failing"
    return RemoteError(trouble, said(status) + because)


def said(status: int) -> str:
    try:
        return f"answered {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"answered {status}"
