"""The stages that a file change reaches: weights, data, code, options, and references to these files.

Each change is planned three times: by a store that has planned the project before and has recorded digests and the
plan, by one without cached state, and by the first again after everything was restored.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from model_files import CONFIG, HUB, RECIPES, ROWS, flip_a_bit, make_files, put, put_back, swap
from planned_keys import Warm, check_mutation, enter

Change = Callable[[Path], object]


def same_size_and_time(path: Path) -> None:
    """Edit like an editor that keeps a file's size and restores its time."""
    status = path.stat()
    flip_a_bit(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_another_file(path: Path) -> None:
    """Edit like `git checkout` and most editors: another file, with another inode, under the same name."""
    flip_a_bit(path)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def rename_a_shard(folder: Path) -> None:
    (folder / "one.safetensors").rename(folder / "first.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("one.", "first."))


def shard_a_single_file(folder: Path) -> None:
    """An index takes precedence over a single file: the names in the folder decide which files count."""
    put(folder / "part.safetensors", b"part")
    index = {"weight_map": {"a": "part.safetensors"}}
    put(folder / "model.safetensors.index.json", json.dumps(index).encode())


def rename_external_data(folder: Path) -> None:
    (folder / "one.data").rename(folder / "1st.data")
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"one.data", b"1st.data"))


def edit_graph(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"Add", b"Sub"))


def rename_in_recipe(project: Path, old: str, new: str, end: str = "") -> None:
    """Rename a file, in the recipe too. *end* is the text after its name in the recipe, if needed to identify it."""
    (project / old).rename(project / new)
    recipe = project / "recipe.json"
    recipe.write_text(recipe.read_text().replace(f'"{old}{end}', f'"{new}{end}'))


def link_to_other_weights(folder: Path) -> None:
    """Snapshots in the hub cache contain links: only the target counts."""
    put(folder.parent / "blobs" / "b2", b"weights of another revision")
    (folder / "model.safetensors").unlink()
    try:
        (folder / "model.safetensors").symlink_to(folder.parent / "blobs" / "b2")
    except OSError:
        pytest.skip("links need a permission here")


