"""``winml-dag optimize``: optimize an ONNX model into one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from winml_dag.canonical import JsonValue
from winml_dag.cli.capabilities import tell_catalog, tell_changes
from winml_dag.cli.exporting import given_shapes, shape_options
from winml_dag.cli.onestage import How, errors_as_object, how_options, run_one
from winml_dag.cli.outcome import OUTCOME
from winml_dag.cli.parameters import FILE, TEXT
from winml_dag.cli.settings import VALIDATION, no_validate_option, target_options
from winml_dag.errors import UsageError
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.recipe.capabilities import CATALOG

# Names as they are typed: in any case, with hyphens.
_BY_WORD = {name.lower(): name for name in CATALOG}


def _winml_cli_options(function: Any) -> Any:
    """``--enable-gelu-fusion`` and ``--disable-gelu-fusion``, as winml-cli spells them; help has the short form."""
    for name in CATALOG:
        word = name.replace("_", "-")
        function = click.option(f"--enable-{word}/--disable-{word}", name, default=None, hidden=True)(function)
    return function


@click.command(name="optimize")
@click.option("-m", "--model", type=FILE, help="The ONNX model.")
@click.option("-o", "--output", type=FILE, help="Where the result goes [MODEL_opt.onnx beside the model].")
@click.option("-c", "--config", "recipe", type=FILE, help="A recipe, of which optim, validate and the target count.")
@click.option("--enable", metavar="CAPABILITY", type=TEXT, multiple=True, help="An optimization to switch on.")
@click.option("--disable", metavar="CAPABILITY", type=TEXT, multiple=True, help="An optimization to leave out.")
@click.option(
    "-l", "--list-capabilities", is_flag=True, help="Print the optimizations that there are, and nothing else."
)
@click.option(
    "--list-rewrites", is_flag=True, help="Of these, print what the rewriter does: one pattern in place of another."
)
@click.option(
    "--check-optim",
    is_flag=True,
    help="Print what each capability that is off, or each one named by --enable, would change; write nothing.",
)
@_winml_cli_options
@target_options
@VALIDATION
@no_validate_option
@shape_options
@how_options
def command(**options: Any) -> int:
    """Optimize an ONNX model into one file: make its graph smaller, and hold it against the model as it was.

    \b
    winml-dag optimize -m model.onnx --enable gelu_fusion
    winml-dag optimize -m model.onnx --check-optim
    winml-dag optimize --list-capabilities
    """
    if options["list_capabilities"] or options["list_rewrites"]:
        return tell_catalog(options["format_"], rewrites_only=options["list_rewrites"])
    if options["model"] is None:
        raise click.UsageError("Missing option '-m' / '--model'.")
    if options["check_optim"]:
        named = tuple(name for name, on in capabilities_of(options).items() if on)
        with errors_as_object(How.of(options)):
            return tell_changes(request_of(options), named, options["format_"], whole=options["verbose"])
    return run_one(options, request_of, OUTCOME)


def request_of(options: Mapping[str, Any]) -> Request:
    """What the *options* of one call, by the names of the command's parameters, ask for."""
    model: Path = options["model"]
    overrides = Overrides(
        onnx=model,
        ep=options["ep"],
        device=options["device"],
        settings={
            "export": given_shapes(options),
            "optim": capabilities_of(options),
            "validate": VALIDATION.given(options),
        },
        validate=False if options["no_validate"] else None,
    )
    return Request(
        options["recipe"], overrides, command="optimize", output_file=options["output"] or beside(model, "optimize")
    )


def capabilities_of(options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Every capability that is switched on or off by name.

    Raises:
        UsageError: for a capability that is switched both on and off.
    """
    found: dict[str, JsonValue] = {name: options[name] for name in CATALOG if options[name] is not None}
    for option, on in (("enable", True), ("disable", False)):
        for given in options[option]:
            name = _BY_WORD.get(given.replace("-", "_").lower(), given)
            if found.setdefault(name, on) is not on:
                raise UsageError(f"{name} is switched on and off.", advice="Keep one of the two.")
    return found
