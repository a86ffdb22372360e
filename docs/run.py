"""Run the commands that the pages show and compare the output: ``make docs-run``. ``--write`` updates the pages.

Every page runs in a copy of ``docs/examples`` with a cache and a home of its own. From top to bottom, a fence with a
title is written to the file of that name, and a fence of ``console``, ``sh`` or ``python`` is run, unless it begins
with ``# Not run: REASON``, or with ``# Needs PROGRAM`` and that is not on PATH. A command that shows no output must
succeed; shown output is compared without regard to order, with ``…`` for any text or lines, and with times, sizes,
fractions, digests, dates and paths masked.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.DOTALL | re.MULTILINE,
)
_NOT_RUN = re.compile(r"# Not run: |# Needs (?P<program>\w+)\n")
# What sets up the environment that the commands run in; .ci/run runs the README's.
_SETUP = re.compile(
    r"make |(\S*python\S* -m )?pip install |\. \.venv/bin/activate|cp -r docs/examples|cd try|python models\.py"
)
# Lines that only a slow machine prints, and marks that depend on latencies.
_SLOW = re.compile(r"\S+ +running\b|building [1-9]\d* of \d+ cells")
_LATENCY_MARKS = re.compile(r"^[*~] +")
_MARK = "\x1e"
_SECONDS = 600
# As without a terminal. The columns that a report chooses depend on it, and not on what was measured.
_COLUMNS = "120"
# In this order: what a later one matches may be part of what an earlier one does.
_MASKS = [
    (re.compile(pattern), f" {name} ")
    for pattern, name in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*", "DATE"),
        (r"(?<![\w.])(~|file://)?(/[\w.@+-]+){2,}/?", "PATH"),
        (r"(?<!\.)\b(?=[a-z]*\d)[0-9a-f]{8,64}\b", "DIGEST"),
        (r"(?<=:)[A-Za-z0-9+/]{43}=", "KEY"),
        (r"[\d.,]+ (B|[KMG]i?B|bytes)\b", "SIZE"),
        (r"[~<]?\b[\d.]+( ?(min|ms|µs|s|h))\b\??|\b\d+:\d\d\b", "TIME"),
        (r"\b[\d.]+(k?| inferences)/s\b", "RATE"),
        (r"latency, ms .*|\b[\d.]+ times as long", "NUMBERS"),
        (r"-?\b\d+(\.\d+)+(e-?\d+)?|\b\d+(\.\d+)?%", "NUMBER"),
    )
]


@dataclass
class Command:
    """*start* and *end* of the shown output in the text of the page; ``indent`` begins its lines."""

    line: int
    shell: str
    indent: str = ""
    start: int = 0
    end: int = 0
    shown: list[str] = field(default_factory=list)


@dataclass
class Page:
    path: Path
    commands: list[Command]
    script: str
    marked: int

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    page = Page(path, [], "", 0)
    for fence in FENCE.finditer(text):
        indent, body = fence["indent"], fence["text"]
        plain = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        language, shell = fence["language"], []
        marked = _NOT_RUN.match(plain)
        if fence["title"]:
            page.script += f"mkdir -p \"$(dirname '{fence['title']}')\"; cat > '{fence['title']}' <<'END_OF_FILE'\n"
            page.script += f"{plain}END_OF_FILE\n"
        elif language in ("console", "sh", "python") and marked and not _is_there(marked["program"]):
            start = {"console": r"^\$ ", "sh": r"^\w", "python": r"\A"}[language]
            page.marked += len(re.findall(start, plain, re.MULTILINE))
        elif language == "console":
            shell = list(_in_console(text, fence))
        elif language == "sh":
            lines = [line for line in plain.replace("\\\n", " ").splitlines() if not _SETUP.match(line)]
            shell = [Command(text.count("\n", 0, fence.start()) + 1, "\n".join(lines))] if lines else []
        elif language == "python":
            run = f"python - <<'END_OF_FILE'\n{plain}END_OF_FILE"
            shell = [Command(text.count("\n", 0, fence.start()) + 1, run)]
        for command in shell:
            page.commands.append(command)
            page.script += f"{command.shell}\nprintf '\\n{_MARK}%s\\n' $?\n"
    return page


def _is_there(program: str | None) -> bool:
    return program is not None and shutil.which(program) is not None


def _in_console(text: str, fence: re.Match[str]) -> Iterator[Command]:
    indent, place, found = fence["indent"], fence.start("text"), None
    more = False
    for line in fence["text"].splitlines(keepends=True):
        plain = line.removeprefix(indent).rstrip("\n")
        if more and found:
            found.shell += f"\n{plain}"
        elif plain.startswith("$ "):
            if found:
                yield found
            found = Command(text.count("\n", 0, place) + 1, plain.removeprefix("$ "), indent)
        elif found:
            found.shown.append(plain)
        more = plain.endswith("\\") and not (found and found.shown)
        place += len(line)
        if found and not found.shown:
            found.start = place
        if found:
            found.end = place
    if found:
        yield found


def run(page: Page, folder: Path, examples: Path) -> list[tuple[int, list[str]]]:
    """Return exit code and output of every command of *page*; those after a timeout are missing."""
    shutil.copytree(examples, folder / "project")
    (folder / "home").mkdir()
    if " tests/" in page.script:
        (folder / "project" / "tests").symlink_to(ROOT / "tests")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WINML_DAG_", "XDG_"))}
    for name in ("GITHUB_ACTIONS", "TF_BUILD", "GITLAB_CI", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    cache = str(folder / "project" / "cache")
    environment |= {"HOME": str(folder / "home"), "PATH": path, "WINML_DAG_CACHE_DIR": cache, "COLUMNS": _COLUMNS}
    with (
        open(folder / "output", "wb") as output,
        subprocess.Popen(
            ["bash", "-c", page.script],
            cwd=folder / "project",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as bash,
    ):
        with suppress(subprocess.TimeoutExpired):
            bash.wait(_SECONDS)
        # What the page left in the background.
        with suppress(ProcessLookupError):
            os.killpg(bash.pid, signal.SIGKILL)
    text = (folder / "output").read_text(encoding="utf-8", errors="replace")
    text = text.replace(f"{folder}/project", "/home/you/project").replace(f"{folder}/home", "/home/you")
    # Output and exit code of each in turn.
    parts = re.split(f"\n{_MARK}(\\d+)\n", text)
    return [(int(code), _lines(said)) for said, code in zip(parts[0::2], parts[1::2], strict=False)]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not _SLOW.match(line)]


def masked(line: str) -> str:
    for pattern, name in _MASKS:
        line = pattern.sub(name, line)
    return " ".join(_LATENCY_MARKS.sub("", line).split())


def differences(shown: list[str], output: list[str]) -> list[str]:
    """What differs: ``-`` for shown lines that were not printed, ``+`` for printed lines that are not shown."""
    left = [masked(line) for line in output]
    missing = []
    for line in shown:
        if not line.strip() or _SLOW.match(line):
            continue
        pattern = ".*".join(re.escape(part.strip()) for part in masked(line).split("…"))
        found = next((each for each in left if re.fullmatch(pattern, each)), None)
        if line.strip() == "…":
            continue
        if found is None:
            missing.append(f"- {line}")
        else:
            left.remove(found)
    return missing + ([f"+ {line}" for line in left] if missing or all(line.strip() != "…" for line in shown) else [])


def rewritten(shown: list[str], output: list[str]) -> list[str]:
    """*shown* with the lines that changed; those that ``…`` stands for stay out."""
    before, after = [masked(line) for line in shown], [masked(line) for line in output]
    if "…" not in before:
        changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        return [line for kind, a, b, c, d in changes for line in (shown[a:b] if kind == "equal" else output[c:d])]
    result = []
    for line, text in zip(shown, before, strict=True):
        close = [text] if text in ("…", *after) else difflib.get_close_matches(text, after, 1, 0.5)
        result += [line] if close == [text] else [output[after.index(found)] for found in close]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    parser.add_argument("--write", action="store_true", help="update the shown output")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pages at a time")
    options = parser.parse_args()
    paths = options.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages = [read_page(path.resolve()) for path in paths]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="docs-") as name, ThreadPoolExecutor(options.jobs) as pool:
        examples = Path(name) / "examples"
        shutil.copytree(ROOT / "docs" / "examples", examples)
        subprocess.run([sys.executable, "models.py"], cwd=examples, check=True, stderr=subprocess.DEVNULL)
        done = pool.map(lambda page: _run_and_compare(page, Path(name), options.write), pages)
        wrong = sum(done)
    total, marked = sum(len(page.commands) for page in pages), sum(page.marked for page in pages)
    seconds = time.perf_counter() - started
    print(f"{total} commands ran in {seconds:.0f} s, {wrong} failed; {marked} are marked not run.")
    return 1 if wrong else 0


def _run_and_compare(page: Page, base: Path, write: bool) -> int:
    """Return how many commands of *page* failed or printed something else than it shows."""
    if not page.commands:
        return 0
    started = time.perf_counter()
    folder = base / page.name.replace("/", "-")
    folder.mkdir()
    outcomes = run(page, folder, base / "examples")
    shutil.rmtree(folder, ignore_errors=True)
    said = [f"{page.name}: {len(page.commands)} commands in {time.perf_counter() - started:.0f} s"]
    text = page.path.read_text(encoding="utf-8")
    missing = page.commands[len(outcomes) :]
    wrong = len(missing)
    said += [f"{page.name}:{each.line}: $ {each.shell}\n  did not end in {_SECONDS} s" for each in missing[:1]]
    # From the end, so that what is rewritten moves nothing that is still to be compared.
    for command, outcome in reversed([*zip(page.commands, outcomes, strict=False)]):
        if problem := _problem(command, *outcome):
            wrong += 1
            said.append("\n  ".join((f"{page.name}:{command.line}: $ {command.shell}", *problem)))
            if command.shown:
                new = "".join(
                    f"{command.indent}{line}".rstrip() + "\n" for line in rewritten(command.shown, outcome[1])
                )
                text = text[: command.start] + new + text[command.end :]
    if write:
        page.path.write_text(text, encoding="utf-8", newline="\n")
    print("\n".join(said), flush=True)
    return wrong


def _problem(command: Command, code: int, output: list[str]) -> list[str]:
    if code and not command.shown:
        return [f"exit code {code}", *output]
    return differences(command.shown, output) if command.shown else []


if __name__ == "__main__":
    sys.exit(main())