# The change, its project, and the stages that it reaches.
MUST_CHANGE: dict[str, tuple[str, Change, str]] = {
    "a byte of weights": ("safetensors", lambda at: flip_a_bit(at / "safetensors/model.safetensors"), "export"),
    "the first byte": ("safetensors", lambda at: flip_a_bit(at / "safetensors/model.safetensors", 0), "export"),
    "size and time kept": (
        "safetensors",
        lambda at: same_size_and_time(at / "safetensors/model.safetensors"),
        "export",
    ),
    "another file of that name": (
        "safetensors",
        lambda at: replace_by_another_file(at / "safetensors/model.safetensors"),
        "export",
    ),
    "a link to other weights": ("safetensors", lambda at: link_to_other_weights(at / "safetensors"), "export"),
    "an empty weights file": ("safetensors", lambda at: put(at / "safetensors/model.safetensors", b""), "export"),
    "safetensors beside a pickle": ("pickle", lambda at: put(at / "pickle/model.safetensors", b"weights"), "export"),
    "a byte of a pickle": ("pickle", lambda at: flip_a_bit(at / "pickle/pytorch_model.bin"), "export"),
    "an index of weights": ("safetensors", lambda at: shard_a_single_file(at / "safetensors"), "export"),
    "a byte of a shard": ("shards", lambda at: flip_a_bit(at / "shards/two.safetensors"), "export"),
    "two shards swapped": (
        "shards",
        lambda at: swap(at / "shards/one.safetensors", at / "shards/two.safetensors"),
        "export",
    ),
    "a shard renamed": ("shards", lambda at: rename_a_shard(at / "shards"), "export"),
    "the index of shards": (
        "shards",
        lambda at: put(
            at / "shards/model.safetensors.index.json",
            b'{"weight_map": {"b": "one.safetensors", "a": "two.safetensors"}}',
        ),
        "export",
    ),
    "config.json": (
        "safetensors",
        lambda at: put(at / "safetensors/config.json", json.dumps({**CONFIG, "vocab_size": 9}).encode()),
        "export calibrate validate",
    ),
    "the task, from config.json": (
        "shards",
        lambda at: put(
            at / "shards/config.json", json.dumps({**CONFIG, "architectures": ["BertForMaskedLM"]}).encode()
        ),
        "export",
    ),
    "a generation config": ("shards", lambda at: put(at / "shards/generation_config.json", b"{}"), "export"),
    "an adapter, which export refuses": ("pickle", lambda at: put(at / "pickle/adapter_config.json", b"{}"), "export"),
    "a byte of the tokenizer": (
        "safetensors",
        lambda at: flip_a_bit(at / "safetensors/tokenizer.json"),
        "calibrate validate",
    ),
    "a vocabulary": ("safetensors", lambda at: put(at / "safetensors/vocab.txt", b"a"), "calibrate validate"),
    #
    "a byte of code": ("code", lambda at: flip_a_bit(at / "code/modeling.py"), "export"),
    "a byte of a helper": ("code", lambda at: flip_a_bit(at / "code/helper.py"), "export"),
    "one more file of code": ("code", lambda at: put(at / "code/more.py", b"pass"), "export"),
    "one file of code less": ("code", lambda at: (at / "code/helper.py").unlink(), "export"),
    "two files of code swapped": ("code", lambda at: swap(at / "code/helper.py", at / "code/modeling.py"), "export"),
    "a file of code renamed": ("code", lambda at: (at / "code/helper.py").rename(at / "code/tools.py"), "export"),
    #
    "another commit as main": ("hub", lambda at: put(at / HUB / "refs/main", b"c2"), "export"),
    "another commit as v2": ("branch", lambda at: put(at / HUB / "refs/v2", b"c2"), "export"),
    "a byte in a snapshot": ("hub", lambda at: flip_a_bit(at / HUB / "snapshots/c1/model.safetensors"), "export"),
    "a folder of the hub id's name": ("hub", lambda at: shutil.copytree(at / "other", at / "org/name"), "export"),
    #
    "the graph": ("onnx", lambda at: edit_graph(at / "onnx/model.onnx"), "optimize validate"),
    "a byte of external data": ("onnx", lambda at: flip_a_bit(at / "onnx/two.data"), "optimize validate"),
    "two files of external data swapped": (
        "onnx",
        lambda at: swap(at / "onnx/one.data", at / "onnx/two.data"),
        "optimize validate",
    ),
    "external data renamed": ("onnx", lambda at: rename_external_data(at / "onnx"), "optimize validate"),
    "a compiled model's binary": (
        "compiled",
        lambda at: flip_a_bit(at / "compiled/model.bin"),
        "analyze validate finalize",
    ),
    #
    "a byte of a text": ("safetensors", lambda at: flip_a_bit(at / "data.txt"), "calibrate validate"),
    "a byte of a sample": ("onnx", lambda at: flip_a_bit(at / "data/a.npz"), "calibrate validate"),
    "a byte of a sample to validate on": ("own inputs", lambda at: flip_a_bit(at / "data/a.npz"), "validate"),
    "one more sample to validate on": ("own inputs", lambda at: put(at / "data/c.npz", b"c.npz"), "validate"),
    "two samples swapped": ("onnx", lambda at: swap(at / "data/a.npz", at / "data/b.npz"), "calibrate validate"),
    "one more sample": ("onnx", lambda at: put(at / "data/c.npz", b"c.npz"), "calibrate validate"),
    "one more sample, further down": ("onnx", lambda at: put(at / "data/d/e.npz", b"e"), "calibrate validate"),
    "one sample less": ("onnx", lambda at: (at / "data/b.npz").unlink(), "calibrate validate"),
    "the same sample twice": (
        "onnx",
        lambda at: shutil.copyfile(at / "data/a.npz", at / "data/c.npz"),
        "calibrate validate",
    ),
    "a sample renamed: they are read in order": (
        "onnx",
        lambda at: (at / "data/a.npz").rename(at / "data/z.npz"),
        "calibrate validate",
    ),
    "an array renamed: it is called as its input": (
        "npy",
        lambda at: rename_in_recipe(at, "x.npy", "y.npy"),
        "calibrate validate",
    ),
    "a byte of a data set": ("rows", lambda at: flip_a_bit(at / "rows/train.jsonl"), "calibrate validate"),
    "one more file of a split": ("rows", lambda at: put(at / "rows/train/more.jsonl", b"{}"), "calibrate validate"),
    "a card that names other files": (
        "rows",
        lambda at: put(at / "rows/README.md", b"---\nconfigs: [{data_files: word/*.jsonl}]\n---\n"),
        "calibrate validate",
    ),
    "a folder of the data set's hub id": (
        "data set of the hub",
        lambda at: put(at / "org/rows/train.jsonl", b'{"y": 1}'),
        "calibrate validate",
    ),
    "another commit of a data set": (
        "data set of the hub",
        lambda at: put(at / ROWS / "refs/main", b"c2"),
        "calibrate validate",
    ),
    "a byte of ranges": ("ranges", lambda at: put(at / "affinity.json", (at / "other.json").read_bytes()), "quantize"),
    "a byte of an option's file": ("option file", lambda at: flip_a_bit(at / "affinity.json"), "compile"),
}

