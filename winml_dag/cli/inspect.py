"""``winml-dag inspect``: what a model file contains, where it comes from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import Note, printable, show
from winml_dag.cli.command import FILE, Command
from winml_dag.cli.options import format_option
from winml_dag.errors import InputError, UsageError, few
from winml_dag.onnxmodel.description import Description, Sidecar, describe_model
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.inspect import EpContext, TensorSpec
from winml_dag.onnxmodel.precision import precision_of
from winml_dag.pipeline.assess.builtmodel import model_file
from winml_dag.pipeline.assess.verification import Found, Provenance, provenance_of
from winml_dag.pipeline.documents import Stage
from winml_dag.stages.compiled import cpu_nodes, first_names
from winml_dag.stages.quality import Quality
from winml_dag.store.quantities import counted, size_text

_MOST_OPERATORS = 12
_MOST_PARTITIONS = 5
_LONGEST_VALUE = 60
_WIDTH = 11


@dataclass(frozen=True)
class Inspected:
    """All information about one model.

    ``provenance``: what the manifest next to it says; None without a usable one. ``warnings``: about its origin.
    ``neighbours``: JSON of all models in
    its folder, if there are several and the folder was requested.
    """

    model: Description
    provenance: Provenance | None = None
    warnings: tuple[str, ...] = ()
    neighbours: tuple[Mapping[str, Any], ...] = ()


@click.command(name="inspect", cls=Command)
@click.argument("path", type=FILE, required=False)
@click.option("-m", "--model", type=FILE, help="The same as PATH: an ONNX model, or a folder with one.")
@click.option("--top", type=click.IntRange(min=0), default=5, help="How many of the largest tensors to list [5].")
@click.option("-H", "--hierarchy", is_flag=True, help="Show the modules that the nodes come from, as a tree.")
@format_option
def command(*, path: Path | None, model: Path | None, top: int, hierarchy: bool) -> None:
    """Describe an ONNX model: inputs, outputs, operators, its actual precision, what it is compiled for, the files that
    belong to it, its largest tensors, and the build that made it.

    \b
    winml-dag inspect model.onnx
    winml-dag inspect out --format json
    winml-dag inspect out --hierarchy
    """
    if path is not None and model is not None and path != model:
        raise UsageError(f"{path} and {model} are two models.", advice="Give one of them.")
    given = path or model
    if given is None:
        raise UsageError("There is nothing to inspect.", advice="Give an .onnx file or the output folder of a build.")
    if hierarchy:
        from winml_dag.cli.hierarchy import find_hierarchy, hierarchy_json, hierarchy_lines

        tagged = find_hierarchy(given)
        show(hierarchy_json(tagged), hierarchy_lines(tagged))
        return
    inspected = _inspect(given)
    show(described_json(inspected, top), described_lines(inspected, top))
    if inspected.model.problems:
        raise InputError(" ".join(inspected.model.problems))


def _inspect(path: Path) -> Inspected:
    file = model_file(path)
    made, warnings = None, []
    try:
        made = provenance_of(file)
    except InputError as error:  # the model can be described without its manifest
        warnings = [error.message]
    check = None if made is None else made.check
    if check is not None and check.found is not Found.INTACT:
        warnings = [f"It is not the file that its build made: {check.detail or check.found}."]
    is_for_npu = made is not None and check is not None and made.build["device"] == "npu"
    model = describe_model(file, for_npu=is_for_npu)
    neighbours = tuple(_neighbours(path)) if path.is_dir() else ()
    return Inspected(model, made, tuple(warnings), neighbours if len(neighbours) > 1 else ())


def _neighbours(folder: Path) -> Iterator[JsonObject]:
    for path in sorted(folder.glob("*.onnx")):
        try:
            model = read_model(path)
            what = f"{precision_of(model).text}; {counted(len(model.graph.nodes), 'node')}"
        except InputError as error:
            what = error.message
        yield {"name": path.name, "size_bytes": path.stat().st_size, "what": what}


def described_lines(inspected: Inspected, top: int) -> Iterator[str]:
    """Return the complete description, with the *top* largest tensors."""
    return map(printable, _lines(inspected, top))


def _lines(inspected: Inspected, top: int) -> Iterator[str]:
    model = inspected.model
    summary = model.summary
    beside = ", ".join(file.name for file in model.sidecars)
    yield f"{model.path}: {size_text(model.size)}{f', with {beside} {size_text(model.total_size)}' if beside else ''}"
    yield from _labelled("precision", [_precision(inspected)])
    yield from _labelled("format", [_format(model)])
    yield from _labelled("about", _about(model))
    yield from _labelled("inputs", map(_value, summary.inputs))
    yield from _labelled("outputs", map(_value, summary.outputs))
    yield from _labelled("nodes", [_operators(summary.op_counts, summary.total_nodes)])
    yield from _labelled("compiled", _compiled(model))
    yield from _labelled("files", (_sidecar(file) for file in model.sidecars if file.holds == "weights"))
    yield from _labelled("tensors", _tensors(model, top))
    yield from _labelled("metadata", _metadata(summary.metadata))
    if inspected.provenance is not None:
        yield from _labelled("made by", _provenance(inspected.provenance))
    yield from (Note(warning, "warning") for warning in (*model.warnings, *inspected.warnings))
    if inspected.neighbours:
        yield f"all models of {model.path.parent}:"
        width = max(len(other["name"]) for other in inspected.neighbours)
        for other in inspected.neighbours:
            yield f"  {other['name']:<{width}}  {size_text(other['size_bytes']):>10}  {other['what']}"


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"  {'' if index else label:<{_WIDTH}}{line}"


def _precision(inspected: Inspected) -> str:
    found, made = inspected.model.precision, inspected.provenance
    text = found.text or "no numbers"
    built = made.build["precision"] if made is not None and made.check is not None else None
    return f"{built} as its manifest says; {text}" if found.scheme == "compiled" and built else text


def _format(model: Description) -> str:
    summary = model.summary
    # A compiler declares every domain that it supports.
    used = {name.rpartition("/")[0] for name in summary.op_counts} | {"", "ai.onnx"}
    opsets = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(summary.opsets.items()) if domain in used
    )
    producer = f"; made by {summary.producer}" if summary.producer else ""
    return f"ONNX IR {summary.ir_version}, opset {opsets}{producer}"


def _about(model: Description) -> Iterator[str]:
    if model.model.description:
        yield _cut(model.model.description)
    if model.model.domain or model.model.version:
        yield f"{model.model.domain or 'no domain'}, version {model.model.version}"


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
    if file.size_bytes is None:
        return f"{file.name}, missing"
    shared = f", shared with {', '.join(file.shared_with)}" if file.shared_with else ""
    return f"{file.name}, {size_text(file.size_bytes)}{shared}{', cut short' if file.problem else ''}"


def _tensors(model: Description, top: int) -> Iterator[str]:
    if not model.tensors:
        return
    by_dtype = sorted(model.summary.tensor_bytes.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {size_text(size)}" for name, size in by_dtype)
    yield f"{len(model.tensors)}, {size_text(model.summary.weight_size)}: {shares}"
    for tensor in model.tensors[:top]:
        where = f" in {tensor.file}" if tensor.file else ""
        yield f"{size_text(tensor.size_bytes):>10}  {tensor.name}  {tensor.dtype}{_shape(tensor.shape)}{where}"


def _metadata(metadata: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(metadata.items()):
        if not name.startswith("ep_compatibility_info."):
            yield f"{name} = {_cut(value)}"


def _provenance(provenance: Provenance) -> Iterator[str]:
    if provenance.check is None:
        yield f"nobody: {provenance.manifest.name} beside it does not list it"
        return
    build = provenance.build
    state = "as it was built" if provenance.check.found is Found.INTACT else f"{provenance.check.found} since"
    yield f"{provenance.made_by or 'the build'}, {state} ({provenance.manifest}, {build['timestamp']})"
    yield f"{build['model_id']} in {build['precision']} for {build['execution_provider']} ({build['device']})"
    ran = [f"{_id(stage)} {stage.elapsed_seconds or 0:.1f} s" for stage in provenance.stages if not _why_skipped(stage)]
    yield ", ".join(ran)
    if (quality := Quality.from_json(provenance.quality)) is not None:
        yield f"quality against the float model: {quality.sentence()}"
    yield from map(Note, provenance.notices)


def _id(stage: Stage) -> str:
    return stage.id or stage.name


def _why_skipped(stage: Stage) -> str:
    return stage.reason if stage.status == "skipped" else ""


def described_json(inspected: Inspected, top: int) -> JsonObject:
    """Return the description as one object, with all partitions and the *top* largest tensors."""
    model, made = inspected.model, inspected.provenance
    summary, found = model.summary, model.precision
    left = [{"name": node.name, "op_type": node.operator} for node in cpu_nodes(model.model)]
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
        "inputs": [spec.to_json() for spec in summary.inputs],
        "outputs": [spec.to_json() for spec in summary.outputs],
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
        "ep_context": [
            {
                "partition": context.partition,
                "source": context.source,
                "sdk_version": context.sdk_version,
                "embedded": bool(context.embed_mode),
                "embedded_bytes": context.embedded_bytes,
                "file": context.sidecar,
                "is_main": context.is_main,
            }
            for context in summary.ep_context
        ],
        "cpu_nodes": left if summary.is_compiled else None,
        "ep_compatibility": model.compatibility,
        "files": [
            {
                **{name: value for name, value in asdict(file).items() if name != "problem"},
                "present": file.size_bytes is not None,
            }
            for file in model.sidecars
        ],
        "tensors": {
            "count": len(model.tensors),
            "size_bytes": summary.weight_size,
            "bytes_by_dtype": summary.tensor_bytes,
            "largest": [asdict(tensor) for tensor in model.tensors[:top]],
        },
        "metadata": summary.metadata,
        "provenance": None
        if made is None
        else {
            "manifest": str(made.manifest),
            **made.build,
            "made_by": made.made_by or None,
            "matches": None if made.check is None else made.check.found is Found.INTACT,
            "quality": made.quality,
            "notices": made.notices,
            "stages": [
                {
                    "id": _id(stage),
                    "elapsed_seconds": stage.elapsed_seconds or 0.0,
                    "left_out": _why_skipped(stage) or None,
                }
                for stage in made.stages
            ],
        },
        "folder": inspected.neighbours,
        "warnings": (*model.warnings, *inspected.warnings),
        "errors": model.problems,
    }
