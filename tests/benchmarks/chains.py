"""Projects for the comparison with other build tools: chains of four stages, in each tool's own language.

Every stage copies its input of 4 KiB and appends a line: ``in/c7.txt -> out/c7.1 -> out/c7.2 -> out/c7.3 -> out/c7.4``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

LENGTH = 4
_LINE = "a line of text that is sixty-three characters long, more or less"[:63] + "\n"
_LINES = 64


def make_project(folder: Path, tool: str, chains: int) -> None:
    """Fill an empty *folder* with the inputs of *chains* chains and the build description for *tool*."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    for chain in range(chains):
        text = f"{chain:062d}\n" + _LINE * (_LINES - 1)
        (folder / "in" / f"c{chain}.txt").write_text(text)
    name, write = DESCRIPTIONS[tool]
    (folder / name).write_text(write(chains))


def edit_input(folder: Path, chain: int) -> None:
    """Append a line to the input of one chain."""
    with (folder / "in" / f"c{chain}.txt").open("a") as file:
        file.write("one more line\n")


def outputs_of(folder: Path, chains: int) -> Iterator[tuple[Path, bytes]]:
    """Yield the last output of each chain, and its expected content."""
    for chain in range(chains):
        text = (folder / "in" / f"c{chain}.txt").read_bytes()
        tail = "".join(f"stage{stage}\n" for stage in range(1, LENGTH + 1))
        yield folder / "out" / f"c{chain}.{LENGTH}", text + tail.encode()


def _steps(chains: int) -> Iterator[tuple[int, int, str, str]]:
    """Yield chain, stage, input and output of every stage."""
    for chain in range(chains):
        for stage in range(1, LENGTH + 1):
            read = f"in/c{chain}.txt" if stage == 1 else f"out/c{chain}.{stage - 1}"
            yield chain, stage, read, f"out/c{chain}.{stage}"


def _winml_dag(chains: int) -> str:
    lines = ["stages:"]
    for chain, stage, _, written in _steps(chains):
        read = f"in/c{chain}.txt" if stage == 1 else f"c{chain}-{stage - 1}.b"
        command = f'[sh, -c, "(cat {{inputs.a}}; echo stage{stage}) > {{outputs.b}}"]'
        lines.append(f"  c{chain}-{stage}: {{command: {command}, inputs: {{a: {read}}}, outputs: {{b: {written}}}}}")
    return "\n".join(lines) + "\n"


def _make(chains: int) -> str:
    last = " ".join(f"out/c{chain}.{LENGTH}" for chain in range(chains))
    rules = "".join(
        f"{written}: {read}\n\t@(cat {read}; echo stage{stage}) > {written}\n"
        for _, stage, read, written in _steps(chains)
    )
    return f"MAKEFLAGS += -rR\n.SUFFIXES:\nall: {last}\n{rules}"


def _ninja(chains: int) -> str:
    rule = "rule append\n  command = (cat $in; echo stage$stage) > $out\n"
    builds = "".join(
        f"build {written}: append {read}\n  stage = {stage}\n" for _, stage, read, written in _steps(chains)
    )
    return rule + builds


def _doit(chains: int) -> str:
    return f"""DOIT_CONFIG = {{"backend": "sqlite3", "verbosity": 0}}


def task_append():
    for chain in range({chains}):
        for stage in range(1, {LENGTH + 1}):
            read = f"in/c{{chain}}.txt" if stage == 1 else f"out/c{{chain}}.{{stage - 1}}"
            written = f"out/c{{chain}}.{{stage}}"
            yield {{
                "name": f"c{{chain}}-{{stage}}",
                "file_dep": [read],
                "targets": [written],
                "actions": [f"(cat {{read}}; echo stage{{stage}}) > {{written}}"],
            }}
"""


def _snakemake(chains: int) -> str:
    rules = [f'rule all:\n    input: expand("out/c{{chain}}.{LENGTH}", chain=range({chains}))\n']
    for stage in range(1, LENGTH + 1):
        read = "in/c{chain}.txt" if stage == 1 else f"out/c{{chain}}.{stage - 1}"
        rules.append(
            f'rule stage{stage}:\n    input: "{read}"\n    output: "out/c{{chain}}.{stage}"\n'
            f'    shell: "(cat {{input}}; echo stage{stage}) > {{output}}"\n'
        )
    return "\n".join(rules)


def _dvc(chains: int) -> str:
    stages = "".join(
        f"  c{chain}-{stage}:\n    cmd: (cat {read}; echo stage{stage}) > {written}\n"
        f"    deps: [{read}]\n    outs: [{written}]\n"
        for chain, stage, read, written in _steps(chains)
    )
    return f"stages:\n{stages}"


# File name and text of the description per tool.
DESCRIPTIONS: dict[str, tuple[str, Callable[[int], str]]] = {
    "winml-dag": ("chains.yaml", _winml_dag),
    "make": ("Makefile", _make),
    "ninja": ("build.ninja", _ninja),
    "doit": ("dodo.py", _doit),
    "snakemake": ("Snakefile", _snakemake),
    "dvc": ("dvc.yaml", _dvc),
}