MUST_NOT_CHANGE: dict[str, tuple[str, Change]] = {
    "another time": ("safetensors", lambda at: [os.utime(path, (1, 1)) for path in at.rglob("*")]),
    "the same written again": ("onnx", lambda at: [put(path, path.read_bytes()) for path in (at / "data").iterdir()]),
    "the same in other files": ("shards", lambda at: put_back_from_copy(at / "shards")),
    "a readme, a picture, a licence": (
        "safetensors",
        lambda at: [put(at / "safetensors" / name, b"new") for name in ("README.md", "picture.png", "LICENSE")],
    ),
    "weights of another framework": ("safetensors", lambda at: put(at / "safetensors/flax_model.msgpack", b"new")),
    "a pickle beside safetensors": ("safetensors", lambda at: put(at / "safetensors/pytorch_model.bin", b"new")),
    "a tokenizer where there is no text": ("pickle", lambda at: put(at / "pickle/tokenizer.json", b"new")),
    "a shard that is in no index": ("shards", lambda at: put(at / "shards/three.safetensors", b"new")),
    "code that is not trusted": ("untrusted code", lambda at: flip_a_bit(at / "code/modeling.py")),
    "code where there is none": ("safetensors", lambda at: put(at / "safetensors/modeling.py", b"new")),
    "main, of a commit with the same files": ("hub", lambda at: put(at / HUB / "refs/main", b"c3")),
    "main, where a branch is named": ("branch", lambda at: put(at / HUB / "refs/main", b"c2")),
    "another branch": ("hub", lambda at: put(at / HUB / "refs/v2", b"c2")),
    "other commits": ("hub", lambda at: flip_a_bit(at / HUB / "snapshots/c2/model.safetensors")),
    "the model folder renamed": ("shards", lambda at: rename_in_recipe(at, "shards", "renamed")),
    "the ONNX file renamed": ("onnx", lambda at: rename_in_recipe(at, "onnx/model.onnx", "onnx/renamed.onnx")),
    "the ONNX file's folder renamed": ("onnx", lambda at: rename_in_recipe(at, "onnx", "renamed")),
    "a data file beside an ONNX file": ("onnx", lambda at: put(at / "onnx/three.data", b"new")),
    "a text renamed": ("safetensors", lambda at: rename_in_recipe(at, "data.txt", "texts.txt")),
    "a folder of samples renamed": ("onnx", lambda at: rename_in_recipe(at, "data", "samples", '"')),
    "what is no sample among samples": ("onnx", lambda at: put(at / "data/notes.md", b"new")),
    "an empty folder among samples": ("onnx", lambda at: (at / "data/empty").mkdir()),
    "another split of a data set": ("rows", lambda at: put(at / "rows/test.jsonl", b"{}")),
    "what is no data in a data set": ("rows", lambda at: put(at / "rows/LICENSE", b"new")),
    "a card that names the same files": (
        "rows",
        lambda at: put(at / "rows/README.md", b"---\nconfigs: [{data_files: '**/train.jsonl'}]\n---\n"),
    ),
    "another commit with the same data": ("data set of the hub", lambda at: put(at / ROWS / "refs/main", b"c3")),
    "ranges renamed": ("ranges", lambda at: rename_in_recipe(at, "affinity.json", "my ranges.json")),
    "an option's file renamed": ("option file", lambda at: rename_in_recipe(at, "affinity.json", "my affinity.json")),
    "files beside the recipe": ("onnx", lambda at: put(at / "notes.txt", b"new")),
}


def put_back_from_copy(folder: Path) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    put_back(folder, copy)


@pytest.fixture(scope="module")
def original(made_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in ("original", "project"):
        shutil.copytree(made_project, folder / name)
        make_files(folder / name)
    return folder / "original"


@pytest.fixture
def files(original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that all mutations share, with its store: each changes it, and then it is restored."""
    project = enter(original.with_name("project"), monkeypatch)
    monkeypatch.setenv("HF_HUB_CACHE", str(project / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return project


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("mutation", [*MUST_CHANGE, *MUST_NOT_CHANGE])
def test_file_change_reaches_exactly_its_readers(files: Path, original: Path, mutation: str) -> None:
    name, change, expected = MUST_CHANGE[mutation] if mutation in MUST_CHANGE else (*MUST_NOT_CHANGE[mutation], "")
    check_mutation(Warm(files, RECIPES[name]), original, lambda: change(files), expected)
