"""One of the models of an evaluation: loaded where it runs, with how many samples it takes at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.ep.registry import Target
from winml_dag.ep.session import create_session
from winml_dag.onnxmodel.inspect import TensorSpec, inspect_model
from winml_dag.stages.evaluate import EvaluateFields
from winml_dag.stages.running import Batching
from winml_dag.stages.samples.samples import Array, Feed

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True)
class Model:
    """``outputs``: with the shapes that the file tells."""

    file: Path
    session: onnxruntime.InferenceSession
    batching: Batching
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def load(cls, file: Path, target: Target, options: Mapping[str, str], fields: EvaluateFields) -> Model:
        """Raises StageError when it does not load there, or cannot take as many samples at once as *fields* say."""
        session = create_session(file, target, options)
        batching = Batching.of(session, fields.batch_size, whole=fields.mode == "compare")
        return cls(file, session, batching, tuple(inspect_model(file).outputs))

    def run(self, names: Sequence[str], feeds: Sequence[Feed]) -> Iterator[list[Array]]:
        return self.batching.run(self.session, names, feeds)
