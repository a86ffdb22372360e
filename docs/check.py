"""Check the documentation against the code: ``make docs``. With ``--write``, bring its generated parts up to date.

Checks generated blocks, relative links and anchors, the commands and recipes shown, the recipe fields and project files
named, that pages, messages, docstrings and comments have no word of ``words.txt``, and that the messages under
troubleshooting exist in the code. Nothing is run, so examples of output may be out of date.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
from generated import BLOCKS
from pydantic import ValidationError
from recipe_tables import recipe_sections
from schemas import schemas
from tables import join

from winml_dag.cli import cli
from winml_dag.errors import RecipeError
from winml_dag.pipeline import remoteconfig
from winml_dag.recipe.capabilities import CATALOG
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.problems import problems
from winml_dag.recipe.text import read_text

ROOT = Path(__file__).resolve().parent.parent

_BLOCK = re.compile(r"<!-- generated: (?P<name>[^>]+?) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)
_FENCE = re.compile(r"^```(?P<language>\w*)(?: title=\"[^\"\n]+\")?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_INDENTED_FENCE = re.compile(r"^ +```\w*\n.*?^ +```$", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"\]\([^)]*\)")
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(r"([a-z]\w*(?:\.\w+)+)(?::.*)?")
_PATH = re.compile(r"[a-z]\w*(?:/[\w.-]+)*/[\w-]+\.py|(?:tests|winml_dag|docs|recipes)/[\w./-]*")
# Arguments, attributes and other code in a text of the code, and what an f-string fills in.
_NAME = re.compile(r"\*\w+\*|``[^`]+``|\{[^{}]*\}|^ +\w+(, \w+)*:", re.MULTILINE)
# Blocks whose text comes from this folder. That of others is reworded in the code, and here follows it.
_OWN_BLOCKS = {"recipe", "keys of a sweep", "goal", "search"}
_MESSAGE_ROW = re.compile(r"^\| (?P<messages>`.+?`)[^`|]* \|", re.MULTILINE)
# Keys that only a sweep has.
_OF_SWEEPS = {"matrix", "base", "overrides", "goal", "search", "measure", "folder"}
# What ends a command in a line of shell.
_SHELL_END = {"|", ">", ">>", "2>&1", "&", "&&", "||", ";"}


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def findings(page: Path) -> Iterator[str]:
    """Everything that is wrong with *page*, one sentence each."""
    text = page.read_text(encoding="utf-8")
    if regenerated(text) != text:
        yield "generated blocks are out of date; run: python docs/check.py --write"
    prose = _FENCE.sub("", text)
    yield from _broken_links(page, prose)
    yield from _unwanted_words(text)
    if page.name == "troubleshooting.md":
        yield from _unknown_messages(prose)
    for command in _commands(text, prose):
        if problem := _command_problem(command):
            yield f"{command!r}: {problem}"
    for fence in _FENCE.finditer(text):
        if fence["language"] == "yaml":
            yield from _recipe_problems(fence["text"])
        if fence["language"] == "toml":
            yield from _configuration_problems(fence["text"])
    # The config of a stage names a field or two in its own way.
    for code in _INLINE_CODE.findall(_BLOCK.sub(lambda block: block["text"] * (block["name"] != "stages"), prose)):
        if (match := _DOTTED.fullmatch(code)) and not _is_known_field(match[1].split(".")):
            yield f"`{code}`: a recipe has no such field"
        if _PATH.fullmatch(code) and not any((folder / code).exists() for folder in (ROOT, ROOT / "winml_dag")):
            yield f"`{code}`: there is no such file"


def _unwanted_words(text: str, first_line: int = 1) -> Iterator[str]:
    """The words in *text*, outside of code, that ``words.txt`` replaces."""
    text = _BLOCK.sub(lambda block: block[0] if block["name"] in _OWN_BLOCKS else _blank(block), text)
    for code in (_FENCE, _INDENTED_FENCE, _INLINE_CODE, _TARGET):
        text = code.sub(_blank, text)
    for word, instead in _words():
        for found in word.finditer(text):
            line = first_line + text.count("\n", 0, found.start())
            yield f"line {line}: {' '.join(found[0].split())!r}: write {instead}"


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", found[0])


@cache
def _words() -> list[tuple[re.Pattern[str], str]]:
    lines = (ROOT / "docs" / "words.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" -> ") for line in lines if not line.startswith("#"))
    return [(re.compile(rf"\b(?:{word})\b".replace(" ", r"\s+"), re.IGNORECASE), instead) for word, instead in pairs]


def _unknown_messages(prose: str) -> Iterator[str]:
    """The messages in the tables of *prose* that no string of the code contains; ``…`` is any text."""
    for row in _MESSAGE_ROW.finditer(prose):
        for message in _INLINE_CODE.findall(row["messages"]):
            for words in filter(None, (words.strip() for words in message.split("…"))):
                if len(words) > 2 and not any(words in said for said in _strings_of_the_code()):
                    yield f"`{message}`: no message of the code has {words!r}"


@cache
def _strings_of_the_code() -> set[str]:
    """Every string in the code but docstrings; what an f-string fills in is a line feed."""
    found = set()
    for path in (ROOT / "winml_dag").rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values)
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def _texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment, and of each string of several words, in the code *path*, without names."""
    with path.open("rb") as code:
        for token in tokenize.tokenize(code.readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.count(" ") > 1):
                yield token.start[0], _NAME.sub("_", token.string)


