"""A model file as lines for people and as JSON: the output of ``winml-dag inspect``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import few
from winml_dag.onnxmodel.description import Description, Sidecar, TensorSize
from winml_dag.onnxmodel.graph import Model
from winml_dag.onnxmodel.inspect import EpContext, TensorSpec
from winml_dag.pipeline.assess.provenance import Provenance
from winml_dag.pipeline.assess.verification import Found
from winml_dag.stages.compiled import cpu_nodes, first_names
from winml_dag.stages.quality import Quality
from winml_dag.store.quantities import counted, size_text

_MOST_OPERATORS = 12
_MOST_PARTITIONS = 5
_LONGEST_VALUE = 60
_WIDTH = 11


@dataclass(frozen=True)
class Neighbour:
    """Another model in the same folder. ``what``: a short description, or why it cannot be read."""

    name: str
    size: int
    what: str


@dataclass(frozen=True)
class Inspected:
    """All information about one model.

    ``provenance_problem``: why the manifest next to it is unusable. ``neighbours``: filled when a folder was requested.
    """

    model: Description
    provenance: Provenance | None
    provenance_problem: str
    neighbours: tuple[Neighbour, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        told = self.provenance
        if self.provenance_problem:
            return (*self.model.warnings, self.provenance_problem)
        if told is None or told.check is None or told.check.found is Found.SOUND:
            return self.model.warnings
        changed = f"It is not the file that its build made: {told.check.detail or told.check.found}."
        return (*self.model.warnings, changed)


def described_lines(inspected: Inspected, top: int) -> Iterator[str]:
    """Return the complete description, with the *top* largest tensors."""
    return map(plain, _lines(inspected, top))


def plain(line: str) -> str:
    """Escape characters in *line* that a terminal interprets or a reader cannot see: names in a model are untrusted."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)


def _lines(inspected: Inspected, top: int) -> Iterator[str]:
    model = inspected.model
    summary = model.summary
    yield f"{model.path}: {_sizes(model)}"
    yield from _labelled("precision", [_precision(inspected)])
    yield from _labelled("format", [_format(model)])
    yield from _labelled("about", _about(model.model))
    yield from _labelled("inputs", map(_value, summary.inputs))
    yield from _labelled("outputs", map(_value, summary.outputs))
    yield from _labelled("nodes", [_operators(summary.op_counts, summary.total_nodes)])
    yield from _labelled("compiled", _compiled(model))
    yield from _labelled("files", (_sidecar(file) for file in model.sidecars if file.holds == "weights"))
    yield from _labelled("tensors", _tensors(model, top))
    yield from _labelled("metadata", _metadata(summary.metadata))
    if inspected.provenance is not None:
        yield from _labelled("made by", _provenance(inspected.provenance))
    yield from (f"warning: {warning}" for warning in inspected.warnings)
    if inspected.neighbours:
        yield f"all models of {model.path.parent}:"
        width = max(len(other.name) for other in inspected.neighbours)
        for other in inspected.neighbours:
            yield f"  {other.name:<{width}}  {size_text(other.size):>10}  {other.what}"


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    for place, line in enumerate(lines):
        yield f"  {'' if place else label:<{_WIDTH}}{line}"


def _sizes(model: Description) -> str:
    size = size_text(model.size)
    beside = [file.name for file in model.sidecars]
    if not beside:
        return size
    return f"{size}, with {', '.join(beside)} {size_text(model.total_size)}"


def _precision(inspected: Inspected) -> str:
    found = inspected.model.precision
    text = found.text or "no numbers"
    told = inspected.provenance
    if found.scheme == "compiled" and told is not None and told.check is not None and told.build["precision"]:
        return f"{told.build['precision']} as its manifest says; {text}"
    return text


