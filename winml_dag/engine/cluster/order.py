"""What passes between who builds and who works: an order to run one stage, and the answer. Both are JSON texts.

No file passes with them: inputs and outputs are named by their digests and lie in the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.progress import Progress
from winml_dag.engine.stage import Node, node_json, node_of, stage_json, stage_of
from winml_dag.errors import StageError, StoreError
from winml_dag.explanation import explanation
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.record import Record

# Raised when the texts change: a worker of another one is not asked.
PROTOCOL = 1
# Stages that may be asked for by name. Others work in their user's folder, and run where that is.
OURS = "winml_dag.stages."

# done: it ran. found: its result was there by then. failed: the stage did. differs: the machine is no longer what the
# key says. damaged: an input could not be had. stopped: nobody wants it any more.
Ending: TypeAlias = Literal["done", "found", "failed", "differs", "damaged", "stopped"]


@dataclass(frozen=True)
class Order:
    """One attempt to run *node*.

    Attributes:
        id: of this attempt, unlike any other.
        topic: what is told while it runs is told under this name.
        inputs: artifacts by slot, which are in the store.
        key: of the result.
        memory_bytes: what it is expected to take.
        rebuild: whether it is to run although its result is there.
        function: that new files are digested with.
        remotes: where the store finds what is not on a machine; None: the machine has the store of who orders.
    """

    id: str
    topic: str
    node: Node
    inputs: Mapping[str, Artifact]
    key: str
    timeout_seconds: float
    memory_bytes: int
    rebuild: bool
    function: str
    remotes: JsonValue = None

    def to_text(self) -> str:
        return json.dumps(
            {
                "protocol": PROTOCOL,
                "id": self.id,
                "topic": self.topic,
                "stage": stage_json(self.node.stage),
                # What its tools are there, the worker has told; here they lie elsewhere.
                "node": node_json(replace(self.node, tools={})),
                "inputs": {slot: artifact.to_json() for slot, artifact in self.inputs.items()},
                "key": self.key,
                "timeout_seconds": self.timeout_seconds,
                "memory_bytes": self.memory_bytes,
                "rebuild": self.rebuild,
                "function": self.function,
                "remotes": self.remotes,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Order:
        """Raises StageError for what is no order, or one for work that is none of ours."""
        value = _object(text)
        try:
            node = node_of(value["node"], stage_of(value["stage"]))
            order = cls(
                id=str(value["id"]),
                topic=str(value["topic"]),
                node=node,
                inputs={slot: Artifact.from_json(files) for slot, files in value["inputs"].items()},
                key=str(value["key"]),
                timeout_seconds=float(value["timeout_seconds"]),
                memory_bytes=int(value["memory_bytes"]),
                rebuild=bool(value["rebuild"]),
                function=str(value["function"]),
                remotes=value["remotes"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, StoreError) as error:
            raise StageError(f"This is no order to run a stage: {explanation(error)}.") from error
        if not is_ours(node):
            raise StageError(f"{node.id} is no stage that may be asked for: {node.stage.work or 'a command'}.")
        return order


def is_ours(node: Node) -> bool:
    """Whether *node* can be done on another machine: all that it reads are its inputs, and its code is ours."""
    stage = node.stage
    named = (stage.work, stage.config)
    return (
        all(reference.startswith(OURS) for reference in named)
        and node.command is None
        and node.folder is None
        and not (node.surroundings or stage.works_in_place or stage.alone)
    )


@dataclass(frozen=True)
class Answer:
    """What became of an order.

    Attributes:
        record: of what ran or was found.
        file: of an input that could not be had.
        log: of a failure, with its beginning and its end.
        report: what the machine says of itself now, when it differs.
        told: what its store had to say, such as of a remote that does not answer.
    """

    ending: Ending
    record: Record | None = None
    error: str = ""
    advice: str = ""
    elapsed_seconds: float = 0.0
    tail: tuple[str, ...] = ()
    metrics: JsonObject = field(default_factory=dict)
    progress: Progress | None = None
    log: str = ""
    file: FileEntry | None = None
    report: str = ""
    told: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps(
            {
                **self.__dict__,
                "protocol": PROTOCOL,
                "record": None if self.record is None else self.record.to_json(),
                "progress": None if self.progress is None else self.progress.__dict__,
                "file": None if self.file is None else self.file.to_json(),
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Answer:
        """Raises StageError for what is no answer."""
        value = _object(text)
        try:
            del value["protocol"]
            record, progress, file = value.pop("record"), value.pop("progress"), value.pop("file")
            return cls(
                **{**value, "tail": tuple(value["tail"]), "told": tuple(value["told"])},
                record=None if record is None else Record.from_json(record),
                progress=None if progress is None else Progress(**progress),
                file=None if file is None else Artifact.from_json([file]).files[0],
            )
        except (KeyError, TypeError, ValueError, StoreError) as error:
            raise StageError(f"This is no answer to an order: {explanation(error)}.") from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise StageError(f"A text of the cluster is no JSON: {error}.") from error
    if not isinstance(value, dict) or value.get("protocol") != PROTOCOL:
        raise StageError(
            "A text of the cluster is of another version of winml_dag.", advice="Install one version everywhere."
        )
    return value
