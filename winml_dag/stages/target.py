"""The target on which validate, perf and evaluate run a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import Target


@dataclass(frozen=True)
class RunTarget:
    """``execution_provider`` is the full name; ``provider_options`` are those of a session.

    None of the options names a file: such options control compilation, and their files would not be among the inputs.
    """

    execution_provider: str
    device: str
    provider_options: Mapping[str, str] = field(default_factory=dict)

    def resolve(self) -> Target:
        return resolve_target(self.execution_provider, self.device)
