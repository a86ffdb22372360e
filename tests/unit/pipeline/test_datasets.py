"""Which files of a data set are read: by its card, by their names, from a folder and from the hub's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from winml_dag.errors import InputError
from winml_dag.pipeline.hub import WantedData, find_dataset

CARD = """---
license: mit
configs:
- config_name: english
  default: true
  data_files:
  - split: train
    path: data/en-*.parquet
  - split: held out
    path: [data/held.parquet, "extra/**/*.parquet"]
- config_name: german
  data_dir: de
  data_files: "*.jsonl"
---
# A data set
"""
CARD_FILES = [
    *("data/en-1.parquet", "data/en-2.parquet", "data/sub/en-3.parquet", "data/held.parquet"),
    *("extra/a/b/c.parquet", "extra/d.parquet", "de/one.jsonl", "de/sub/two.jsonl", "README.md"),
]


@pytest.mark.parametrize(
    ("subset", "split", "files"),
    [
        (None, "train", ["data/en-1.parquet", "data/en-2.parquet"]),
        ("english", "held out", ["data/held.parquet", "extra/a/b/c.parquet", "extra/d.parquet"]),
        ("german", "train", ["de/one.jsonl"]),
    ],
)
def test_card_selects_files_of_subset_and_split(subset, split, files):
    assert WantedData("d", subset, split).files(CARD_FILES, CARD) == files


SHARDS = [f"data/{name}.parquet" for name in ("train-00000-of-00002", "train-00001-of-00002", "odd-00000-of-00001")]
SAVED = ["train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow", "train/state.json"]


@pytest.mark.parametrize(
    ("names", "split", "files"),
    [
        (SHARDS, "train", SHARDS[:2]),
        (SHARDS, "odd", SHARDS[2:]),
        (SAVED, "test", SAVED[1:2]),
        (["my_train_file.csv", "my-dev-file.csv", "trainer.csv"], "validation", ["my-dev-file.csv"]),
        (["sentences.txt", "more.txt", ".hidden.txt", "dataset_infos.json"], "train", ["more.txt", "sentences.txt"]),
        (["training/cat/1.png", "testing/cat/2.JPG", "metadata.csv"], "test", ["testing/cat/2.JPG"]),
    ],
)
def test_file_names_select_split_without_card(names, split, files):
    assert WantedData("d", None, split).files(names, "") == files


@pytest.mark.parametrize(
    ("names", "card", "subset", "split", "message", "advice"),
    [
        (CARD_FILES, CARD, "french", "train", "no subset 'french'", "english, german"),
        (CARD_FILES, CARD, None, "test", "no files of the split 'test'", "held out, train"),
        (CARD_FILES, CARD.replace("  default: true\n", ""), None, "train", "several subsets", "english, german"),
        (["a/train.csv"], "", "b", "train", "no folder of that name", "a"),
        (["train.csv"], "", None, "test", "no files of the split 'test'", "train"),
        (["make_it.py", "README.md"], "", None, "train", "never run", "parquet"),
        (["README.md"], "", None, "train", "no data files", "parquet"),
        (["train-00000-of-00003.parquet"], "", None, "train", "only 1 of the 3 files", "Download"),
        (["train.csv"], "---\nconfigs: [1]\n---\n", None, "train", "card", ""),
        (["train.csv"], "---\nconfigs: [}\n---\n", None, "train", "card", ""),
        (["train.csv"], "---\nconfigs: [{data_files: [{path: a}]}]\n---\n", None, "train", "card", ""),
    ],
)
def test_unknown_subset_or_split_is_refused_with_available_ones(names, card, subset, split, message, advice):
    with pytest.raises(InputError, match=message) as caught:
        WantedData("d", subset, split).files(names, card)
    assert advice in caught.value.advice


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A hub cache with one data set, offline."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = tmp_path / "hub" / "datasets--org--words"
    snapshot = repository / "snapshots" / "c0ffee"
    put(snapshot / "train.txt", "red fish\n")
    put(repository / "refs" / "main", "c0ffee")
    return snapshot


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_hub_dataset_is_found_in_cache_offline(hub, tmp_path):
    found = find_dataset(WantedData("org/words", None, "train"), tmp_path, download=True)
    assert [(file.name, file.path) for file in found.files] == [("train.txt", hub / "train.txt")]
    # Another commit, or a local folder of that name, would select other files.
    assert {hub.parent.parent / "refs" / "main", tmp_path / "org" / "words"} <= set(found.looked_at)


def test_local_folder_precedes_the_hub(hub, tmp_path):
    mine = put(tmp_path / "org" / "words" / "train.txt", "blue bird\n")
    found = find_dataset(WantedData("org/words", None, "train"), tmp_path, download=False)
    assert [file.path for file in found.files] == [mine]
    assert mine.parent in found.looked_at
    assert hub.exists()


@pytest.mark.parametrize(("name", "words"), [("org/other", "HF_HUB_OFFLINE"), ("org/words", "no files of the split")])
def test_uncached_dataset_is_refused_offline(hub, tmp_path, name, words):
    with pytest.raises(InputError, match=words):
        find_dataset(WantedData(name, None, "test"), tmp_path, download=True)
    assert hub.exists()


def test_invalid_dataset_path_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        find_dataset(WantedData("./nowhere", None, "train"), tmp_path, download=False)
    put(tmp_path / "lines.txt", "red fish\n")
    with pytest.raises(InputError, match="is a file") as caught:
        find_dataset(WantedData("lines.txt", None, "train"), tmp_path, download=False)
    assert "calibration_data" in caught.value.advice


class Hub(ThreadingHTTPServer):
    """A hub with one data set of three files, as far as huggingface_hub needs it; it records downloads."""

    files: ClassVar = {"README.md": b"# words", "train.txt": b"red fish\n", "test.txt": b"blue bird\n"}

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.downloaded: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        headers, name = {}, self.path.rpartition("/")[2]
        if self.path.startswith("/api/datasets/org/words/tree/"):
            sizes = {name: len(text) for name, text in Hub.files.items()}
            entries = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
            content = json.dumps(entries).encode()
        elif self.path.startswith("/api/datasets/org/words"):
            siblings = [{"rfilename": name, "size": len(text)} for name, text in Hub.files.items()]
            content = json.dumps({"id": "org/words", "sha": "c" * 40, "siblings": siblings}).encode()
        elif self.path.startswith("/datasets/org/words/resolve/") and name in Hub.files:
            headers, content = {"ETag": f'"{name}"', "X-Repo-Commit": "c" * 40}, Hub.files[name]
            self.server.downloaded += [name] if self.command == "GET" else []
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


_FIND = """
import sys
from pathlib import Path
from winml_dag.pipeline.hub import WantedData, find_dataset
for split in ("train", "train", "test"):
    found = find_dataset(WantedData("org/words", None, split), Path(sys.argv[1]), download=True)
    print([(file.name, file.path.read_text()) for file in found.files])
"""


def test_uncached_dataset_files_are_downloaded_once(tmp_path):
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    # huggingface_hub reads its variables on import, so this needs a separate process.
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": hub.url}
    environment = {name: value for name, value in environment.items() if not name.endswith("_OFFLINE")}
    command = [sys.executable, "-c", _FIND, str(tmp_path)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    finally:
        hub.shutdown()
        hub.server_close()
    train, test = r"[('train.txt', 'red fish\n')]", r"[('test.txt', 'blue bird\n')]"
    assert done.stdout.splitlines() == [train, train, test]
    assert sorted(hub.downloaded) == ["README.md", "test.txt", "train.txt"]
