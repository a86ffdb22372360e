"""A cache over many builds: size limit, statistics, and collection during a build."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from oneprocess import OneProcess
from scenario import Folder

from winml_dag.store.store import Store
from winml_dag.store.upkeep import verify

# Writes 50 KB of unique data; with a pipe, reports the start and waits for a message.
SCRIPT = """
import random, sys
from pathlib import Path
seed, output = Path(sys.argv[1]).read_text().split(), Path(sys.argv[2])
if len(seed) > 1:
    Path(seed[1]).write_text("at work")
    Path(seed[1]).read_text()
output.write_bytes(random.Random(seed[0]).randbytes(50_000))
"""


class Shop(Folder):
    """A recipe with a chain of two user-defined stages, and a cache."""

    def __init__(self, folder: Path, commands: OneProcess) -> None:
        super().__init__(folder, commands)
        self.variables: dict[str, str] = {}
        (folder / "making.py").write_text(SCRIPT)
        (folder / "copying.py").write_text("import shutil, sys; shutil.copy(*sys.argv[1:])")
        self.seed("0")
        command = [sys.executable, "{inputs.script}", "{inputs.of}", "{outputs.made}"]
        recipe = {
            "stages": {
                "make": {
                    "command": command,
                    "inputs": {"script": "./making.py", "of": "./seed.txt"},
                    "outputs": {"made": "made.bin"},
                },
                "copy": {
                    "command": command,
                    "inputs": {"script": "./copying.py", "of": "make.made"},
                    "outputs": {"made": "copied.bin"},
                },
            }
        }
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))

    def seed(self, text: str) -> None:
        (self.folder / "seed.txt").write_text(text)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.variables}

    def builds(self, seed: str) -> str:
        self.seed(seed)
        return self.says("build", "-c", "recipe.yaml")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: OneProcess) -> Shop:
    monkeypatch.delenv("WINML_DAG_CACHE_MAX_SIZE", raising=False)
    return Shop(tmp_path, commands)


@pytest.mark.slow
def test_cache_limit_holds_after_every_build(shop: Shop) -> None:
    shop.says("cache", "gc", "--limit", "180KB")
    noted = []
    for seed in ("1", "2", "1", "3", "1", "4", "1"):
        text = shop.builds(seed)
        noted += [line for line in text.splitlines() if line.startswith("note: The cache was above")]
        assert sum(path.stat().st_size for path in (shop.cache / "blobs").rglob("*") if path.is_file()) < 180_000
    # Used in every second build, "1" was never the least recently used; "2" was.
    assert len(noted) == 1
    assert "its limit of 180KB" in noted[0]
    assert "2 ran" in shop.builds("2")
    assert "ran" not in shop.builds("1").replace("(0 stages run)", "")
    assert verify(Store(shop.cache)).clean


def test_invalid_cache_limit_is_noted_but_build_succeeds(shop: Shop) -> None:
    shop.variables["WINML_DAG_CACHE_MAX_SIZE"] = "plenty"
    text = shop.builds("1")
    assert "note: The cache could not be kept to its limit: WINML_DAG_CACHE_MAX_SIZE: 'plenty' is not a size." in text
    assert "2 ran" in text
    assert "note: " not in shop.builds("1")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe to know that a stage is at work")
def test_gc_during_build_keeps_its_results(shop: Shop) -> None:
    shop.builds("1")
    pipe = shop.folder / "pipe"
    os.mkfifo(pipe)
    shop.seed(f"2 {pipe}")
    for record in (shop.cache / "records").rglob("*.json"):
        os.utime(record, (10**9, 10**9))
    build = shop.start("build", "-c", "recipe.yaml", "--format", "json")
    assert pipe.read_text() == "at work"
    collections = [shop.start("cache", "gc", "--max-size", "0", "--format", "json") for _ in range(2)]
    results = [process.communicate()[0] for process in collections]
    pipe.write_text("go on")
    out, errors = build.communicate()
    assert build.returncode == 0, errors
    assert [stage["status"] for stage in json.loads(out)["builds"][0]["stages"]] == ["ran", "ran"]
    assert sum(json.loads(result)["records"] for result in results) == 2
    store = Store(shop.cache)
    assert verify(store).clean
    assert len(store.records.keys()) == 2
    assert (shop.folder / "copied.bin").read_bytes() == (shop.folder / "made.bin").read_bytes()
