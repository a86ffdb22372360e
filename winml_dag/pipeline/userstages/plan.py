"""Turn the ``stages`` of a recipe into nodes of a graph.

Everything is looked up first, all problems are reported together, and then all files are digested together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.command import PLACEHOLDER, config_texts, fill
from winml_dag.engine.stage import Command, InputSlot, Node, Stage
from winml_dag.engine.worker import CALL
from winml_dag.errors import did_you_mean, known_instead
from winml_dag.installed import versions
from winml_dag.pipeline.buildgraph import Step
from winml_dag.pipeline.plan import NAME, Declared, UserPlan, rewires_builtin
from winml_dag.pipeline.userstages.inputs import KIND, Links, OutputPaths, UserFiles
from winml_dag.pipeline.userstages.tools import (
    MODULE,
    Functions,
    PluginProblem,
    Programs,
    Tools,
    load_plugin,
    plugin_config,
)
from winml_dag.recipe.document import Findings, Location
from winml_dag.recipe.schema import StageEntry
from winml_dag.store.digest import Fingerprints

# Texts of a command: the values of its placeholders, and project files that it names otherwise.
#
# A command that names its script directly reads it all the same, so the script is an input whether it is declared or
# not; otherwise an edit of it would not be noticed.


_WORD = re.compile(r"[^\s'\"`();|&<>=,:$\[\]{}*?!#]+")


def placeholders(argument: str) -> Iterator[tuple[str, str]]:
    """Yield (section, name) of each placeholder in *argument*."""
    if "{" in argument:
        for match in PLACEHOLDER.finditer(argument):
            if match[1]:
                yield match[1], match[2]


@cache
def plain_words(argument: str) -> tuple[str, ...]:
    """Return everything in *argument* that might name a file: words between white space and shell delimiters.

    Placeholders are excluded. The whole argument is included, too, since a file name may contain blanks.
    """
    text = PLACEHOLDER.sub("\0 \0", argument)
    words = [word for word in _WORD.findall(text) if "\0" not in word and word[0] != "-"]
    return (*words, argument) if "\0" not in text and argument not in words and len(argument) < 256 else tuple(words)


_ANY = InputSlot(None)
_COMMAND = Stage("command", 1, "", "", {}, {}, works_in_place=True)
_FUNCTION = Stage("function", 1, CALL, "", {}, {}, works_in_place=True)


def plan_stages(
    declared: Declared, builtin: Mapping[str, Step], taken: Mapping[str, str], fingerprints: Fingerprints
) -> UserPlan:
    """Return the nodes of *declared*.

    *builtin*: built-in stages by name; *taken*: files that outputs may not overwrite, with a description, relative to
    the recipe's folder.

    Raises:
        RecipeError: for all errors together, each with its line.
        InputError: when a program cannot be read.
    """
    return _Planner(declared, builtin, taken).plan(fingerprints)


@dataclass(frozen=True)
class _Draft:
    """A stage whose texts are resolved, before its tools are digested."""

    stage: Stage
    config: JsonObject
    tools: Tools
    command: Command | None = None
    literals: tuple[str, ...] = ()


class _Planner:
    def __init__(self, declared: Declared, builtin: Mapping[str, Step], taken: Mapping[str, str]) -> None:
        self._declared = declared
        self._builtin = builtin
        self._findings = Findings(declared.recipe, declared.positions)
        if declared.recipe.parent.resolve() == declared.folder:
            taken = {declared.recipe.name: "the recipe itself", **taken}
        self._outputs = OutputPaths(declared, taken, self._findings)
        self._files = UserFiles(declared, self._outputs, self._findings)
        self._links = Links(declared, builtin, self._outputs, self._files, self._findings)
        self._programs = Programs()
        self._functions = Functions(declared.folder)
        self._stages: dict[tuple[object, ...], Stage] = {}

    def plan(self, fingerprints: Fingerprints) -> UserPlan:
        drafts: dict[str, _Draft] = {}
        for name, entry in self._declared.stages.items():
            self._check_name(name, entry)
            if not rewires_builtin(entry) and (draft := self._draft(name, entry)) is not None:
                drafts[name] = draft
        self._findings.refuse()
        tools = {str(path): path for draft in drafts.values() for path in draft.tools.files.values()}
        found = fingerprints.entries([(path, path.name) for path in tools.values()])
        digests = dict(zip(tools, (entry.digest for entry in found), strict=True))
        return UserPlan(
            nodes=tuple(self._node(name, draft, digests) for name, draft in drafts.items()),
            sources=tuple(self._files.sources.values()),
            rewired=self._links.rewired,
            looked_at=(*tools.values(), *sorted(self._files.folders)),
            absent=tuple(
                map(Path, sorted({*self._files.absent, *self._programs.passed_over, *self._functions.passed_over}))
            ),
            programs=tuple(map(Path, sorted(self._programs.programs))),
        )

    def _check_name(self, name: str, entry: StageEntry) -> None:
        at: Location = ("stages", name)
        ways = [way for way in ("command", "run", "uses") if getattr(entry, way) is not None]
        if not NAME.fullmatch(name):
            self._findings.add(at, "the name of a stage has letters, digits, - and _ only", about_key=True)
        elif ways and name in self._builtin:
            self._findings.add(at, f"{name} is one of our stages; choose another name", about_key=True)
        elif not ways and name not in self._builtin:
            near = did_you_mean(name, self._builtin)
            self._findings.add(at, f"needs one of command, run and uses{near}", about_key=True)
        elif len(ways) > 1:
            self._findings.add((*at, ways[1]), f"there is {ways[0]} as well; keep one of the two", about_key=True)
        for variable in entry.env:
            if not variable or "=" in variable:
                self._findings.add((*at, "env", variable), "is not a name of a variable", about_key=True)

    def _draft(self, name: str, entry: StageEntry) -> _Draft | None:
        if entry.command is not None:
            return self._command(name, entry, entry.command)
        if entry.run is not None:
            return self._function(name, entry, entry.run)
        assert entry.uses is not None
        return self._plugin(name, entry, entry.uses)

    def _command(self, name: str, entry: StageEntry, arguments: tuple[str, ...]) -> _Draft | None:
        at: Location = ("stages", name, "command")
        if not arguments or not arguments[0].strip():
            self._findings.add(at, "needs a program to run")
            return None
        self._check_placeholders(at, entry, arguments)
        # The value of a setting is a word of the command like any other, be it a file or the program.
        settings = {"inputs": {}, "outputs": {}, "config": config_texts({"config": dict(entry.config or {})})}
        words = tuple(fill(argument, settings) for argument in arguments)
        literals = tuple(self._literals(name, at, words))
        config = {"command": [*arguments], **self._texts(name, entry)}
        tools = self._program((*at, 0), words[0], entry.env)
        return _Draft(
            self._stage(_COMMAND, name, entry, literals), config, tools, Command(arguments, entry.env), literals
        )

    def _function(self, name: str, entry: StageEntry, target: str) -> _Draft | None:
        tools = self._functions.find(target)
        if isinstance(tools, str):
            self._findings.add(("stages", name, "run"), tools)
            return None
        return _Draft(self._stage(_FUNCTION, name, entry, ()), {"run": target, **self._texts(name, entry)}, tools)

    def _plugin(self, name: str, entry: StageEntry, uses: str) -> _Draft | None:
        at: Location = ("stages", name)
        try:
            plugin, stage = load_plugin(uses)
        except PluginProblem as problem:
            self._findings.add((*at, "uses"), str(problem))
            return None
        for section, given, known in (
            ("inputs", entry.inputs, stage.inputs),
            ("outputs", entry.outputs, stage.outputs),
        ):
            for slot in given.keys() - known.keys():
                message = f"{uses} has no {section[:-1]} {slot!r}{known_instead(slot, known) if known else ''}"
                self._findings.add((*at, section, slot), message, about_key=True)
        for slot, declared in stage.inputs.items():
            if declared.required and slot not in entry.inputs:
                self._findings.add(at, f"{uses} needs an input {slot!r}", about_key=True)
        for slot in stage.outputs.keys() - entry.outputs.keys():
            self._findings.add(at, f"{uses} writes {slot!r}: give its path in outputs", about_key=True)
        if entry.env:
            self._findings.add((*at, "env"), f"{uses} is a plug-in, which gets no variables; use config")
        try:
            config = plugin_config(uses, stage, dict(entry.config or {}))
        except PluginProblem as problem:
            self._findings.add((*at, "config"), str(problem))
            return None
        tools = Tools({**versions(stage.packages), plugin.distribution: plugin.version})
        timeout = stage.timeout_seconds if entry.timeout is None else entry.timeout
        # A user's file has the type that its reader expects.
        slots = {
            slot: replace(declared, accepts=None if declared.accepts is None else declared.accepts | {KIND})
            for slot, declared in stage.inputs.items()
        }
        return _Draft(replace(stage, inputs=slots, timeout_seconds=timeout), config, tools)

    def _texts(self, name: str, entry: StageEntry) -> dict[str, JsonValue]:
        """Return what belongs in the key in addition to the work itself; absolute paths are not part of it."""
        given = self._links.inputs[name]
        sources = self._files.sources
        texts: dict[str, JsonValue] = {
            "env": dict(entry.env),
            "inputs": {
                **{
                    slot: given[slot].removeprefix("./")
                    for slot in entry.inputs
                    if given.get(slot) in sources and not Path(given[slot]).is_absolute()
                },
                **{slot: path for slot in entry.inputs if (path := self._placed_by_recipe(given.get(slot, "")))},
            },
            "outputs": dict(self._outputs.paths[name]),
        }
        return texts if entry.config is None else {**texts, "config": dict(entry.config)}

    def _placed_by_recipe(self, artifact: str) -> str | None:
        """Return the path of a plug-in's *artifact*, else None: its readers see file names that its digest lacks."""
        stage, _, slot = artifact.partition(".")
        entry = self._declared.stages.get(stage)
        return None if entry is None or entry.uses is None else self._outputs.paths[stage].get(slot)

    def _check_placeholders(self, at: Location, entry: StageEntry, arguments: tuple[str, ...]) -> None:
        known: Mapping[str, Mapping[str, object]] = {
            "inputs": entry.inputs,
            "outputs": entry.outputs,
            "config": entry.config or {},
        }
        for index, argument in enumerate(arguments):
            for section, word in placeholders(argument):
                if word not in known[section]:
                    instead = known_instead(word, known[section]) if known[section] else "; it declares none"
                    self._findings.add((*at, index), f"{{{section}.{word}}} does not exist{instead}")

    def _literals(self, name: str, at: Location, arguments: tuple[str, ...]) -> Iterator[str]:
        """Yield the slot names of project files that *arguments* name directly."""
        declared = set(self._links.inputs[name].values())
        seen: set[str] = set()
        for word in (word for argument in arguments for word in plain_words(argument)):
            maker = self._outputs.maker_around(word)
            if maker is not None:
                # An output of this stage, or of one that it reads: a command that works on these names them.
                if maker[0] != name and f"{maker[0]}.{maker[1]}" not in declared:
                    self._findings.add(
                        at, f"names {word}, an output of {maker[0]!r}: make {maker[0]}.{maker[1]} one of its inputs"
                    )
            elif (source := self._files.literal(word)) is not None and source.name not in declared | seen:
                seen.add(source.name)
                yield source.name

    def _program(self, at: Location, program: str, environment: Mapping[str, str]) -> Tools:
        if any(placeholders(program)):
            return Tools()  # an input: the key has it
        if "/" in program and not Path(program).is_absolute():
            if self._files.literal(program) is None:
                self._findings.add(at, f"there is no program {program} in the recipe's folder")
            return Tools()
        found = self._programs.find(program, environment)
        if found is None:
            self._findings.add(at, f"{program}: not found{'' if '/' in program else ' on PATH'}")
            return Tools()
        return Tools(files={"program": found})

    def _stage(self, kind: Stage, name: str, entry: StageEntry, literals: tuple[str, ...]) -> Stage:
        """Return *kind* with the inputs and outputs of *entry*; equal shapes share one declaration."""
        kinds = {slot: self._links.kinds.get((name, slot), KIND) for slot in entry.outputs}
        shape = (kind.name, *entry.inputs, 0, *literals, 0, *kinds.items(), entry.timeout)
        if shape not in self._stages:
            self._stages[shape] = replace(
                kind,
                inputs=dict.fromkeys((*entry.inputs, *literals), _ANY),
                outputs=kinds,
                timeout_seconds=kind.timeout_seconds if entry.timeout is None else entry.timeout,
            )
        return self._stages[shape]

    def _node(self, name: str, draft: _Draft, digests: Mapping[str, str]) -> Node:
        return Node(
            id=name,
            stage=draft.stage,
            config=draft.config,
            inputs={**self._links.inputs[name], **{literal: literal for literal in draft.literals}},
            kinds={},
            toolchain={**draft.tools.versions, **{key: digests[str(path)] for key, path in draft.tools.files.items()}},
            tools=draft.tools.files,
            command=draft.command,
            folder=self._declared.folder,
            paths=self._outputs.paths[name],
            machine_facts=_modules(draft.tools, self._declared.folder),
        )


def _modules(tools: Tools, folder: Path) -> dict[str, str]:
    """Return the file of each module in *tools*, for the process that imports it, which may see *folder* elsewhere."""
    return {
        name.removeprefix(MODULE): str(path.relative_to(folder) if path.is_relative_to(folder) else path)
        for name, path in tools.files.items()
        if name.startswith(MODULE)
    }
