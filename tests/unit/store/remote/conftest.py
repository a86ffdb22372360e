"""Fixtures of all tests of remotes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from winml_dag.store.remote import transfer


@pytest.fixture(scope="package", autouse=True)
def _short_pauses() -> Iterator[None]:
    """Retry at once; these tests have no server that needs time to recover."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "_PAUSES", (0.001,) * 4)
        yield
