"""Fixtures of all tests of remotes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.s3 import S3, s3_server

from winml_dag.store.remote import transfer


@pytest.fixture(scope="package", autouse=True)
def _short_pauses() -> Iterator[None]:
    """Retry at once; these tests have no server that needs time to recover."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_PAUSES", (0.001,) * 4)
        yield


@pytest.fixture(scope="package")
def s3_running() -> Iterator[S3]:
    with s3_server() as s3:
        yield s3
