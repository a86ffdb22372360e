"""The records of a store as a person looks at them: what each takes, when made and last used, and by its prefix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.errors import UsageError
from winml_dag.store.digest import digest_bytes, split_digest
from winml_dag.store.files import in_words
from winml_dag.store.held import FOLDER as STANDING
from winml_dag.store.held import held_by_standing
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record

# As many as one reads at a glance.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Entry:
    """A record in a list. ``size``: bytes of its outputs and its log, those that others share included."""

    record: Record
    size: int
    used_ns: int

    @property
    def key(self) -> str:
        return self.record.cache_key

    @property
    def stage(self) -> str:
        return self.record.ingredients.stage


def entries(store: LocalStore, stage: str | None = None) -> list[Entry]:
    """Every record that can be read, in order of key; of *stage* only."""
    with in_words("Cannot look through the cache"):
        records = store.records.all()
    held = held_by_standing(store.folder / STANDING)
    return [_entry(store, record, held) for record in records if stage in (None, record.ingredients.stage)]


def find(store: LocalStore, prefix: str) -> Entry:
    """The one record whose key begins with *prefix*.

    Raises:
        UsageError: when there is none, naming where to look, or more than one, naming them.
    """
    with in_words("Cannot look through the cache"):
        keys = [key for key in store.records.keys() if key.startswith(prefix.lower())]  # noqa: SIM118
        found = [record for key in keys[: _MOST_NAMED + 1] if (record := store.records.read(key)) is not None]
    if not found:
        raise UsageError(
            f"No record in {store.folder} has a key that begins with {prefix!r}.",
            advice="`winml-dag cache list` shows them all.",
        )
    if len(found) > 1:
        named = ", ".join(f"{record.cache_key[:16]} ({record.ingredients.stage})" for record in found[:_MOST_NAMED])
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        raise UsageError(
            f"{len(keys)} keys begin with {prefix!r}: {named}{more}.", advice="Give more of the one that you mean."
        )
    return _entry(store, found[0], held_by_standing(store.folder / STANDING))


def log_text(store: LocalStore, record: Record) -> str | None:
    """The log of *record*; None when it has none, or none that is sound."""
    if record.log is None:
        return None
    store.bring((record.log,))
    try:
        data = store.blobs.path(record.log.digest).read_bytes()
    except OSError:
        return None
    is_sound = digest_bytes(data, split_digest(record.log.digest)[0]) == record.log.digest
    return data.decode("utf-8", "replace") if is_sound else None


def _entry(store: LocalStore, record: Record, held: Mapping[str, int]) -> Entry:
    log = 0 if record.log is None else record.log.size
    key = record.cache_key
    used_ns = max(store.records.last_used_ns(key), held.get(key, 0))
    return Entry(record, log + sum(file.size for file in record.files()), used_ns)
