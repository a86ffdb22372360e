"""Plans that still stand: the graph that a request led to the last time, as long as nothing that had a say in it has
changed.

Reading a recipe, resolving it and declaring the stages takes twice as long as checking that all is up to date, most of
it imports. So the resulting graph is kept in the index, together with evidence: the content of every file and the names
in every folder that was looked at, where links lead, the versions of all installed packages, and the state of this
program's own code. If any of that differs, the graph is made anew. It only ever stands for itself: what runs is decided
from it afresh each time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile, Stage
from winml_dag.engine.toolchain import installed_distributions
from winml_dag.errors import WinmlDagError
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, Step
from winml_dag.store.artifact import Artifact
from winml_dag.store.changetime import has_settled

if TYPE_CHECKING:
    from winml_dag.pipeline.request import Request
    from winml_dag.store.local import LocalStore

# Variables that say where the hub cache is and whether the hub may be asked.
_VARIABLES = (
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
)
_ABSENT = "absent"


def recall(request: Request, store: LocalStore) -> BuildGraph | None:
    """The graph that *request* led to, if everything that had a say in it is as it was."""
    name = _name(request)
    noted = store.index.read("standing", [name]).get(name)
    if not isinstance(noted, Mapping):
        return None
    try:
        if noted["surroundings"] != _surroundings():
            return None
        places: Any = noted["places"]
        if _places(map(Path, places)) != places:
            return None
        evidence: Any = noted["evidence"]
        if _evidence([Path(path) for path in evidence], store) != evidence:
            return None
        return _graph(noted["plan"])
    except (WinmlDagError, KeyError, TypeError, ValueError):
        return None  # unreadable, or of another version: it is made anew


def note(request: Request, planned: BuildGraph, store: LocalStore, began_ns: int) -> None:
    """Keep *planned* as what *request* leads to, unless something changed about when planning began, or after it.

    Evidence that is gathered after the fact would vouch for what the plan has not seen.
    """
    recipe = [request.recipe] if isinstance(request.recipe, Path) else []
    files = [file.path for source in planned.graph.sources.values() for file in source.files]
    # ".." stays: behind a link it leads elsewhere than the text says.
    looked_at = [path.absolute() for path in (*recipe, *files, *planned.looked_at)]
    # The settings of a build name its files as seen from the output folder, with links followed.
    folders = {planned.summary.output_dir.absolute(), *(path.parent for path in looked_at)}
    value: dict[str, JsonValue] = {
        "surroundings": _surroundings(),
        "places": _places(folders),
        "evidence": _evidence(looked_at, store),
        "plan": _plan(planned),
    }
    if all(has_settled(path, began_ns) for path in looked_at):
        store.index.write("standing", {_name(request): value})


def _name(request: Request) -> str:
    """What was asked for, word for word, and from where."""
    asked = {
        "recipe": None if request.recipe is None else str(request.recipe),
        "overrides": {
            name: value if value is None else str(value) for name, value in asdict(request.overrides).items()
        },
        "output_dir": None if request.output_dir is None else str(request.output_dir),
        "use_cache": request.use_cache,
        "current_folder": str(Path.cwd()),
    }
    return hashlib.sha256(canonical_json(asked).encode()).hexdigest()


def _surroundings() -> dict[str, JsonValue]:
    """Everything outside of the files that a plan depends on."""
    return {
        "code": _code_state(),
        "installed": _hash(installed_distributions()),
        "search_path": _hash(sys.path),
        "home": str(Path("~").expanduser()),
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }


def _code_state() -> str:
    """Size and time of each file of this package: a plan does not outlive the code that made it."""
    state: list[JsonValue] = []
    folders = [str(Path(__file__).parents[1])]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    state.append([entry.path, status.st_size, status.st_mtime_ns])
    return _hash(sorted(state, key=str))


def _evidence(paths: list[Path], store: LocalStore) -> dict[str, str]:
    """For each path: a file's digest, the names in a folder, or that nothing is there."""
    files = [path for path in paths if path.is_file()]
    digests = dict(zip(map(str, files), store.fingerprints.entries([(path, path.name) for path in files]), strict=True))
    return {str(path): digests[str(path)].digest if str(path) in digests else _names_in(path) for path in paths}


def _places(folders: Iterable[Path]) -> dict[str, JsonValue]:
    """Where each folder really is."""
    return {str(folder): os.path.realpath(folder) for folder in folders}


def _names_in(folder: Path) -> str:
    try:
        return _hash(sorted(os.listdir(folder)))  # noqa: PTH208 - names are all that is wanted
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT


def _hash(value: JsonValue) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _plan(planned: BuildGraph) -> dict[str, JsonValue]:
    summary = planned.summary
    return {
        "summary": {**asdict(summary), "output_dir": str(summary.output_dir), "notices": list(summary.notices)},
        "stages": {node.stage.name: _stage_json(node.stage) for node in planned.graph.nodes},
        "nodes": [{**asdict(node), "stage": node.stage.name} for node in planned.graph.nodes],
        "steps": [asdict(step) for step in planned.steps],
        "graph_sources": [
            {"name": source.name, "kind": source.kind, "files": [[file.name, str(file.path)] for file in source.files]}
            for source in planned.graph.sources.values()
        ],
        "sources": {name: artifact.to_json() for name, artifact in planned.sources.items()},
        "final": planned.final,
    }


def _graph(plan: Any) -> BuildGraph:
    stages = {name: _stage(value) for name, value in plan["stages"].items()}
    nodes = tuple(Node(**{**value, "stage": stages[value["stage"]]}) for value in plan["nodes"])
    sources = {
        value["name"]: Source(
            value["name"], value["kind"], tuple(SourceFile(name, Path(path)) for name, path in value["files"])
        )
        for value in plan["graph_sources"]
    }
    summary = plan["summary"]
    return BuildGraph(
        summary=BuildSummary(
            **{**summary, "output_dir": Path(summary["output_dir"]), "notices": tuple(summary["notices"])}
        ),
        # Checked and in order when it was noted.
        graph=Graph(nodes, sources, {node.output(slot): node for node in nodes for slot in node.stage.outputs}),
        steps=tuple(Step(**value) for value in plan["steps"]),
        sources={name: Artifact.from_json(files) for name, files in plan["sources"].items()},
        final=plan["final"],
    )


def _stage_json(stage: Stage) -> dict[str, JsonValue]:
    inputs = {
        slot: {"accepts": sorted(declared.accepts or ()), "required": declared.required, "refusals": declared.refusals}
        for slot, declared in stage.inputs.items()
    }
    return {**asdict(stage), "inputs": inputs, "packages": list(stage.packages)}


def _stage(value: Any) -> Stage:
    inputs = {
        slot: InputSlot(frozenset(declared["accepts"]), declared["required"], declared["refusals"])
        for slot, declared in value["inputs"].items()
    }
    return Stage(**{**value, "inputs": inputs, "packages": tuple(value["packages"])})
