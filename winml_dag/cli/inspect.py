"""``winml-dag inspect``: what a model file contains, where it comes from, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from winml_dag.cli import echo, errors_as_object, print_object
from winml_dag.cli.options import FILE, format_option
from winml_dag.errors import InputError, UsageError

if TYPE_CHECKING:
    from winml_dag.cli.described import Inspected, Neighbour
    from winml_dag.pipeline.assess.provenance import Provenance


@click.command(name="inspect")
@click.argument("path", type=FILE, required=False)
@click.option("-m", "--model", type=FILE, help="The same as PATH: an ONNX model, or a folder with one.")
@click.option("--top", type=click.IntRange(min=0), default=5, help="How many of the largest tensors to list [5].")
@click.option("-H", "--hierarchy", is_flag=True, help="Show the modules that the nodes come from, as a tree.")
@format_option
def command(*, path: Path | None, model: Path | None, top: int, hierarchy: bool, format_: str) -> int:
    """Tell what an ONNX model is: inputs, outputs, operators, the precision that it really has, what it is compiled
    for, the files that belong to it, its largest tensors, and which build made it.

    \b
    winml-dag inspect model.onnx
    winml-dag inspect out --format json
    winml-dag inspect out --hierarchy
    """
    with errors_as_object(format_ == "json"):
        given = _given(path, model)
        if hierarchy:
            _show_hierarchy(given, format_)
            return 0
        inspected = _inspect(given)
    from winml_dag.cli.described import described_json, described_lines

    if format_ == "json":
        print_object(described_json(inspected, top))
    else:
        for line in described_lines(inspected, top):
            echo(line)
    if inspected.model.problems:
        raise InputError(" ".join(inspected.model.problems))
    return 0


def _show_hierarchy(path: Path, format_: str) -> None:
    from winml_dag.cli.hierarchy import find_hierarchy, hierarchy_json, hierarchy_lines

    tagged = find_hierarchy(path)
    if format_ == "json":
        print_object(hierarchy_json(tagged))
    else:
        for line in hierarchy_lines(tagged):
            echo(line)


def _given(path: Path | None, model: Path | None) -> Path:
    if path is not None and model is not None and path != model:
        raise UsageError(f"{path} and {model} are two models.", advice="Give one of them.")
    given = path or model
    if given is None:
        raise UsageError("There is nothing to inspect.", advice="Give an .onnx file or the output folder of a build.")
    return given


def _inspect(path: Path) -> Inspected:
    from winml_dag.cli.described import Inspected
    from winml_dag.onnxmodel.description import describe_model
    from winml_dag.pipeline.assess.modelfile import model_file
    from winml_dag.pipeline.assess.provenance import provenance_of

    file = model_file(path)
    provenance, problem = None, ""
    try:
        provenance = provenance_of(file)
    except InputError as error:  # the model can be described without its manifest
        problem = error.message
    model = describe_model(file, for_npu=_is_for_npu(provenance))
    return Inspected(model, provenance, problem, _neighbours(path) if path.is_dir() else ())


def _is_for_npu(provenance: Provenance | None) -> bool:
    return provenance is not None and provenance.check is not None and provenance.build["device"] == "npu"


def _neighbours(folder: Path) -> tuple[Neighbour, ...]:
    """Return all models of *folder* if it has more than one."""
    from winml_dag.cli.described import neighbour
    from winml_dag.onnxmodel.graphfile import read_model
    from winml_dag.onnxmodel.precision import precision_of
    from winml_dag.store.quantities import counted

    found = []
    for path in sorted(folder.glob("*.onnx")):
        try:
            model = read_model(path)
        except InputError as error:
            found.append(neighbour(path, error.message))
        else:
            found.append(neighbour(path, f"{precision_of(model).text}; {counted(len(model.graph.nodes), 'node')}"))
    return tuple(found) if len(found) > 1 else ()