def _format(model: Description) -> str:
    summary = model.summary
    # A compiler declares every domain that it supports.
    used = {name.rpartition("/")[0] for name in summary.op_counts} | {"", "ai.onnx"}
    opsets = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(summary.opsets.items()) if domain in used
    )
    producer = f"; made by {summary.producer}" if summary.producer else ""
    return f"ONNX IR {summary.ir_version}, opset {opsets}{producer}"


def _about(model: Model) -> Iterator[str]:
    if model.description:
        yield _cut(model.description)
    if model.domain or model.version:
        yield f"{model.domain or 'no domain'}, version {model.version}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _value(spec: TensorSpec) -> str:
    return f"{spec.name}  {spec.dtype}{_shape(spec.shape)}"


def _shape(shape: Iterable[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _operators(counts: Mapping[str, int], total: int) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f"{total}: {few([f'{name} {count}' for name, count in ordered], _MOST_OPERATORS)}"


def _compiled(model: Description) -> Iterator[str]:
    contexts = model.summary.ep_context
    if not contexts:
        return
    sources = ", ".join(sorted({context.source or "an unknown provider" for context in contexts}))
    versions = ", ".join(sorted({context.sdk_version for context in contexts} - {""}))
    yield f"for {sources}, {counted(len(contexts), 'partition')}{f', SDK {versions}' if versions else ''}"
    for context in contexts[:_MOST_PARTITIONS]:
        yield f"{context.partition or 'partition'}: {_binary(context, model)}"
    if len(contexts) > _MOST_PARTITIONS:
        yield f"and {len(contexts) - _MOST_PARTITIONS} more"
    left = cpu_nodes(model.model)
    edges = model.summary.total_nodes - len(contexts) - len(left)
    conversions = f" but {counted(edges, 'conversion')} at its edges" if edges else ""
    nothing = f"nothing is left to the CPU{conversions}"
    yield f"left to the CPU: {first_names(left)}" if left else nothing
    for provider, info in model.compatibility.items():
        yield f"compatibility with {provider}: {info}"


def _binary(context: EpContext, model: Description) -> str:
    if context.embedded_bytes:
        return f"embedded, {size_text(context.embedded_bytes)}"
    if context.sidecar is None:
        return "in the binary of another partition"
    return next(_sidecar(file) for file in model.sidecars if file.name == context.sidecar)


def _sidecar(file: Sidecar) -> str:
    if file.size is None:
        return f"{file.name}, missing"
    shared = f", shared with {', '.join(file.shared_with)}" if file.shared_with else ""
    return f"{file.name}, {size_text(file.size)}{shared}{', cut short' if file.problem else ''}"


def _tensors(model: Description, top: int) -> Iterator[str]:
    if not model.tensors:
        return
    by_dtype = sorted(model.summary.tensor_bytes.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {size_text(size)}" for name, size in by_dtype)
    yield f"{len(model.tensors)}, {size_text(model.summary.weight_size)}: {shares}"
    yield from (f"{size_text(tensor.size):>10}  {_tensor(tensor)}" for tensor in model.tensors[:top])


def _tensor(tensor: TensorSize) -> str:
    return f"{tensor.name}  {tensor.dtype}{_shape(tensor.shape)}{f' in {tensor.file}' if tensor.file else ''}"


def _metadata(metadata: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(metadata.items()):
        if not name.startswith("ep_compatibility_info."):
            yield f"{name} = {_cut(value)}"


def _provenance(told: Provenance) -> Iterator[str]:
    if told.check is None:
        yield f"nobody: {told.manifest.name} beside it does not list it"
        return
    build = told.build
    state = "as it was built" if told.check.found is Found.SOUND else f"{told.check.found} since"
    yield f"{told.made_by or 'the build'}, {state} ({told.manifest}, {build['timestamp']})"
    yield f"{build['model_id']} in {build['precision']} for {build['execution_provider']} ({build['device']})"
    ran = [f"{stage.name} {stage.seconds:.1f} s" for stage in told.stages if not stage.why_not]
    yield ", ".join(ran)
    if (quality := Quality.from_json(told.quality)) is not None:
        yield f"quality against the float model: {quality.sentence()}"
    yield from (f"note: {notice}" for notice in told.notices)


def described_json(inspected: Inspected, top: int) -> JsonObject:
    """Return the description as one object, with all partitions and the *top* largest tensors."""
    model = inspected.model
    summary, found = model.summary, model.precision
    return {
        "model": str(model.path),
        "size_bytes": model.size,
        "total_size_bytes": model.total_size,
        "ir_version": summary.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(summary.opsets.items())},
        "producer": summary.producer,
        "domain": model.model.domain,
        "model_version": model.model.version,
        "description": model.model.description,
        "inputs": [_spec_json(spec) for spec in summary.inputs],
        "outputs": [_spec_json(spec) for spec in summary.outputs],
        "nodes": summary.total_nodes,
        "operators": summary.op_counts,
        "precision": {
            "name": found.name or None,
            "scheme": found.scheme,
            "text": found.text,
            "weights": found.weights,
            "other_constants": found.others,
            "activations": found.activations,
            "floats": found.floats,
            "matrix_nodes": found.matrix_nodes[1],
            "matrix_nodes_on_integers": found.matrix_nodes[0],
            "accuracy_level": found.accuracy_level,
        },
        "is_quantized": summary.is_quantized,
        "is_compiled": summary.is_compiled,
        "ep_context": [_context_json(context) for context in summary.ep_context],
        "cpu_nodes": _cpu_nodes_json(model),
        "ep_compatibility": model.compatibility,
        "files": [_file_json(file) for file in model.sidecars],
        "tensors": {
            "count": len(model.tensors),
            "size_bytes": summary.weight_size,
            "bytes_by_dtype": summary.tensor_bytes,
            "largest": [_tensor_json(tensor) for tensor in model.tensors[:top]],
        },
        "metadata": summary.metadata,
        "provenance": None if inspected.provenance is None else _provenance_json(inspected.provenance),
        "folder": [
            {"name": other.name, "size_bytes": other.size, "what": other.what} for other in inspected.neighbours
        ],
        "warnings": inspected.warnings,
        "errors": model.problems,
    }


def _spec_json(spec: TensorSpec) -> JsonObject:
    return {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape}


def _context_json(context: EpContext) -> JsonObject:
    return {
        "partition": context.partition,
        "source": context.source,
        "sdk_version": context.sdk_version,
        "embedded": bool(context.embed_mode),
        "embedded_bytes": context.embedded_bytes,
        "file": context.sidecar,
        "is_main": context.is_main,
    }


def _cpu_nodes_json(model: Description) -> list[JsonValue] | None:
    """Return the nodes that the compiler left to the CPU; None for a model that is not compiled."""
    if not model.summary.is_compiled:
        return None
    return [{"name": node.name, "op_type": node.op_type} for node in cpu_nodes(model.model)]


def _file_json(file: Sidecar) -> JsonObject:
    return {
        "name": file.name,
        "holds": file.holds,
        "present": file.size is not None,
        "size_bytes": file.size,
        "needed_bytes": file.needed,
        "shared_with": file.shared_with,
    }


def _tensor_json(tensor: TensorSize) -> JsonObject:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "size_bytes": tensor.size,
        "file": tensor.file or None,
    }


def _provenance_json(told: Provenance) -> JsonObject:
    stages: list[JsonValue] = [
        {"id": stage.name, "elapsed_seconds": stage.seconds, "left_out": stage.why_not or None} for stage in told.stages
    ]
    return {
        "manifest": str(told.manifest),
        **told.build,
        "made_by": told.made_by or None,
        "matches": None if told.check is None else told.check.found is Found.SOUND,
        "quality": told.quality,
        "notices": told.notices,
        "stages": stages,
    }


def neighbour(path: Path, what: str) -> Neighbour:
    return Neighbour(path.name, path.stat().st_size, what)
