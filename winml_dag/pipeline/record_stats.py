"""What a build adds to the cache's accounts when it has ended, and the cache kept to its limit after it."""

from __future__ import annotations

from collections.abc import Iterable

from winml_dag.engine.events import StageResult, Status
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.buildgraph import BuildGraph
from winml_dag.store.cache_folder import note_build
from winml_dag.store.record import Record
from winml_dag.store.store import Store


def record_stats(planned: BuildGraph | None, results: Iterable[StageResult], store: Store) -> str:
    """Note what was reused and what ran; when anything was stored, remove what the cache has no room for by its limit.
    *planned*: of a build, which may have left out stages that were up to date.

    Returns a sentence if anything was removed, or should have been and could not: no reason for a build to fail.
    """
    # By key: one record may be the result of several stages, as of rounds of optimize and analyze that add nothing.
    found: dict[str, Record] = {}
    made: dict[str, Record] = {}
    for result in results:
        if result.record is not None:
            (made if result.status is Status.RAN else found)[result.record.cache_key] = result.record
    fetched = store.take_fetched()
    ran, reused = list(made.values()), [record for key, record in found.items() if key not in made]
    note_build(
        store.folder,
        reused=len(reused) + (0 if planned is None else planned.others),
        ran=len(ran),
        seconds_saved=_seconds(reused) + _seconds_of_others(planned, [*reused, *ran]),
        stored_bytes=fetched + sum(_size(record) for record in ran),
    )
    return _kept_to_limit(store) if ran or fetched else ""


def _seconds(records: Iterable[Record]) -> float:
    return sum(record.elapsed_seconds for record in records)


def _seconds_of_others(planned: BuildGraph | None, records: Iterable[Record]) -> float:
    """How long the stages took that this part of a build leaves out: all of them took so long when that was noted."""
    if planned is None or not planned.others or planned.current_plan is None:
        return 0.0
    return max(0.0, planned.current_plan.entry.header.seconds - _seconds(records))


def _size(record: Record) -> int:
    return sum(file.size for file in record.files()) + (0 if record.log is None else record.log.size)


def _kept_to_limit(store: Store) -> str:
    # Imported here: nothing of it is needed by a build that runs nothing.
    from winml_dag.store.quantities import counted, size_text
    from winml_dag.store.usage import keep_to_limit, limit_text

    try:
        done = keep_to_limit(store)
    except WinmlDagError as error:
        return f"The cache could not be kept to its limit: {error}"
    if done is None:
        return ""
    return (
        f"The cache had outgrown its limit of {limit_text(store.folder)}, so {counted(done.records, 'record')} and "
        f"{counted(done.blobs, 'blob')} that were used longest ago were removed, {size_text(done.freed_bytes)}; "
        f"{size_text(done.left_bytes)} are left."
    )
