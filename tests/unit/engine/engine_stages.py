"""Work that worker processes import: each function is one possible behaviour of a stage."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError


@dataclass(frozen=True)
class Inner:
    bits: int


@dataclass(frozen=True)
class Config:
    text: Inner


def write(config: Config, workspace: Workspace) -> JsonObject:
    for folder in (Path(), Path(tempfile.gettempdir())):
        (folder / "no_output.bin").write_bytes(b"x")
    texts = [workspace.input_file(slot, ".txt").read_text() for slot in sorted(workspace.inputs)]
    (workspace.outputs["out"] / "text.txt").write_text(f"{config.text.bits}({','.join(texts)})")
    print("written")
    return {"inputs": len(texts)}


def refuse(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    print("looking at it")
    raise StageError("The model is too large.", advice="Take a smaller one.")


def refuse_without_a_word(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    raise StageError("")


def break_down(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    return {"ratio": 1 / 0}


def need_what_an_extra_has(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    sys.modules["pyarrow"] = None  # type: ignore[assignment] # as where it is not installed
    import pyarrow

    return {"version": pyarrow.__version__}


def tell_what_json_has_not(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    return {"cosine": float("nan")}


def exit_early(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    sys.exit(0)


def pose_as_the_worker(config: Config, workspace: Workspace) -> JsonObject:
    """Imitate a library that writes a file of this name by chance, and then ends the process."""
    write(config, workspace)
    Path("result.json").write_text('{"metrics": {}}')
    os._exit(0)


def tell_environment(config: Config, workspace: Workspace) -> JsonObject:
    write(config, workspace)
    names = ("PYTHONHASHSEED", "TZ", "LC_ALL", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "OF_THE_USER")
    return {
        "environment": {name: os.environ.get(name) for name in names},
        "of_remotes": [name for name in os.environ if name.startswith("WINML_DAG_REMOTE")],
        "folder": str(Path.cwd()),
        "temporary": tempfile.gettempdir(),
        "encoding": sys.stdout.encoding.lower(),
        "argument_folder_on_path": str(Path.cwd()) in sys.path or "" in sys.path,
        "modules": sorted({name.partition(".")[0] for name in sys.modules}),
        "collects_garbage": gc.isenabled(),
        "leaves_imported_alone": gc.get_freeze_count() > 0,
        "order": list({"weights", "scales", "zero points", "ranges", "nodes"}),
        "inputs": {slot: path.as_posix() for slot, path in workspace.inputs.items()},
    }


def tell_how_far(config: Config, workspace: Workspace) -> JsonObject:
    """Count to the number of bits, mostly faster than progress is written."""
    for done in range(config.text.bits + 1):
        workspace.progress(done, config.text.bits, "bits")
    return write(config, workspace)


def tell_and_refuse(config: Config, workspace: Workspace) -> JsonObject:
    workspace.progress(0, 8, "bits")
    workspace.progress(3, 8, "bits")
    return refuse(config, workspace)


def tell_and_wait_to_be_ended(config: Config, workspace: Workspace) -> JsonObject:  # noqa: ARG001
    """Report its progress, and through a pipe that it is running, and hang forever."""
    workspace.progress(64, 512, "samples")
    Path(workspace.input_file("fifo", ".txt").read_text()).write_text("at work")
    threading.Event().wait()
    return {}
