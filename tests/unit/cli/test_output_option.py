"""``-o`` names a file, or the folder that a result with its usual name goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.cli.command import output_file
from winml_dag.report.provenance.document import Document, write_documents


@pytest.mark.parametrize("command", ["build --onnx m.onnx -o out.onnx", "perf m -o p.json", "eval m --output e.json"])
def test_the_name_of_a_file_is_no_folder_for_several_files(command: str, says) -> None:
    assert f"{command.split()[-1]} is the name of a file. Give a folder." in says(*command.split(), code=2)


@pytest.mark.parametrize(
    ("given", "written"), [("a.json", "a.json"), ("lists", "lists/u.json"), ("there.d", "there.d/u.json")]
)
def test_a_folder_gets_the_usual_name(given: str, written: str) -> None:
    Path("there.d").mkdir()
    assert output_file(Path(given), "u.json") == Path(written)


def test_the_catalog_is_written_into_a_folder(says) -> None:
    says("catalog", "-o", "lists")
    assert Path("lists/catalog.json").is_file()


def test_one_statement_goes_into_a_folder_too() -> None:
    Path("there.d").mkdir()
    (path,) = write_documents(Path("there.d"), "slsa", [Document("", "{}\n")], overwrite=False)
    assert path == Path("there.d/build.slsa.json")
    assert path.read_text(encoding="utf-8") == "{}\n"
