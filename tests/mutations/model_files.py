"""Projects with changing files, one for each way to specify a model, and the changes."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

CONFIG = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
# The folder in the local hub cache with the commits of org/name and the reference ``main``.
HUB = "hub/models--org--name"
ROWS = "hub/datasets--org--rows"
COMMITS: Mapping[str, bytes] = {"c1": b"weights", "c2": b"other weights", "c3": b"weights"}

_TEXT: Mapping[str, Any] = {"ep": "qnn", "quant": {"calibration_data": "data.txt"}, "compile": {}}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "safetensors": {"model": "safetensors", **_TEXT},
    "pickle": {"model": "pickle", "ep": "qnn", "quant": {}, "compile": {}},
    "shards": {"model": "shards", "ep": "cpu"},
    "code": {"model": "code", "loader": {"trust_remote_code": True}, "ep": "cpu"},
    "untrusted code": {"model": "code", "ep": "cpu"},
    "hub": {"model": "org/name", "ep": "cpu"},
    "branch": {"model": "org/name", "loader": {"revision": "v2"}, "ep": "cpu"},
    "onnx": {"model": "onnx/model.onnx", "ep": "qnn", "quant": {"calibration_data": "data"}, "compile": {}},
    "compiled": {"model": "compiled/model.onnx", "skip_optimize": True},
    "own inputs": {"model": "onnx/model.onnx", "quant": {}, "validate": {"input_data": "data"}},
    "npy": {"model": "onnx/model.onnx", "quant": {"calibration_data": "x.npy"}},
    "rows": {"model": "onnx/model.onnx", "quant": {"dataset_name": "rows"}},
    "data set of the hub": {"model": "onnx/model.onnx", "quant": {"dataset_name": "org/rows"}},
    "ranges": {"model": "onnx/model.onnx", "quant": {"calibration_load_path": "affinity.json"}},
    "option file": {
        "model": "onnx/model.onnx",
        "ep": "qnn",
        "compile": {"provider_options": {"op_affinity": "affinity.json"}},
    },
}


def make_files(folder: Path) -> None:
    """Create all files that :data:`RECIPES` name, in addition to ``planned_keys.make_project``."""
    for name, files in _FOLDERS.items():
        for file, content in {"config.json": json.dumps(CONFIG).encode(), **files}.items():
            put(folder / name / file, content)
    for commit, weights in COMMITS.items():
        put(folder / HUB / "snapshots" / commit / "config.json", json.dumps(CONFIG).encode())
        put(folder / HUB / "snapshots" / commit / "model.safetensors", weights)
    for reference in ("main", "v2"):
        put(folder / HUB / "refs" / reference, b"c1")
    for commit, rows in {"c1": b"{}", "c2": b'{"x": 1}', "c3": b"{}"}.items():
        put(folder / ROWS / "snapshots" / commit / "train.jsonl", rows)
    put(folder / ROWS / "refs" / "main", b"c1")
    put(folder / "x.npy", b"array")
    make_compiled(folder / "compiled")


_SHARDS = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
_FOLDERS: Mapping[str, Mapping[str, bytes]] = {
    "safetensors": {"model.safetensors": b"weights", "tokenizer.json": b"{}", "README.md": b"read me"},
    "pickle": {"pytorch_model.bin": b"weights"},
    "shards": {
        "model.safetensors.index.json": json.dumps(_SHARDS).encode(),
        "one.safetensors": b"first shard",
        "two.safetensors": b"other shard",
    },
    "code": {"model.safetensors": b"weights", "modeling.py": b"class Model: pass", "helper.py": b"pass"},
}


def make_compiled(folder: Path) -> None:
    """Save an EPContext model with its binary in a separate file."""
    node = helper.make_node(
        "EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="model.bin", source="QNN"
    )
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([node], "g", [value], [result])
    put(folder / "model.onnx", helper.make_model(graph).SerializeToString())
    put(folder / "model.bin", struct.pack("<4I", 1, 2, 3, 4))


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def flip_a_bit(path: Path, position: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def put_back(folder: Path, copy: Path) -> None:
    """Restore *folder* from *copy*."""
    for entry in list(folder.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.copytree(copy, folder, symlinks=True, dirs_exist_ok=True)
