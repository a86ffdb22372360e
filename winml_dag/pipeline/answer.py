"""What a model itself must be asked: a stage that is in no build is run for what it tells, and nothing of it is kept.

It has a process of its own, since it may bring code of its own, and so that its memory comes back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.execute import Job, LocalExecutor
from winml_dag.engine.stage import Node, Source, Stage
from winml_dag.errors import StageError


def answer_of(stage: Stage, config: JsonObject, sources: Mapping[str, Source | None]) -> JsonObject:
    """What *stage* tells; of *sources* it finds the folders among its surroundings, under their names there.

    Raises:
        StageError: when it fails.
    """
    folders = {name: str(_folder(source)) for name, source in sources.items() if source is not None}
    node = Node(stage.name, stage, config, {}, surroundings=folders)
    with tempfile.TemporaryDirectory(prefix=f"winml-dag-{stage.name}-", ignore_cleanup_errors=True) as name:
        executor = LocalExecutor()
        try:
            outcome = executor.run(Job(node, Path(name), stage.timeout_seconds))
        finally:
            executor.close()
    if outcome.error:
        raise StageError(outcome.error, advice=outcome.advice)
    return outcome.metrics


def _folder(source: Source) -> Path:
    """The folder that all files of *source* lie in, under the names that they have there."""
    first = source.files[0]
    # A snapshot of the hub has links to files of other names elsewhere, so they are not followed.
    return first.path.absolute().parents[len(Path(first.name).parts) - 1]