def regenerated(text: str) -> str:
    """*text* with every generated block regenerated. Raises KeyError for an unknown block."""
    return _BLOCK.sub(
        lambda block: f"<!-- generated: {block['name']} -->\n\n{BLOCKS[block['name']]()}\n\n<!-- end -->", text
    )


def _broken_links(page: Path, prose: str) -> Iterator[str]:
    for link in _LINK.finditer(_INLINE_CODE.sub("", prose)):
        target, _, anchor = link["target"].partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            yield f"link to {link['target']}: there is no such file"
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            yield f"link to {link['target']}: there is no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings in *text*: equal ones are numbered."""
    found: set[str] = set()
    for heading in _HEADING.finditer(_FENCE.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading["text"].lower()).replace(" ", "-")
        numbered = (words, *(f"{words}-{number}" for number in range(1, 100)))
        found.add(next(anchor for anchor in numbered if anchor not in found))
    return found


def _commands(text: str, prose: str) -> Iterator[str]:
    """Every command of ours that *text* shows: lines after ``$`` or in a block of shell, and code within sentences."""
    for fence in _FENCE.finditer(text):
        for line in fence["text"].replace("\\\n", " ").splitlines():
            shown = line.removeprefix("$ ") if fence["language"] == "console" else line
            if (shown != line or fence["language"] in ("sh", "shell")) and shown.startswith("winml-dag"):
                yield shown
    yield from (code for code in _INLINE_CODE.findall(prose) if re.match(r"winml-dag\b", code))


def _command_problem(command: str) -> str:
    """What click says of *command*, which is read but not run; empty when nothing is wrong."""
    words = shlex.split(command, comments=True)[1:]
    end = next((place for place, word in enumerate(words) if word in _SHELL_END), len(words))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _parse(cli, "winml-dag", words[:end])
    except click.exceptions.Exit:  # --help and --version
        return ""
    except (click.exceptions.NoArgsIsHelpError, click.MissingParameter):  # a command that is named, not shown
        return ""
    except click.ClickException as error:
        return error.format_message()
    return ""


def _parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, parent, name)
        inner_name, inner, rest = command.resolve_command(context, words)
        assert inner is not None
        _parse(inner, inner_name or "", rest, context)
    else:
        command.make_context(name, list(words), parent)


def _recipe_problems(text: str) -> Iterator[str]:
    try:
        written = read_text(text, "the recipe", "yaml").value
        if isinstance(written, dict) and written.keys() & _OF_SWEEPS:
            _read_as_sweep({"matrix": {"precision": ["w8a8"]}, **written})
        else:
            parse_recipe(text, "the recipe", "yaml")
    except RecipeError as error:
        yield from error.problems or (str(error),)


def _configuration_problems(text: str) -> Iterator[str]:
    """What is wrong with what a configuration file says of remotes; the user's may say all that a project's may."""
    said = {key: value for key, value in tomllib.loads(text).items() if key != "ep"}
    if not said.keys() & remoteconfig.UserFile.model_fields.keys():
        return  # another tool's
    try:
        remoteconfig.UserFile.model_validate(said)
    except ValidationError as error:
        yield from problems(error, remoteconfig.UserFile, remoteconfig.positions_in(text), "the configuration")


def _read_as_sweep(written: dict[str, Any]) -> None:
    """Read a sweep, or a part of one, without what it is based on: that is nowhere here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.json"
        path.write_text(json.dumps(_without_bases(written)), encoding="utf-8")
        load_sweep(path)


def _without_bases(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_bases(inner) for key, inner in value.items() if key != "base"}
    return [_without_bases(inner) for inner in value] if isinstance(value, list) else value


def _is_known_field(names: list[str]) -> bool:
    """Whether the dotted *names* are a field of a recipe, or are none at all (a module, a file)."""
    known = recipe_sections()
    if {"onnx", "json"} & {*names} or names[0] not in {*known, "optim"}:
        return True
    if names[0] == "optim":
        return names[1:] == [name for name in names[1:] if name in CATALOG]
    path = ""
    for name in names:
        section = known.get(path)
        if section is None or name not in section["properties"]:
            return section is None and path.endswith(("provider_options", "config", "dynamic_axes"))
        path = join(path, name)
    return True


def main(write: bool) -> int:
    count = 0
    for page in pages():
        if write:
            text = page.read_text(encoding="utf-8")
            page.write_text(regenerated(text), encoding="utf-8", newline="\n")
        for finding in findings(page):
            print(f"{page.relative_to(ROOT)}: {finding}")
            count += 1
    for path in sorted((ROOT / "winml_dag").rglob("*.py")):
        for line, text in _texts_of(path):
            for finding in _unwanted_words(text, line):
                print(f"{path.relative_to(ROOT)}: {finding}")
                count += 1
    for path, text in schemas(ROOT / "recipes"):
        if write:
            path.write_text(text, encoding="utf-8", newline="\n")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)}: out of date; run: python docs/check.py --write")
            count += 1
    print(f"{len(pages())} pages, {count} findings.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
