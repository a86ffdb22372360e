"""Small models, recipes and results, as the tests of the pipeline need them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from winml_dag.canonical import json_hash
from winml_dag.ep.qairt import CONVERTER, GENERATOR, host_name, library, program
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.plan import Build
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.resolve import resolve
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.store.artifact import FileEntry
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.store import Store

NOTHING = Overrides()


def save_model(
    path: Path, op: str = "Relu", shape: Sequence[int | str] = (1, 4), weight: Any = None, **attributes: Any
) -> Path:
    """Save a model of one node from ``x`` to ``y``, whose second input is *weight*, if there is one."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    weights = [] if weight is None else [numpy_helper.from_array(np.asarray(weight, np.float32), "w")]
    node = helper.make_node(op, ["x", *(each.name for each in weights)], ["y"], name="node", **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def save_compiled_model(path: Path, source: str = "QNN", **attributes: Any) -> Path:
    """Save a model whose only node is a binary, by default in the model, of the provider called *source*."""
    told = {"embed_mode": 1, "ep_cache_context": "binary", "source": source, **attributes}
    return save_model(path, "EPContext", domain="com.microsoft", **told)


def resolved(folder: Path, recipe: Mapping[str, Any], overrides: Overrides = NOTHING) -> Build:
    """Return the build of a *recipe* in *folder*, whose results go into ``out`` below *folder*."""
    parsed = parse_recipe(json.dumps(recipe), "recipe.json", "json")
    loaded = LoadedRecipe(folder / "recipe.json", parsed, "json")
    return resolve(ResolveContext.of(loaded, overrides, folder / "out"))


def publish(store: Store, scratch: Path, files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
    """Put *files* into *store*, as the output of a stage."""
    made = KeyInputs("finalize", 1, {}, {name: data.hex() for name, data in files.items()}, {})
    folder = scratch / cache_key(made)[:8]
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return store.publish(Record(cache_key(made), json_hash({}), made, {}), {"model": folder}).files()


def put_sdk(folder: Path) -> Path:
    """Create the files of a QNN SDK that a plan checks."""
    names = [f"bin/{host_name()}/{name}" for name in (CONVERTER, program(GENERATOR))]
    names += [f"lib/{host_name()}/{library(name)}" for name in ("QnnHtp", "QnnHtpNetRunExtensions")]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "sdk.yaml").write_text("version: 2.39.0", encoding="utf-8")
    return folder


@contextmanager
def changed_before(module: Any, name: str, change: Callable[[], object]) -> Iterator[None]:
    """Make the *change* once, before the first call of the function *name*."""
    called, changes = getattr(module, name), [change]

    def change_and_call(*arguments: Any, **options: Any) -> Any:
        if changes:
            changes.pop()()
        return called(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, name, change_and_call)
        yield
    assert not changes
