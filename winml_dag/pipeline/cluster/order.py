"""Messages between a build and its workers, as JSON: an order to run one stage, and an answer.

Neither contains files: inputs and outputs are in a store and are identified by their digests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import core_schema

from winml_dag.canonical import JsonObject
from winml_dag.engine.progress import Progress
from winml_dag.engine.stage import Node, node_json, node_of, stage_json, stage_of
from winml_dag.errors import StageError, StoreError
from winml_dag.explanation import explanation
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import Mode, TierSettings, shown

# Increased when the messages change: a worker with another number gets no orders.
PROTOCOL: Final = 2
# Stages from other packages work in their user's folder, and run on that machine.
_OURS = "winml_dag.stages."

# done: it ran. found: its result existed by then. failed: the stage failed. differs: the worker no longer has the tools
# that are in the key. damaged: an input could not be fetched.
Ending: TypeAlias = Literal["done", "found", "failed", "differs", "damaged"]


def is_ours(node: Node) -> bool:
    """Whether *node* can run on another machine: it reads only its inputs, and its code is part of winml_dag."""
    stage = node.stage
    return (
        all(reference.startswith(_OURS) for reference in (stage.work, stage.config))
        and node.command is None
        and node.folder is None
        and not (node.surroundings or stage.works_in_place or stage.alone)
    )


@dataclass(frozen=True)
class _As:
    """How pydantic reads and writes a class of this package that it must not inspect itself."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            core_schema.no_info_plain_validator_function(self.read),
            core_schema.any_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
        )


def _read_node(value: Any) -> Node:
    node = node_of(value["node"], stage_of(value["stage"]))
    if not is_ours(node):
        raise ValueError(f"{node.id} is no stage that may be asked for: {node.stage.work or 'a command'}.")
    return node


def _write_node(node: Node) -> JsonObject:
    # Paths of this machine are meaningless on the worker.
    return {"stage": stage_json(node.stage), "node": node_json(replace(node, tools={}, interpreter=None))}


def _read_file(value: Any) -> FileEntry:
    return Artifact.from_json([value]).files[0]


def _read_remote(value: Any) -> TierSettings:
    trusted = None if value["trusted"] is None else frozenset(value["trusted"])
    return TierSettings(**{**value, "mode": Mode(value["mode"]), "trusted": trusted})


def _write_remote(level: TierSettings) -> JsonObject:
    # Passwords stay on each machine: a worker inserts its own.
    trusted = None if level.trusted is None else sorted(level.trusted)
    return {**level.__dict__, "url": shown(level.url), "trusted": trusted}


T = TypeVar("T", bound="Text")


class Text(BaseModel):
    """A message between builds and workers."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    protocol: Literal[2] = PROTOCOL

    def to_text(self) -> str:
        return self.model_dump_json()

    @classmethod
    def from_text(cls: type[T], text: str) -> T:
        """Raises StageError for any other text, and for an order of a stage that is not built-in."""
        try:
            return cls.model_validate_json(text)
        except (ValidationError, StoreError, KeyError, TypeError, AttributeError) as error:
            raise StageError(
                f"This is no {cls.__name__.lower()} of this version of winml_dag: {explanation(error)}.",
                advice="Install one version everywhere.",
            ) from error


class Order(Text):
    """One attempt to run *node*.

    Attributes:
        id: of this attempt.
        topic: the topic of dask events under which progress and log lines are published.
        inputs: artifacts by slot.
        key: of the result.
        rebuild: whether to run even if the result exists.
        store: identity of the store that the build uses, and *function* its digest function.
        remotes: of the build, the nearest first; for workers with another store.
    """

    id: str
    topic: str
    node: Annotated[Node, _As(_read_node, _write_node)]
    inputs: dict[str, Annotated[Artifact, _As(Artifact.from_json, Artifact.to_json)]]
    key: str
    timeout_seconds: float
    rebuild: bool
    store: str
    function: Literal["xxh3-128", "sha256"]
    remotes: tuple[Annotated[TierSettings, _As(_read_remote, _write_remote)], ...] = ()


class Answer(Text):
    """The outcome of an order.

    Attributes:
        address: of the worker.
        in_remote: whether its outputs are in the remote of the build.
        record: of the run, or of the result that was found.
        file: the input that could not be fetched.
        log: of a failure.
        report: the worker's current report, if it differs.
        told: warnings of its store, such as an unreachable remote.
    """

    ending: Ending
    address: str = ""
    in_remote: bool = False
    record: Annotated[Record, _As(Record.from_json, Record.to_json)] | None = None
    error: str = ""
    advice: str = ""
    elapsed_seconds: float = 0.0
    tail: tuple[str, ...] = ()
    metrics: dict[str, Any] = {}
    progress: Progress | None = None
    log: str = ""
    file: Annotated[FileEntry, _As(_read_file, FileEntry.to_json)] | None = None
    report: str = ""
    told: tuple[str, ...] = ()
