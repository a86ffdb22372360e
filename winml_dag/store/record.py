"""The value of a cache key: everything recorded about one finished run of a stage.

A record has the inputs of its key (so that a later miss can report what differs), the digests of the outputs, the
metrics, the duration and who made it. It is plain JSON. Reading one checks every field, because a record may come from
a cache folder that somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from winml_dag.canonical import JsonObject, JsonValue, json_hash
from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry

RECORD_FORMAT = 1


@dataclass(frozen=True)
class KeyInputs:
    """Everything that a cache key is made from.

    ``config`` has the resolved recipe fields that the stage reads, by section; ``inputs`` the digest of each input
    slot; ``toolchain`` the versions and fingerprints of everything that affects the bytes, by name.
    """

    stage: str
    version: int
    config: JsonObject
    inputs: Mapping[str, str]
    toolchain: Mapping[str, str]

    @cached_property
    def config_hash(self) -> str:
        """The hash of ``config``, used for the key and for the record."""
        return json_hash(self.config)


@dataclass(frozen=True)
class Record:
    """One finished, successful run. ``elapsed_seconds`` is the run itself, without waiting.

    ``input_files`` lists the files of each input slot, so that a later miss can name the one that differs. It is in no
    key, may be missing, and is validated on use: it can be long, and only reasons need it.

    ``origin`` is what the remote of the record reported about it (``Trust.verify``); empty for runs of this store.
    """

    cache_key: str
    config_hash: str
    key_inputs: KeyInputs
    outputs: Mapping[str, Artifact]
    metrics: JsonObject = field(default_factory=dict)
    elapsed_seconds: float = 0.0
    log: FileEntry | None = None
    made_at: str = ""
    made_by: str = ""
    input_files: JsonObject = field(default_factory=dict)
    origin: JsonObject = field(default_factory=dict)

    def input_artifact(self, slot: str) -> Artifact | None:
        """The files that were read from *slot*; None if they were not recorded, or not validly."""
        try:
            artifact = Artifact.from_json(self.input_files.get(slot))
        except StoreError:
            return None
        return artifact if artifact.digest == self.key_inputs.inputs.get(slot) else None

    def files(self) -> tuple[FileEntry, ...]:
        """Every file that a hit on this record needs: the outputs, not the log."""
        return tuple(file for artifact in self.outputs.values() for file in artifact.files)

    def to_json(self) -> JsonObject:
        made = self.key_inputs
        return {
            "format": RECORD_FORMAT,
            "cache_key": self.cache_key,
            "config_hash": self.config_hash,
            "stage": made.stage,
            "version": made.version,
            "config": made.config,
            "inputs": made.inputs,
            "input_files": self.input_files,
            "toolchain": made.toolchain,
            "outputs": {slot: artifact.to_json() for slot, artifact in self.outputs.items()},
            "metrics": self.metrics,
            "elapsed_seconds": self.elapsed_seconds,
            "log": None if self.log is None else self.log.to_json(),
            "made_at": self.made_at,
            "made_by": self.made_by,
            **({"origin": self.origin} if self.origin else {}),
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> Record:
        """Rebuild from :meth:`to_json`.

        Raises:
            StoreError: when a field is missing, of another type, or names a file outside its artifact.
        """
        if not isinstance(value, Mapping) or value.get("format") != RECORD_FORMAT:
            raise StoreError("A record in the cache is malformed or of another format.")
        key_inputs = KeyInputs(
            stage=_text(value, "stage"),
            version=_whole(value, "version"),
            config=_object(value, "config"),
            inputs=_texts(value, "inputs"),
            toolchain=_texts(value, "toolchain"),
        )
        log = value.get("log")
        return cls(
            cache_key=_text(value, "cache_key"),
            config_hash=_text(value, "config_hash"),
            key_inputs=key_inputs,
            outputs={slot: Artifact.from_json(files) for slot, files in _object(value, "outputs").items()},
            metrics=_object(value, "metrics"),
            elapsed_seconds=_number(value, "elapsed_seconds"),
            log=None if log is None else Artifact.from_json([log]).files[0],
            made_at=_text(value, "made_at"),
            made_by=_text(value, "made_by"),
            input_files=_object(value, "input_files") if "input_files" in value else {},
            origin=_object(value, "origin") if "origin" in value else {},
        )


def _text(value: JsonObject, name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        raise StoreError(f"A record in the cache has no text in {name!r}.")
    return found


def _number(value: JsonObject, name: str) -> float:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise StoreError(f"A record in the cache has no number in {name!r}.")
    return found


def _whole(value: JsonObject, name: str) -> int:
    found = _number(value, name)
    if not isinstance(found, int):
        raise StoreError(f"A record in the cache has no whole number in {name!r}.")
    return found


def _object(value: JsonObject, name: str) -> JsonObject:
    found = value.get(name)
    if not isinstance(found, Mapping):
        raise StoreError(f"A record in the cache has no object in {name!r}.")
    return found


def _texts(value: JsonObject, name: str) -> dict[str, str]:
    found = _object(value, name)
    return {key: _text(found, key) for key in found}
