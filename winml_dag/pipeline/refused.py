"""What a stage put out whose result a build refused: laid where its reader finds it, as the output folder stays what it
was.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from winml_dag.engine.events import StageResult, Status
from winml_dag.pipeline.layout import STAGE_FILE
from winml_dag.store.local import LocalStore


def with_refused(results: Iterable[StageResult], store: LocalStore) -> Iterator[StageResult]:
    """*results*, those that were refused with the file that says why."""
    for result in results:
        kept = _kept(result, store) if result.status is Status.FAILED and result.record is not None else None
        yield result if kept is None else replace(result, kept=kept)


def _kept(result: StageResult, store: LocalStore) -> Path | None:
    """Beside the logs of failures. None where there is no such file, or no room for it."""
    assert result.record is not None
    name = STAGE_FILE.get(result.node.stage.name)
    entry = next((file for file in result.record.files() if file.name == name), None)
    if entry is None:
        return None
    kept = store.failures / f"{result.node.stage.name}-{result.record.cache_key[:16]}{Path(entry.name).suffix}"
    with suppress(OSError):
        store.failures.mkdir(parents=True, exist_ok=True)
        store.bring((entry,))
        shutil.copyfile(store.blobs.path(entry.digest), kept)
        return kept
    return None
