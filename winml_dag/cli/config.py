"""``winml-dag init`` and ``config``: write a recipe with every field filled in."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import Note, echo, set_result
from winml_dag.cli.command import TEXT, Command, file_option, output_file
from winml_dag.cli.options import How, request_from, shared_options, target_options, task_option
from winml_dag.cli.settings import LOADER
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.frozen_recipe import FrozenRecipe

# A short explanation of each section, and an example for one that is null. The reference documentation has the details.
_COMMENTS = {
    "loader": "The PyTorch model and its task.",
    "export": "Conversion to ONNX. A text in a shape is a dynamic axis; a range excludes its end.",
    "optim": "Optimizations by name. Unless auto is false, analyze adds those that the target needs.",
    "quant": "Quantization to integers or float16. null: the model stays in float32.",
    "compile": "Ahead-of-time compilation by the execution provider. null: the result is not compiled.",
    "validate": "Comparison of the result with the float model.",
}
_EXAMPLES = {
    "compile": "compile: {embed_context: true}",
    "quant": "quant: {weight_type: uint8, activation_type: uint8, calibration_data: samples.npz, samples: 32}",
    "validate": "validate: {min_cosine: 0.99, input_data: samples.npz}",
}


_FILE = "recipe.yaml"
# A section with fewer fields is written on one line.
_ONE_LINE = 4


_OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")


@click.command(name="init", cls=Command)
@click.argument("model")
@file_option("Write the recipe to this file, or into this folder as recipe.yaml [recipe.yaml].", default="recipe.yaml")
@task_option
@target_options
@click.option("-p", "--precision", type=TEXT, help="auto, fp32, fp16, int8, int16, w8a8, w8a16, ...")
@_OVERWRITE
def init(**options: Any) -> None:
    """Write a commented recipe for MODEL: a model folder, an .onnx file or a hub id.

    The same as `config -m MODEL -o recipe.yaml`, which has more options.

    \b
    winml-dag init ./bert --ep qnn -p w8a16
    """
    _write({**_NO_OPTIONS, **options})


@click.command(name="config", cls=Command)
@shared_options
@file_option("Write the recipe to this .yaml or .json file, or into this folder as recipe.yaml [print it].")
@LOADER
@click.option("--module", type=TEXT, help="Write recipes for the modules of this class, to build each alone.")
@_OVERWRITE
@click.option(
    "-f", "--format", "format_", type=click.Choice(["yaml", "json"]), help="yaml or json [from the file name]."
)
def config(**options: Any) -> None:
    """Write the recipe that the options mean, with every decision made. Building it gives the same result.

    \b
    winml-dag config -m ./bert --ep qnn -p w8a16 -o recipe.yaml
    winml-dag config --model-type resnet -t image-classification
    """
    _write(options)


COMMANDS = {"init": init, "config": config}
# The other options of ``config``.
_NO_OPTIONS = dict.fromkeys(("recipe", "cache_dir", "remote_mode", "module", "format_"), None) | {"remote": ()}


def _write(options: dict[str, Any]) -> None:
    """Write the recipe that *options* mean to a file, or print it."""
    from winml_dag.pipeline.frozen_recipe import frozen_recipe
    from winml_dag.pipeline.jsonfile import put_text

    output: Path | None = options["output"] and output_file(options["output"], _FILE)
    is_json = options["format_"] == "json"
    if output is not None:
        if output.suffix.lower() not in (".json", ".yaml", ".yml"):
            raise UsageError(f"{output} is not the name of a recipe.", advice="It ends with .yaml or .json.")
        if output.exists() and not options["overwrite"]:
            raise UsageError(f"{output} already exists.", advice="Choose another name with -o, or give --overwrite.")
    request = request_from(options, How.of(options).remote)
    folder = Path.cwd() if output is None else output.absolute().parent
    decided = frozen_recipe(request, folder, module=options["module"])
    text = _json(decided) if (is_json if output is None else output.suffix.lower() == ".json") else _yaml(decided)
    for notice in decided.notices:
        echo(Note(notice), err=True)
    if output is None:
        echo(text, nl=False)
        return
    put_text(output, text)
    many = f" ({len(decided.recipes)} modules)" if len(decided.recipes) > 1 else ""
    which = " -m MODEL" if decided.needs_model else ""
    echo(f"Wrote {output}{many}. Build it with: winml-dag build -c {output}{which} -o OUT", err=is_json)
    if is_json:
        set_result({"success": True, "output": str(output), "notices": list(decided.notices)})


def _json(decided: FrozenRecipe) -> str:
    return json.dumps(_value(decided), indent=2, ensure_ascii=False) + "\n"


def _value(decided: FrozenRecipe) -> JsonValue:
    recipes = [dict(recipe) for recipe in decided.recipes]
    return recipes[0] if len(recipes) == 1 and "module_path" not in dict(_loader(recipes[0])) else recipes


def _loader(recipe: JsonObject) -> JsonObject:
    loader = recipe.get("loader")
    return loader if isinstance(loader, dict) else {}


def _yaml(decided: FrozenRecipe) -> str:
    value = _value(decided)
    lines = [f"# {decided.model}, for {decided.target}. Every decision is made; change what you like."]
    lines += [f"# {notice}" for notice in decided.notices]
    if not isinstance(value, dict):
        return "\n".join([*lines, _dumped(value)]) + "\n"
    return "\n".join([*lines, *_sections(value)]) + "\n"


def _sections(recipe: JsonObject) -> Iterator[str]:
    for name, value in recipe.items():
        if name in _COMMENTS:
            yield ""
            yield f"# {_COMMENTS[name]}"
            if value is None and name in _EXAMPLES:
                yield f"# {_EXAMPLES[name]}"
        if name == "compile" and value is None and not _compiles(recipe["ep"]):
            continue  # null would also keep another target's model from being compiled
        if not isinstance(value, dict) or len(value) < _ONE_LINE:
            yield _dumped({name: value}, flow=None if isinstance(value, dict) else False)
            continue
        yield f"{name}:"
        fields = (
            _dumped({field: each}, None if isinstance(each, (dict, list)) else False) for field, each in value.items()
        )
        yield from (textwrap.indent(field, "  ") for field in fields)
    if "validate" not in recipe:
        yield f"\n# {_COMMENTS['validate']}\n# {_EXAMPLES['validate']}"


def _compiles(ep: JsonValue) -> bool:
    from winml_dag.ep.registry import find_ep

    return find_ep(str(ep)).makes_ep_context


def _dumped(value: JsonValue, flow: bool | None = None) -> str:
    import yaml

    distinct = json.loads(json.dumps(value))  # YAML would write repeated objects as anchors and aliases
    text: str = yaml.safe_dump(distinct, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=110)
    return text.rstrip("\n")
