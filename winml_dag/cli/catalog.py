"""``winml-dag catalog``: the bundled recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject
from winml_dag.cli import show
from winml_dag.cli.command import TEXT, Command, file_option, output_file
from winml_dag.cli.options import format_option, target_options
from winml_dag.errors import UsageError
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.recipe.load import Shipped


@click.command(name="catalog", cls=Command)
@click.option("--model-type", type=TEXT, help="Only recipes for this architecture, such as bert.")
@click.option("-t", "--task", type=TEXT, help="Only recipes for this task, such as text-classification.")
@target_options
@click.option("-p", "--precision", type=TEXT, help="Only recipes that the target supports in this precision.")
@file_option("Write the list to this JSON file, or into this folder as catalog.json.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@format_option
def command(**options: Any) -> None:
    """List the bundled recipes. Each is built by its name.

    \b
    winml-dag catalog -t text-classification
    winml-dag build -c catalog:resnet/image-classification --ep qnn -p w8a16 --compile -o out
    """
    from winml_dag.pipeline.jsonfile import put_json

    output = options["output"] and output_file(options["output"], "catalog.json")
    if output is not None and output.exists() and not options["overwrite"]:
        raise UsageError(f"{output} already exists.", advice="Choose another name, or give --overwrite.")
    found = [*_matching(options)]
    value: JsonObject = {"recipes": [_recipe_json(each) for each in found]}
    if output is not None:
        put_json(output, value, "recipes", overwrite=True)
    width = max((len(each.name) for each in found), default=0)
    lines = [
        f"{name:<{width}}  {text}"
        for each in found
        for name, text in ((each.name, each.recipe.model), ("", each.summary))
    ]
    many = counted(len(found), "recipe")
    lines.append(f"{many}. Build one with: winml-dag build -c catalog:NAME" if found else "No recipe matches.")
    show(value, lines)


def _matching(options: Mapping[str, Any]) -> Iterator[Shipped]:
    from winml_dag.ep.availability import resolve_target
    from winml_dag.pipeline.quantization import precision_for
    from winml_dag.recipe.load import shipped_recipes

    ep, device, precision = options["ep"], options["device"], options["precision"]
    target = resolve_target(ep, device)
    if precision is not None:
        precision_for(precision, target)  # No bundled recipe sets it, so it is possible for all of them or for none.
    for each in shipped_recipes():
        named = resolve_target(each.recipe.ep, None).ep if each.recipe.ep else target.ep
        is_alike = _alike(options["model_type"], each.model_type) and _alike(options["task"], each.task)
        if is_alike and (target.ep == named or (ep, device) == (None, None)):
            yield each


def _alike(wanted: str | None, has: str) -> bool:
    return wanted is None or wanted.replace("_", "-").casefold() == has.replace("_", "-").casefold()


def _recipe_json(each: Shipped) -> JsonObject:
    return {
        "name": each.name,
        "model": each.recipe.model,
        "model_type": each.model_type,
        "task": each.task,
        "model_class": each.recipe.loader.model_class,
        "summary": each.summary,
        "path": str(each.path),
    }
