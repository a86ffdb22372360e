"""Who made a record: what a reader of a shared cache wants to know of a result that is not their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Maker:
    """No word of this is in a key, and all of it is in the signature.

    Attributes:
        builder: this program with its version, ``winml_dag 0.1.0``.
        run: the CI run, as an address where the system tells one; empty outside of CI.
        revision: the commit that CI builds; empty when it does not say.
        host: the class of machine, ``Linux x86_64``, and no name.
        tools: versions of Python and of the packages that most often matter, by name.
    """

    builder: str
    run: str = ""
    revision: str = ""
    host: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
