"""A project of user-defined stages to attack, and the oracle that computes its outputs from its files.

The oracle has no notion of keys, caches or plans. Each stage is a text function that it recomputes from the files on
disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# The first three have the same size.
TEXTS = ("one\n", "two\n", "six\n", "three\nlines\nof text\n")
WORDS = ("red", "tan", "green")
VERSIONS = ("one", "two", "three")
# Their outputs go to one folder, and the recipes share one stem.
RECIPE, TWIN = "recipe.yaml", "recipe.json"

_LIST = "cd {inputs.data} && grep -R -D skip '' . | LC_ALL=C sort > {outputs.out}"
_SPLIT = (
    "mkdir -p {outputs.parts}/sub && cat {inputs.text} > {outputs.parts}/a.txt"
    " && echo {config.word} > {outputs.parts}/sub/b.txt"
)


@dataclass(frozen=True)
class Site:
    """Everything that an attack may reach: *root* has the project, the external files it reads, and its cache."""

    root: Path

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def outside(self) -> Path:
        """Foreign files that links lead to: no command may change them."""
        return self.root / "outside"

    def write(self, name: str, text: str, *, executable: bool = False) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text)
        if executable:
            path.chmod(0o755)

    def make(self) -> None:
        """Restore the initial project in any state. The cache stays."""
        for name in ("project", "versions", "path", "modules", "clone", "saved"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in ("path/early", "modules/early", "outside/assets", "saved"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in VERSIONS:
            self.write(f"versions/{name}/m.txt", f"{name}\n")
        self.write("project/src/a.txt", TEXTS[0])
        self.write("project/src/b.txt", TEXTS[1])
        self.write("project/data/one.txt", TEXTS[0])
        self.write("project/data/sub/two.txt", TEXTS[1])
        (self.project / "cur").symlink_to("../versions/one")
        (self.project / "data/linked").symlink_to("../../versions/two")
        self.write("project/tools/mark", tool(0), executable=True)
        self.write("path/late/mytool", tool(0), executable=True)
        self.write("modules/late/steps.py", module(0))
        self.write(f"project/{RECIPE}", recipe_text(0))
        self.write(f"project/{TWIN}", json.dumps(twin(0)))
        relink(self.root / "at", "project")
        # The last file is byte-identical to an output of a build, and still foreign.
        for name, text in (
            ("precious.txt", "precious\n"),
            ("assets/.bashrc", "mine\n"),
            ("assets/mark.txt", "V0\none\n"),
        ):
            if not (self.outside / name).exists():
                self.write(f"outside/{name}", text, executable=True)

    def environment(self) -> dict[str, str]:
        path = [self.root / "path/early", self.root / "path/late"]
        return {
            "PATH": os.pathsep.join([*map(str, path), os.defpath]),
            "PYTHONPATH": os.pathsep.join(map(str, self.modules())),
            "HOME": str(self.root),
            "WINML_DAG_CACHE_DIR": str(self.cache),
            "NOT_IN_A_KEY": secret.read_text() if (secret := self.root / "variable").exists() else "",
        }

    def modules(self) -> list[Path]:
        return [self.root / "modules/early", self.root / "modules/late"]


def relink(link: Path, target: str) -> None:
    """Replace a link as ``ln -sfn`` does."""
    moving = link.with_name(f"{link.name}.moving")
    moving.unlink(missing_ok=True)
    moving.symlink_to(target)
    moving.replace(link)


def tool(number: int) -> str:
    """Return a program that writes its version before its input. Its output is executable."""
    return f'#!/bin/sh\n# V{number}\n{{ echo V{number}; cat "$1"; }} > "$2"; chmod +x "$2"\n'


def module(number: int) -> str:
    return (
        f"def work(inputs, outputs, config):  # V{number}\n"
        "    text = open(inputs['text']).read()\n"
        f"    open(outputs['out'], 'w').write('V{number} ' + config['word'] + ' ' + text)\n"
    )


def recipe(number: int) -> dict[str, Any]:
    """Return one of twelve recipes: three words, two paths for the last output, with or without its variable."""
    word, last = WORDS[number % 3], "last" if number % 2 else "final"
    return {
        "stages": {
            "mark": {
                "command": ["./tools/mark", "{inputs.text}", "{outputs.out}"],
                "inputs": {"text": "src/a.txt"},
                "outputs": {"out": "build/mark.txt"},
            },
            "gather": _command(_LIST, {"data": "data/"}, {"out": "build/gather.txt"}),
            "split": _command(_SPLIT, {"text": "mark.out"}, {"parts": "build/parts/"}, config={"word": word}),
            "index": _command(_LIST, {"data": "split.parts"}, {"out": "build/index.txt"}),
            "tool": {
                "command": ["{config.tool}", "{inputs.text}", "{outputs.out}"],
                "inputs": {"text": "cur/m.txt"},
                "outputs": {"out": "build/tool.txt"},
                "config": {"tool": "mytool"},
            },
            "join": _command(
                "{{ echo $WORD$NOT_IN_A_KEY; cat {inputs.a} {inputs.b} {inputs.c}; }} > {outputs.out}",
                {"a": "gather.out", "b": "index.out", "c": "tool.out"},
                {"out": f"build/{last}.txt"},
                env={"WORD": word} if number % 4 < 2 else {},
            ),
        }
    }


def recipe_text(number: int) -> str:
    return yaml.safe_dump(recipe(number), sort_keys=False)


def twin(number: int) -> dict[str, Any]:
    """Return one of three recipes with a function, and with a stage of the other recipe that writes to another path."""
    return {
        "stages": {
            "mark": {
                "command": ["./tools/mark", "{inputs.text}", "{outputs.out}"],
                "inputs": {"text": "src/b.txt"},
                "outputs": {"out": "twin/mark.txt"},
            },
            "function": {
                "run": "steps:work",
                "inputs": {"text": "mark.out"},
                "outputs": {"out": "twin/function.txt"},
                "config": {"word": WORDS[number % 3]},
            },
        }
    }


def _command(text: str, inputs: dict[str, str], outputs: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", text], "inputs": inputs, "outputs": outputs, **more}


def expected(site: Site, folder: Path, name: str) -> dict[str, bytes]:
    """Return the outputs of the recipe *name* in *folder*, by path.

    Raises:
        OSError: when a required file is missing.
    """
    stages: dict[str, Any] = yaml.safe_load(read(folder / name))["stages"]
    found: dict[str, dict[str, bytes]] = {}
    put: dict[str, bytes] = {}
    for stage, entry in stages.items():
        inputs = {slot: found.get(text) or _read(folder, text) for slot, text in entry["inputs"].items()}
        ((slot, path),) = entry["outputs"].items()
        made = found[f"{stage}.{slot}"] = _WORK[stage](site, folder, entry, inputs)
        put |= {f"{path.rstrip('/')}{inner}": text for inner, text in made.items()}
    return put


def read(path: Path) -> bytes:
    if not path.is_file():  # opening a named pipe would block
        raise FileNotFoundError(str(path))
    return path.read_bytes()


def write(path: Path, text: str) -> None:
    """Write *text*. Raises OSError for a named pipe, where an ordinary write would wait for a reader."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666), "w") as file:
        file.write(text)


