"""What is said of a compilation at the end of a build: for whom, in how many parts, and what stayed on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from winml_dag.onnxmodel.facts import QDQ
from winml_dag.pipeline.compiled import CompileResult, compile_result
from winml_dag.store.quantities import counted, size_text

if TYPE_CHECKING:
    from winml_dag.pipeline.buildresult import BuildResult

# As many as fit into a line beside the rest; the manifest and JSON name all.
_MOST_NAMES = 3
_MOST_TYPES = 5


def compiled_lines(result: BuildResult) -> Iterator[str]:
    """``compiled for QNNExecutionProvider npu: 1 partition, nothing on the CPU, 23.8 MiB binary, SDK 2.51.0, 1.1 s``,
    and a second line that names operators which stayed on the CPU.
    """
    done = compile_result(result)
    if done is None:
        return
    left = sum(done.nodes_on_cpu.values())
    parts = [
        counted(done.ep_context_partitions, "partition"),
        f"{counted(left, 'node')} on the CPU" if left else "nothing on the CPU",
        f"{size_text(done.binary_size_bytes)} binary",
        *([f"SDK {_short(done.ep_sdk_version)}"] if done.ep_sdk_version else []),
        f"{done.compile_time_seconds:.1f} s{' (reused)' if done.cached else ''}",
    ]
    yield f"compiled for {done.execution_provider} {done.device}: {', '.join(parts)}"
    if left:
        yield f"on the CPU: {_left(done)}"


def _short(version: str) -> str:
    """``v2.51.0.260929181845`` without the number of the build."""
    return ".".join(version.removeprefix("v").split(".")[:3])


def _left(done: CompileResult) -> str:
    """``2 Gather, 1 Cast (/embed/Gather, /pool/Gather, /Cast_1)``, the most frequent operators first. Conversions come
    last: they follow from the others.
    """
    ranked = sorted(done.nodes_on_cpu.items(), key=lambda entry: (entry[0] in QDQ, -entry[1], entry[0]))
    types = [f"{count} {op_type}" for op_type, count in ranked[:_MOST_TYPES]]
    if more := sum(count for _, count in ranked[_MOST_TYPES:]):
        types.append(f"{more} more")
    nodes = sorted(done.cpu_nodes, key=lambda node: node.get("op_type") in QDQ)
    names = [node.get("name", "") for node in nodes[:_MOST_NAMES]]
    if len(done.cpu_nodes) > _MOST_NAMES:
        names.append("...")
    return f"{', '.join(types)} ({', '.join(names)})" if names else ", ".join(types)
