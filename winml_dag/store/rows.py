"""The seam to the index: small JSON values by namespace and name. Apart from it, so that its users cost no SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, TypeAlias

from winml_dag.canonical import JsonValue

Namespace: TypeAlias = Literal["record", "fingerprint", "latest"]


class Rows(Protocol):
    """Small values by namespace and name: the index, or its in-memory twin."""

    def read(self, namespace: Namespace, names: Iterable[str]) -> dict[str, JsonValue]:
        """The values of those *names* that are here and undamaged."""

    def write(self, namespace: Namespace, values: Mapping[str, JsonValue]) -> None:
        """Keep *values* by name, all or none of them."""
