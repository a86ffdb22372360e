"""Module mode: a recipe file that lists recipes, one for each of several modules of a model.

Each is a build of its own, in a folder of its own; ``module_summary.json`` beside these folders says which is which, in
the form that winml-cli gives it, so that whatever picks up its results finds ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.errors import UsageError
from winml_dag.pipeline.request import Request
from winml_dag.recipe.reading import ModuleItem
from winml_dag.smallfiles import read_bytes, read_json

if TYPE_CHECKING:
    from winml_dag.pipeline.build import Outcome

SUMMARY = "module_summary.json"


@dataclass(frozen=True)
class ModuleBuild:
    """One module of a list: how its build is called, what is asked for, and what the list says of it."""

    label: str
    request: Request
    item: ModuleItem

    @property
    def folder(self) -> Path:
        assert self.request.output_dir is not None
        return self.request.output_dir


def module_builds(request: Request, items: Sequence[ModuleItem]) -> tuple[ModuleBuild, ...]:
    """A build for each of the *items* that the recipe of *request* lists, in ``<output_dir>/<class>_<place>``.

    Without an output folder, which only looking at a build can do without, each has one in the cache.
    """
    found = []
    for place, item in enumerate(items):
        label = item.label(place)
        folder = None if request.output_dir is None else request.output_dir / label
        found.append(ModuleBuild(label, replace(request, item=place, output_dir=folder), item))
    return tuple(found)


def refuse_unplaced(request: Request) -> Path:
    """The folder that the builds of a list go to.

    Raises:
        UsageError: when none is named, or somebody else's file is where the summary goes.
    """
    if request.use_cache or request.output_dir is None:
        raise UsageError(
            "A list of recipes gives several output folders, so it needs a folder to put them into.",
            advice="Give -o/--output-dir.",
        )
    if os.path.lexists(request.output_dir / SUMMARY) and _read(request.output_dir) is None:
        raise UsageError(
            f"{request.output_dir / SUMMARY} is in the way: it is no summary of modules, so it is not overwritten.",
            advice="Move it, or choose another folder with -o.",
        )
    return request.output_dir


def write_summary(folder: Path, builds: Sequence[ModuleBuild], outcomes: Sequence[Outcome | None]) -> None:
    """Write what became of *builds* into *folder*; None for one that was seen to be up to date. A summary that says the
    same is not touched.
    """
    instances = [_instance(build, outcome) for build, outcome in zip(builds, outcomes, strict=True)]
    models = [name for build in builds if (name := _manifest(build.folder).get("model_id"))]
    known = [
        outcome.result.build.model_id for outcome in outcomes if outcome is not None and outcome.result is not None
    ]
    value: JsonObject = {
        "model_id": next(iter([*models, *known]), None),
        "module_class": instances[0]["class_name"],
        "instance_count": len(instances),
        "instances": instances,
    }
    data = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    path = folder / SUMMARY
    if not path.is_file() or read_bytes(path) != data:
        from winml_dag.store.files import in_words, write_whole

        with in_words(f"Cannot write {path}"):
            write_whole(path, data)


def _instance(build: ModuleBuild, outcome: Outcome | None) -> JsonObject:
    """What the summary says of one module; ``error`` is null for one that is there."""
    error = None if outcome is None else next(_errors(outcome), None)
    made = {} if error else _manifest(build.folder)
    elapsed = made.get("elapsed_seconds")
    if not isinstance(elapsed, float | int):
        elapsed = 0.0 if outcome is None or outcome.result is None else outcome.result.elapsed_seconds
    return {
        "module_path": build.item.module_path,
        "class_name": build.item.class_name or "module",
        "output_dir": str(build.folder),
        "build_elapsed_s": round(elapsed, 2),
        "error": error,
    }


def _errors(outcome: Outcome) -> Iterator[str]:
    """Why a build failed: the one reason of a refusal, or that of each stage."""
    if outcome.error is not None:
        yield str(outcome.error)
    for view in () if outcome.result is None else outcome.result.stages:
        if view.result is not None and view.result.error:
            yield f"{view.id}: {view.result.error}"


def _manifest(folder: Path) -> JsonObject:
    from winml_dag.pipeline.manifest import read_manifest

    manifest = read_manifest(folder)
    return {} if manifest is None else manifest.value


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        value = read_json(folder / SUMMARY)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("instances"), list) else None
