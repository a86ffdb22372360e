"""A user's folder with stages that work in it, run with real processes and a store on disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_samples import run_graph

from winml_dag.canonical import JsonValue
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.inplace import InPlace, list_folder
from winml_dag.engine.schedule import RunOptions
from winml_dag.engine.stage import Command, FileAccess, InputSlot, Node, Source, SourceFile, Stage
from winml_dag.store.digest import digest_file
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Built:
    """One run: its results by stage, and the files that it wrote to the folder."""

    results: Mapping[str, StageResult]
    put: frozenset[str]

    def of(self, status: Status) -> list[str]:
        return sorted(name for name, result in self.results.items() if result.status is status)

    @property
    def ran(self) -> list[str]:
        assert not self.of(Status.FAILED), [result for result in self.results.values() if result.error]
        return self.of(Status.RAN)

    def error(self, name: str) -> str:
        result = self.results[name]
        assert result.status is Status.FAILED, result
        return result.error


@dataclass
class Project:
    """The user's folder and a cache next to it."""

    root: Path
    nodes: list[Node] = field(default_factory=list)
    _runs: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def folder(self) -> Path:
        return self.root / "project"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def command(
        self,
        name: str,
        *arguments: str,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        config: Mapping[str, JsonValue] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        """Add a command; *inputs* are paths in the folder (ending with ``/``: everything in it) or ``stage.slot``."""
        env = dict(environment or {})
        self._add(
            name,
            Stage("command", 1, "", "", *self._slots(inputs, outputs), (), timeout_seconds, works_in_place=True),
            {"command": list(arguments), "env": env, "config": dict(config or {})},
            inputs or {},
            outputs or {},
            Command(arguments, env),
        )

    def function(
        self,
        name: str,
        run: str,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        config: Mapping[str, JsonValue] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        slots, kinds = self._slots(inputs, outputs)
        stage = Stage("function", 1, "winml_dag.engine.worker:call", "", slots, kinds, (), 60.0, works_in_place=True)
        settings: dict[str, JsonValue] = {"run": run, "env": dict(environment or {})}
        if config is not None:
            settings["config"] = dict(config)
        module = run.partition(":")[0]
        tools = {f"module {module}": self.folder / f"{module.replace('.', '/')}.py"}
        self._add(name, stage, settings, inputs or {}, outputs or {}, None, tools)

    def build(
        self, *, jobs: int = 2, keep_going: bool = False, rebuild: bool = False, access: FileAccess = FileAccess.FREE
    ) -> Built:
        """Run all stages declared so far."""
        store = Store(self.cache)
        try:
            graph, in_place = Graph.of(self.nodes, self._sources()), InPlace(store)
            options = RunOptions("here", jobs, keep_going, rebuild)
            how = {"failures": store.failures, "in_place": in_place, "access": access}
            with store.scratch.open() as scratch:
                results = run_graph(graph, store, LocalExecutor(), options, scratch, **how)
            put = frozenset(path.relative_to(self.folder).as_posix() for path in in_place.put_files)
            return Built(results, put)
        finally:
            store.close()

    def _slots(
        self, inputs: Mapping[str, str] | None, outputs: Mapping[str, str] | None
    ) -> tuple[dict[str, InputSlot], dict[str, str]]:
        return {slot: InputSlot(None) for slot in inputs or {}}, dict.fromkeys(outputs or {}, "file")

    def _add(
        self,
        name: str,
        stage: Stage,
        config: dict[str, JsonValue],
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        command: Command | None,
        tools: Mapping[str, Path] | None = None,
    ) -> None:
        settings = {**config, "outputs": dict(outputs)}
        self.nodes.append(
            Node(
                name,
                stage,
                settings,
                dict(inputs),
                toolchain={called: digest_file(path) for called, path in (tools or {}).items()},
                tools=tools or {},
                command=command,
                folder=self.folder,
                paths=dict(outputs),
            )
        )

    def _sources(self) -> Iterable[Source]:
        made = {node.output(slot) for node in self.nodes for slot in node.stage.outputs}
        for name in sorted({name for node in self.nodes for name in node.inputs.values()} - made):
            path = self.folder / name
            if name.endswith("/"):
                found = list_folder(path, name)
                yield Source(name, "file", tuple(found.files), tuple(found.folders))
            else:
                inside = path.is_relative_to(self.folder)
                called = path.relative_to(self.folder).as_posix() if inside else path.name
                yield Source(name, "file", (SourceFile(called, path),))
