"""``-o`` names a file, or the folder that a result with its usual name goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.cli import run
from winml_dag.cli.command import output_file
from winml_dag.report.provenance.document import Document, write_documents


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.d").mkdir()


@pytest.mark.parametrize("command", ["build --onnx m.onnx -o out.onnx", "perf m -o p.json", "eval m --output e.json"])
def test_the_name_of_a_file_is_no_folder_for_several_files(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    assert f"{command.split()[-1]} is the name of a file. Give a folder." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "written"), [("a.json", "a.json"), ("lists", "lists/u.json"), ("there.d", "there.d/u.json")]
)
def test_a_folder_gets_the_usual_name(given: str, written: str) -> None:
    assert output_file(Path(given), "u.json") == Path(written)


def test_the_catalog_is_written_into_a_folder() -> None:
    assert run(["catalog", "-o", "lists"]) == 0
    assert Path("lists/catalog.json").is_file()


def test_one_statement_goes_into_a_folder_too() -> None:
    (path,) = write_documents(Path("there.d"), "slsa", [Document("", "{}\n")], overwrite=False)
    assert path == Path("there.d/build.slsa.json")
    assert path.read_text(encoding="utf-8") == "{}\n"
