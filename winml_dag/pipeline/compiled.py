"""The result of compilation in a build, from the record of its stage: partitions, nodes left on the CPU, the binary.

Times are those of the original run; ``cached`` means that this build took the result from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import StageResult
from winml_dag.pipeline.layout import is_builtin
from winml_dag.pipeline.quantized import from_metrics

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult


@dataclass(frozen=True)
class CompileResult:
    """A successful compilation.

    Attributes:
        ep_context_partitions: partitions that the provider runs, one EPContext node each.
        nodes_on_cpu: the number of operators left on the CPU, by type.
        cpu_nodes: these nodes, with ``name`` and ``op_type`` of each.
        edge_quantization_nodes: conversions of the model's inputs and outputs, left on the CPU on purpose.
        ep_sdk_version, ep_compatibility_info: as written by the provider; empty if it writes none.
        binary_size_bytes: the size of all binaries, embedded in the model or next to it.
        elapsed_seconds: the duration of the whole stage, including reading and checking.
    """

    execution_provider: str = ""
    device: str = ""
    ep_context_partitions: int = 0
    nodes_on_cpu: dict[str, int] = field(default_factory=dict)
    cpu_nodes: tuple[dict[str, str], ...] = ()
    edge_quantization_nodes: int = 0
    ep_sdk_version: str = ""
    ep_compatibility_info: str = ""
    binary_size_bytes: int = 0
    compile_time_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    cached: bool = False

    def to_json(self) -> JsonObject:
        return asdict(self)


def compile_result(result: BuildResult) -> CompileResult | None:
    """Return the result of compilation in *result*; None if the build compiles nothing or failed earlier."""
    return compile_step([view.result for view in result.stages if view.result is not None])


def compile_step(results: Sequence[StageResult]) -> CompileResult | None:
    """Return the result of the successful built-in compile stage among *results*, if there is one."""
    stage = next((each for each in results if each.node.stage.name == "compile" and is_builtin(each.node)), None)
    if stage is None or stage.record is None:
        return None
    fields = stage.record.key_inputs.config.get("compile")
    chosen = fields if isinstance(fields, Mapping) else {}
    elapsed = stage.record.elapsed_seconds
    found = from_metrics(
        CompileResult,
        stage,
        execution_provider=chosen.get("execution_provider", ""),
        device=chosen.get("device", ""),
        elapsed_seconds=elapsed,
    )
    # Old records only have the duration of the stage.
    return found if found.compile_time_seconds else replace(found, compile_time_seconds=elapsed)
