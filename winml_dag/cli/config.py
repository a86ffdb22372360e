"""``winml-dag config``: write a recipe with every field filled in."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.cli import echo, errors_as_object, print_object
from winml_dag.cli.options import FILE, TEXT, request_from, shared_options
from winml_dag.errors import UsageError

if TYPE_CHECKING:
    from winml_dag.pipeline.frozen_recipe import FrozenRecipe

# A short explanation of each section. The reference documentation has the details.
_COMMENTS = {
    "loader": "Which PyTorch model, and what it is for.",
    "export": "How it becomes ONNX: a text in a shape is a dimension that varies, a range excludes its end.",
    "optim": "Optimizations by name; analyze adds what helps the target, unless auto is false.",
    "quant": "How floats become integers or float16; null leaves them floats.",
    "compile": "What the execution provider makes of it ahead of time; null ships the ONNX model.",
}


# A section with fewer fields is written on one line.
_ONE_LINE = 4


@click.command(name="config")
@shared_options
@click.option("-o", "--output", type=FILE, help="The file to write: .yaml or .json [print it].")
@click.option("--model-type", type=TEXT, help="The architecture, such as bert; in place of a model.")
@click.option("--model-class", type=TEXT, help="The class of transformers that makes the model [the task's].")
@click.option("--module", type=TEXT, help="Recipes for the modules of this class, each to be built alone.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "-f", "--format", "format_", type=click.Choice(["yaml", "json"]), help="yaml or json [as the file's name ends]."
)
def command(
    *,
    output: Path | None,
    model_type: str | None,
    model_class: str | None,
    module: str | None,
    overwrite: bool,
    format_: str | None,
    **options: Any,
) -> int:
    """Write the recipe that the options mean, with everything decided: a build from it is a build with them.

    \b
    winml-dag config -m ./bert --ep qnn -p w8a16 -o recipe.yaml
    winml-dag config --model-type resnet -t image-classification
    """
    from winml_dag.pipeline.jsonfile import put_text

    named = {"model_type": model_type, "model_class": model_class}
    loader = {name: value for name, value in named.items() if value is not None}
    with errors_as_object(format_ == "json", success=False):
        as_json = _is_json(output, format_)
        if output is not None and output.exists() and not overwrite:
            raise UsageError(f"{output} is there already.", advice="Choose another name, or give --overwrite.")
        decided = _decide(options, loader, output, module)
        text = _json(decided) if as_json else _yaml(decided)
        if output is not None:
            put_text(output, text)
    for notice in decided.notices:
        echo(f"note: {notice}", err=True)
    if output is None:
        echo(text, nl=False)
        return 0
    many = f" ({len(decided.recipes)} modules)" if module else ""
    which = " -m MODEL" if decided.needs_model else ""
    echo(f"Wrote {output}{many}; winml-dag build -c {output}{which} -o OUT builds it.", err=format_ == "json")
    if format_ == "json":
        print_object({"success": True, "output": str(output), "notices": list(decided.notices)})
    return 0


def _decide(options: dict[str, Any], loader: JsonObject, output: Path | None, module: str | None) -> FrozenRecipe:
    from winml_dag.pipeline.frozen_recipe import frozen_recipe

    request, _ = request_from({**options, "output_dir": None, "use_cache": False}, loader=loader)
    folder = Path.cwd() if output is None else output.absolute().parent
    return frozen_recipe(request, folder, module=module)


def _is_json(output: Path | None, format_: str | None) -> bool:
    suffix = "" if output is None else output.suffix.lower()
    if output is not None and suffix not in (".json", ".yaml", ".yml"):
        raise UsageError(f"{output} is no name of a recipe.", advice="It ends with .yaml or .json.")
    return suffix == ".json" if output is not None else format_ == "json"


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
    lines = [f"# {decided.model}, for {decided.target}. Everything is decided; change what you like."]
    lines += [f"# {notice}" for notice in decided.notices]
    if not isinstance(value, dict):
        return "\n".join([*lines, _dumped(value)]) + "\n"
    return "\n".join([*lines, *_sections(value)]) + "\n"


def _sections(recipe: JsonObject) -> Iterator[str]:
    for name, value in recipe.items():
        if name in _COMMENTS:
            yield ""
            yield f"# {_COMMENTS[name]}"
        if not isinstance(value, dict) or len(value) < _ONE_LINE:
            yield _dumped({name: value}, flow=None if isinstance(value, dict) else False)
            continue
        yield f"{name}:"
        fields = (
            _dumped({field: each}, None if isinstance(each, (dict, list)) else False) for field, each in value.items()
        )
        yield from (textwrap.indent(field, "  ") for field in fields)


def _dumped(value: JsonValue, flow: bool | None = None) -> str:
    import yaml

    distinct = json.loads(json.dumps(value))  # YAML would write repeated objects as anchors and aliases
    text: str = yaml.safe_dump(distinct, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=110)
    return text.rstrip("\n")
