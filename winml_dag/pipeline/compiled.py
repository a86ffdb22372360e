"""The result of compilation in a build, from the record of its stage: partitions, nodes left on the CPU, the binary.

Times are those of the original run; ``cached`` means that this build took the result from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.events import StageResult, Status
from winml_dag.pipeline.layout import is_ours

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

    execution_provider: str
    device: str
    ep_context_partitions: int
    nodes_on_cpu: Mapping[str, int]
    cpu_nodes: tuple[Mapping[str, str], ...]
    edge_quantization_nodes: int
    ep_sdk_version: str
    ep_compatibility_info: str
    binary_size_bytes: int
    compile_time_seconds: float
    elapsed_seconds: float
    cached: bool

    def to_json(self) -> JsonObject:
        return asdict(self)


def compile_result(result: BuildResult) -> CompileResult | None:
    """Return the result of compilation in *result*; None if the build compiles nothing or failed earlier."""
    return compile_step([view.result for view in result.stages if view.result is not None])


def compile_step(results: Sequence[StageResult]) -> CompileResult | None:
    """Return the result of the successful built-in compile stage among *results*, if there is one."""
    stage = next((each for each in results if each.node.stage.name == "compile" and is_ours(each.node)), None)
    if stage is None or stage.record is None:
        return None
    fields, metrics = stage.record.key_inputs.config.get("compile"), stage.record.metrics
    asked = fields if isinstance(fields, Mapping) else {}
    return CompileResult(
        execution_provider=str(asked.get("execution_provider", "")),
        device=str(asked.get("device", "")),
        ep_context_partitions=int(_number(metrics, "ep_context_partitions")),
        nodes_on_cpu=_counts(metrics.get("nodes_on_cpu")),
        cpu_nodes=_nodes(metrics.get("cpu_nodes")),
        edge_quantization_nodes=int(_number(metrics, "edge_quantization_nodes")),
        ep_sdk_version=str(metrics.get("ep_sdk_version", "")),
        ep_compatibility_info=str(metrics.get("ep_compatibility_info", "")),
        binary_size_bytes=int(_number(metrics, "binary_size_bytes")),
        # Old records only have the duration of the stage.
        compile_time_seconds=_number(metrics, "compile_time_seconds") or stage.record.elapsed_seconds,
        elapsed_seconds=stage.record.elapsed_seconds,
        cached=stage.status is not Status.RAN,
    )


def _number(metrics: JsonObject, name: str) -> float:
    value = metrics.get(name)
    return value if isinstance(value, int | float) else 0


def _counts(value: JsonValue) -> dict[str, int]:
    counted = value.items() if isinstance(value, Mapping) else ()
    return {name: count for name, count in counted if isinstance(count, int)}


def _nodes(value: JsonValue) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple({name: str(text) for name, text in node.items()} for node in value if isinstance(node, Mapping))
