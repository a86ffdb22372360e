"""Runs all tests with a remote, started manually.

``WINML_DAG_TEST_REMOTE=off pytest ...`` computes all digests as with a remote, and ``WINML_DAG_TEST_REMOTE=own`` gives
each project of the scenarios its own remote next to its cache. This finds dependencies on a digest function or on local
blobs. Tests that read blobs or name digests of the other function fail with it, which is no error.
"""

from __future__ import annotations

import os
from pathlib import Path

_VARIABLE = "WINML_DAG_TEST_REMOTE"


def for_all() -> dict[str, str]:
    """Return the environment variables of every test."""
    if os.environ.get(_VARIABLE) != "off":
        return {}
    return {"WINML_DAG_REMOTE": "file:///nowhere", "WINML_DAG_REMOTE_MODE": "off"}


def beside(cache: Path) -> dict[str, str]:
    """Return the environment variables of commands that use *cache*."""
    if os.environ.get(_VARIABLE) != "own":
        return {}
    return {
        "WINML_DAG_REMOTE": (cache.parent / f"{cache.name}-remote").as_uri(),
        "WINML_DAG_REMOTE_MODE": "read-write",
        "WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1",
    }
