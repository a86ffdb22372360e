"""The parts of the reference that are made from the code: one function for each block of generated text in a page.

A page says where a block goes with ``<!-- generated: NAME -->`` and ``<!-- end -->``; what is written around it stays.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from recipe_tables import recipe
from sweep_tables import goal, search, sweep_head
from tables import Row, join, table

import winml_dag
from winml_dag import errors
from winml_dag.cli import COMMANDS, cli
from winml_dag.engine.stage import Stage
from winml_dag.engine.worker import load
from winml_dag.ep import provider, registry
from winml_dag.ep.provider import AUTO_PRECISIONS
from winml_dag.ep.providers.qnn import SOCS
from winml_dag.errors import UsageError
from winml_dag.pipeline import remoteconfig
from winml_dag.pipeline.quantization import precision_for, with_precision, with_types
from winml_dag.recipe import precision
from winml_dag.recipe.capabilities import BUILT_IN
from winml_dag.recipe.schema import Quant
from winml_dag.stages.builtin import LINE
from winml_dag.stages.export.architectures import ARCHITECTURES
from winml_dag.stages.export.detect import TASKS
from winml_dag.stages.quality import MINIMUM_COSINE, USUAL_COSINE


def tasks() -> str:
    """What a model can be exported for, with the class that makes it and the outputs that are exported."""
    rows = [
        (_names((task.name, *task.also)), _names(task.auto_classes), _names(task.outputs))
        for task in sorted(TASKS.values(), key=lambda task: task.name)
    ]
    return table(("task", "the first of these classes that knows the architecture", "outputs"), rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def components() -> str:
    """The architectures that are exported in parts."""
    rows = [
        (
            f"`{name}`",
            _names(each.tasks),
            _names(part.name for part in each.components),
            _names(part.class_name for part in each.components),
        )
        for name, row in sorted(ARCHITECTURES.items())
        if (each := row.composite) is not None
    ]
    return table(("architecture", "all components for", "components", "`loader.model_class` of one alone"), rows)


def commands() -> str:
    """A section for every command: usage, what it says of itself, its own options."""
    shared = set(_shared_options())
    return "\n\n".join(_command(path, command, shared) for path, command in all_commands())


def shared_options() -> str:
    """The options that every command about a build has."""
    return table(("option", "value", "meaning"), _shared_options())


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its path, such as ``cache info``."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield from _with_inner(name, command)


def _with_inner(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        if not inner.hidden:
            yield from _with_inner(f"{path} {name}", inner)


def _shared_options() -> list[Row]:
    tables = [_option_rows(command) for path, command in all_commands() if path in ("build", "plan", "why", "graph")]
    return [row for row in tables[0] if all(row in other for other in tables)]


def _command(path: str, command: click.Command, shared: set[Row]) -> str:
    usage = " ".join([f"winml-dag {path}", *command.collect_usage_pieces(click.Context(command))])
    about = inspect.cleandoc(command.help or "").split("\b")[0].strip()
    parts = [f"## {path}", f"```text\n{usage}\n```", about]
    rows = _option_rows(command)
    takes_shared = shared <= set(rows)
    if takes_shared:
        parts.append(
            "It takes the [options about a build](#options-about-a-build)" + (", and:" if set(rows) - shared else ".")
        )
    if own := [row for row in rows if not (takes_shared and row in shared)]:
        parts.append(table(("option", "value", "meaning"), own))
    return "\n\n".join(parts)


def _option_rows(command: click.Command) -> list[Row]:
    rows: list[Row] = []
    for parameter in command.get_params(click.Context(command)):
        if isinstance(parameter, click.Option) and parameter.help and "--help" not in parameter.opts:
            names = ", ".join(f"`{name}`" for name in parameter.opts)
            opposite = "".join(f" / `{name}`" for name in parameter.secondary_opts)
            rows.append((names + opposite, _values(parameter), parameter.help))
    return rows


def _values(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    return option.type.name.removesuffix(" range")


def exit_codes() -> str:
    """Every error class of ours with its exit code and the first line of what it says of itself."""
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    ours = [kind for kind in kinds if issubclass(kind, errors.WinmlDagError) and kind is not errors.WinmlDagError]
    rows = [
        (str(kind.exit_code), f"`{kind.__name__}`", _first_sentence(kind))
        for kind in sorted(ours, key=lambda kind: (kind.exit_code, kind.__name__))
    ]
    return table(("exit code", "error", "when"), [("0", "", "Done."), *rows])


def _first_sentence(kind: type) -> str:
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def capabilities() -> str:
    rows = []
    for name, entry in BUILT_IN.items():
        said = [entry.description]
        said += [f"Switches on {', '.join(f'`{each}`' for each in entry.needs)}."] if entry.needs else []
        said += [f"Not together with {', '.join(f'`{each}`' for each in entry.excludes)}."] if entry.excludes else []
        said += [f"Left: {entry.left}."] if entry.left else []
        by = "" if entry.same_as else entry.by
        rows.append((f"`{name}`", by, "on" if entry.default else "", entry.domain, " ".join(said)))
    return table(("capability", "done by", "default", "makes operators of", "what it does"), rows)


def stages() -> str:
    """A section for every stage: what it takes, puts out and reads, and which packages are in its key."""
    return "\n\n".join(_stage(stage) for stage in declared_stages())


def declared_stages() -> Iterator[Stage]:
    for name in (*LINE, "sensitivity", "perf", "evaluate"):
        stage = load(f"winml_dag.stages.{name}:{name.upper()}")
        assert isinstance(stage, Stage)
        yield stage


def _stage(stage: Stage) -> str:
    module = stage.config.partition(":")[0]
    about = inspect.cleandoc(load(f"{module}:__doc__")).split("\n\n")[0].partition(": ")[2].replace("``", "`")
    inputs = [(f"`{slot}`", ", ".join(sorted(declared.accepts)), "" if declared.required else "optional")
              for slot, declared in stage.inputs.items()]  # fmt: skip
    shown = "with `quant.save_calibration`" if stage.name == "calibrate" else "yes"
    outputs = [(f"`{slot}`", kind, shown if slot in stage.published else "no") for slot, kind in stage.outputs.items()]
    fields = ", ".join(f"`{field}`" for field in _config_fields(load(stage.config))) or "none"
    return "\n\n".join(
        [
            f"## {stage.name}",
            about[:1].upper() + " ".join(about.split())[1:],
            table(("input", "takes", ""), inputs),
            table(("output", "is", "in the output folder"), outputs),
            f"Version {stage.version}; limit {stage.timeout_seconds:g} s. Fields in the key: {fields}.",
            f"Packages whose version is in the key: {', '.join(f'`{name}`' for name in stage.packages)}.",
        ]
    )


def _config_fields(config: Any, path: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        inner = hints[field.name]
        if dataclasses.is_dataclass(inner):
            yield from _config_fields(inner, join(path, field.name))
        else:
            yield join(path, field.name)


def providers() -> str:
    rows = []
    for ep in registry.EXECUTION_PROVIDERS:
        names = ", ".join(f"`{name}`" for name in (ep.alias, *ep.aliases))
        compiles = "yes" if ep.makes_ep_context else "no"
        packages = ", ".join(f"`{package.distribution}`" for package in ep.packages)
        rows.append((ep.name, names, ", ".join(ep.devices), compiles, ep.ihv_type, packages, ep.how_to_get))
    return table(("provider", "aliases", "devices", "compiles", "vendor", "packages", "how to get it"), rows)


def qnn_options() -> str:
    target = registry.Target(registry.QNN, "npu")
    known = target.ep.option_table(target.device)
    assert known is not None
    defaults = provider.complete_options(target, {})
    rows = []
    for name, option in known.items():
        if not option.refusal:
            kind = "a file" if option.file else ", ".join(f"`{value}`" for value in option.values) or "whole number"
            rows.append((f"`{name}`", kind, f"`{defaults[name]}`" if name in defaults else "", _in_key(option)))
    return table(("option", "values", "default", "in the key"), rows)


def _in_key(option: provider.Option) -> str:
    return "no: read when a session runs" if option.run_time else "by content" if option.file else "yes"


def refused_qnn_options() -> str:
    known = registry.QNN.option_table("npu")
    assert known is not None
    by_reason: dict[str, list[str]] = {}
    for name, option in known.items():
        if option.refusal:
            by_reason.setdefault(option.refusal, []).append(f"`{name}`")
    return table(("refused", "because"), [(", ".join(names), why) for why, names in by_reason.items()])


def socs() -> str:
    rows = [(f"`{soc.model}`", soc.name, f"`{soc.htp_arch}`") for soc in SOCS]
    return table(("soc_model", "chip", "htp_arch"), rows)


def precisions() -> str:
    rows = []
    for name, found in precision.PRECISIONS.items():
        same = "" if found.name == name else f"`{found.name}`"
        rows.append((f"`{name}`", same, _meaning(found)))
    return table(("precision", "the same as", "what it is"), rows)


def _meaning(found: precision.Precision) -> str:
    if found.name == "auto":
        return "see [auto](#what-auto-is)"
    if found.mode == "static":
        return f"static: integers of {found.weight_bits} bits for weights, of {found.activation_bits} for activations"
    if found.mode == "rtn":
        return f"rtn: weights of {found.weight_bits} bits in blocks, everything else in float{found.activation_bits}"
    return {"fp16": "fp16: everything in float16", "dynamic": "dynamic: 8-bit weights; no calibration"}.get(
        found.mode or "", "no quantization"
    )


def precisions_by_provider() -> str:
    """What every precision is on every provider: types of weights and activations, or that it is refused."""
    names = [name for name, found in precision.PRECISIONS.items() if found.name == name and found.weight_bits]
    rows = []
    for ep in registry.EXECUTION_PROVIDERS:
        target = registry.Target(ep, ep.devices[0])
        rows.append((f"`{ep.alias}`", *(_types(name, target) for name in names)))
    return table(("provider", *(f"`{name}`" for name in names)), rows)


def _types(name: str, target: registry.Target) -> str:
    try:
        quant = with_types(with_precision(Quant(), precision_for(name, target), target), target)
    except UsageError:
        return "refused"
    if quant.mode == "rtn":
        return f"blocks of {quant.rtn_bits} bits, {quant.rtn_float_type}"
    return f"{quant.weight_type}, {quant.activation_type}"


def integers() -> str:
    rows = []
    for ep in registry.EXECUTION_PROVIDERS:
        row = ep.integers
        symmetric = {True: "symmetric", None: "symmetric if signed", False: "not symmetric"}[row.weight_symmetric]
        weights = f"{'per channel' if row.per_channel else 'per tensor'}, {symmetric}"
        activations = "symmetric" if row.activation_symmetric else "not symmetric"
        rows.append((f"`{ep.alias}`", weights, activations, row.rules, f"{row.reason} ([source]({row.source}))"))
    return table(("provider", "weights", "activations", "rules", "why"), rows)


def auto() -> str:
    own = [ep for ep in registry.EXECUTION_PROVIDERS if ep.auto is not AUTO_PRECISIONS]
    rows = [(f"`{ep.alias}`", device, f"`{name}`", why) for ep in own for device, (name, why) in ep.auto.items()]
    rows += [("any", device, f"`{name}`", why) for device, (name, why) in AUTO_PRECISIONS.items()]
    return table(("provider", "device", "precision", "why"), rows)


def bounds() -> str:
    rows = [
        (f"`{name}`", f"{bound:g}", f"{USUAL_COSINE[name]:g}" if name in USUAL_COSINE else "")
        for name, bound in MINIMUM_COSINE.items()
    ]
    return table(("precision", "broken below", "poor below"), rows)


def _ci_file(name: str) -> str:
    text = (Path(__file__).parent / "how-to" / "ci" / name).read_text(encoding="utf-8")
    # Not yaml, which on these pages is a recipe.
    return f"```yml\n{text}```"


def remotes() -> str:
    """The keys of a table ``[[remote]]``."""
    return _configured(remoteconfig.RemoteTable)


def signing() -> str:
    """The keys of the table ``[signing]``."""
    return _configured(remoteconfig.Signing)


def _configured(kind: type[BaseModel]) -> str:
    rows = []
    for name, field in kind.model_fields.items():
        choices = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()
        default = "" if field.is_required() or field.default in (None, "") else f"`{json.dumps(field.default)}`"
        meaning = (field.description or "") + (f" One of {_names(choices)}." if choices else "")
        rows.append((f"`{name}`", "required" if field.is_required() else default, meaning))
    return table(("key", "default", "meaning"), rows)


def python() -> str:
    """The public names of the package, with the first sentence of their docstrings."""
    rows = []
    for name in sorted(name for name in winml_dag.__all__ if not name.startswith("_")):
        summary = (inspect.getdoc(getattr(winml_dag, name)) or "").split("\n\n")[0]
        rows.append((f"`{name}`", re.sub(r":\w+:`(\w+)`", r"`\1`", summary)))
    return table(("name", "what it is"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "shared options": shared_options,
    "commands": commands,
    "exit codes": exit_codes,
    "recipe": recipe,
    "keys of a sweep": sweep_head,
    "goal": goal,
    "search": search,
    "capabilities": capabilities,
    "stages": stages,
    "tasks": tasks,
    "components": components,
    "execution providers": providers,
    "options of QNN": qnn_options,
    "refused options of QNN": refused_qnn_options,
    "chips": socs,
    "precisions": precisions,
    "precisions by provider": precisions_by_provider,
    "integers": integers,
    "auto": auto,
    "bounds": bounds,
    "remotes": remotes,
    "signing": signing,
    "github actions": lambda: _ci_file("github-actions.yml"),
    "python": python,
    "azure pipelines": lambda: _ci_file("azure-pipelines.yml"),
}
