"""The player of attack schedules detects faults: with a safeguard of builds disabled, it fails.

The harness of ``tests/faults`` plays the schedules themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("needs Linux: fork, signals and links", allow_module_level=True)

from attack_schedule import Ask, At, Build, Do, Siege, Step, prepare, there_and_back
from attacked_project import TEXTS, TWIN, Site

from winml_dag.engine.watch import WatchedFile
from winml_dag.pipeline import layout


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    prepare(tmp_path_factory.mktemp("warm"))


@pytest.fixture
def siege(tmp_path: Path) -> Siege:
    return Siege(Site(tmp_path))


def test_schedule_without_faults_passes(siege: Siege) -> None:
    siege.play(
        [
            Build(twice=True),
            Do("edit", 7),
            Build(during=there_and_back(2, 8)),
            Ask("clean"),
            Do("fifo", 1),
            Do("edit_recipe"),
        ]
    )


def test_wrong_result_under_key_is_detected(siege: Siege, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedFile, "check", lambda *_: None)
    schedule: list[Step] = [Build(during=there_and_back(time, 7)) for time in range(1, 4)]
    with pytest.raises(AssertionError, match=r"These are wrong .*build/mark.txt"):
        siege.play(schedule)


def test_touched_outside_file_is_detected(siege: Siege, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_kept", lambda recipe: recipe.parent / ".winml-dag" / recipe.name)
    with pytest.raises(AssertionError, match=r"Files were touched that are none of the build's: .*build_manifest.json"):
        siege.play([Build(), Do("bookkeeping_leads_outside"), Build()])


def test_unexplained_build_failure_is_detected(siege: Siege, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Do, "may_block", False)
    with pytest.raises(AssertionError, match="Nothing was in the way"):
        siege.play([Do("remove_input")])


def test_traceback_is_detected(siege: Siege, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> Path:
        raise ZeroDivisionError

    monkeypatch.setattr(layout, "_kept", fail)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        siege.play([Build()])


def test_moves_happen_during_build(siege: Siege) -> None:
    """Otherwise a schedule would not test disturbances."""
    before = (siege.site.project / TWIN).read_text()
    moves = [At("call", 9, Do("set_variable", 7)), At("after place", 1, Do("edit_twin", 7))]
    siege.disturb(Build(during=(*moves, At("before start", 2, Do("edit_in_the_past", 7)))))
    assert (siege.site.root / "variable").read_text() == "7"
    assert (siege.site.project / TWIN).read_text() != before
    assert (siege.site.project / "src/a.txt").read_text() == TEXTS[1]
