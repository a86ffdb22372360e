"""Which sources lie in the folder that a stage works in, and what a command calls them, on every system."""

from __future__ import annotations

from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import cast

import pytest

from winml_dag.engine.prepare import _lies_in, _source_text
from winml_dag.engine.stage import Source, SourceFile

FOLDERS = [PurePosixPath("/home/me/project"), PureWindowsPath("C:\\Users\\me\\project")]


@pytest.mark.parametrize("folder", FOLDERS, ids=["posix", "windows"])
@pytest.mark.parametrize(
    ("name", "path", "inside"),
    [
        ("notes.txt", "notes.txt", True),
        ("data/a/1.txt", "data/a/1.txt", True),
        ("1.txt", "data/a/1.txt", False),
        ("notes.txt", "../notes.txt", False),
    ],
)
def test_a_nested_source_lies_in_the_folder(folder: PurePath, name: str, path: str, inside: bool) -> None:
    place, file = cast(Path, folder), SourceFile(name, cast(Path, folder / path))
    assert _lies_in(place, file) is inside
    assert _source_text(Source(f"./{path}", "file", (file,)), place) == (name if inside else str(folder / path))