def _read(folder: Path, text: str) -> dict[str, bytes]:
    """Return the files of an input by their path below it, which is empty for a single file."""
    if not text.endswith("/"):
        return {"": read(folder / text)}
    return {
        str(Path(at, name))[len(str(folder / text)) :]: Path(at, name).read_bytes()
        for at, _, names in os.walk(folder / text, followlinks=True)
        for name in names
        if Path(at, name).is_file()
    }


_Inputs = Mapping[str, Mapping[str, bytes]]
_Entry = Mapping[str, Any]


def _mark(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:  # noqa: ARG001
    return {"": _versioned(folder / "tools/mark", inputs["text"][""])}


def _tool(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:  # noqa: ARG001
    found = shutil.which("mytool", path=site.environment()["PATH"])
    if found is None:
        raise FileNotFoundError("mytool")
    return {"": _versioned(Path(found), inputs["text"][""])}


def _versioned(program: Path, text: bytes) -> bytes:
    return f"{_version(program)}\n".encode() + text


def _version(file: Path) -> str:
    found = re.search(r"V\d+", read(file).decode())
    assert found is not None
    return found[0]


def _gather(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:  # noqa: ARG001
    lines = (f".{name}:".encode() + line for name, text in inputs["data"].items() for line in text.splitlines(True))
    return {"": b"".join(sorted(lines))}


def _split(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:  # noqa: ARG001
    return {"/a.txt": inputs["text"][""], "/sub/b.txt": f"{entry['config']['word']}\n".encode()}


def _join(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:  # noqa: ARG001
    first = f"{entry.get('env', {}).get('WORD', '')}\n".encode()
    return {"": first + b"".join(inputs[slot][""] for slot in "abc")}


def _function(site: Site, folder: Path, entry: _Entry, inputs: _Inputs) -> dict[str, bytes]:
    places = (at / name for at in (folder, *site.modules()) for name in ("steps/__init__.py", "steps.py"))
    path = next(path for path in places if path.is_file())
    return {"": f"{_version(path)} {entry['config']['word']} ".encode() + inputs["text"][""]}


_WORK: Mapping[str, Callable[[Site, Path, _Entry, _Inputs], dict[str, bytes]]] = {
    "mark": _mark,
    "tool": _tool,
    "gather": _gather,
    "index": _gather,
    "split": _split,
    "join": _join,
    "function": _function,
}
