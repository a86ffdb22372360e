"""All tests once with a remote, by hand: ``WINML_DAG_TEST_REMOTE=off pytest ...`` has all digests made as with one, and
``WINML_DAG_TEST_REMOTE=own`` gives each project of the scenarios a remote of its own beside its cache.

It is for finding what depends on a digest function or on blobs being here. Tests that look into blobs or name digests
of the other function fail with it, and that is no error.
"""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLE = "WINML_DAG_TEST_REMOTE"


def for_all() -> dict[str, str]:
    """What every test has in its environment."""
    if os.environ.get(_VARIABLE) != "off":
        return {}
    return {"WINML_DAG_REMOTE": "file:///nowhere", "WINML_DAG_REMOTE_MODE": "off"}


def beside(cache: Path) -> dict[str, str]:
    """What commands that use *cache* have in theirs."""
    if os.environ.get(_VARIABLE) != "own":
        return {}
    return {
        "WINML_DAG_REMOTE": (cache.parent / f"{cache.name}-remote").as_uri(),
        "WINML_DAG_REMOTE_MODE": "read-write",
        "WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1",
    }
