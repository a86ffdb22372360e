"""An error is reported in sentences, even if its text comes from a library."""

from __future__ import annotations

import pytest

from winml_dag.errors import InputError, RecipeError, StageError, UsageError


@pytest.mark.parametrize(
    ("message", "advice", "told"),
    [
        ("It cannot be read: no zip file", "Save it again.", "It cannot be read: no zip file. Save it again."),
        ("It has no 'x'", "Write it.", "It has no 'x'. Write it."),
        ("It is too large.", "Take another.", "It is too large. Take another."),
        ("It has 2 problems:", "Mend them.", "It has 2 problems: Mend them."),
        ("no zip file", "", "no zip file"),
        ("", "Look at the log.", " Look at the log."),
    ],
)
def test_advice_is_a_sentence_of_its_own(message: str, advice: str, told: str) -> None:
    assert str(StageError(message, advice=advice)) == told


@pytest.mark.parametrize("mistake", [UsageError("two models"), RecipeError("wrong:", problems=("samples",))])
def test_what_was_asked_for_wrongly_is_a_value_error(mistake: UsageError) -> None:
    assert isinstance(mistake, ValueError)
    assert not isinstance(InputError("no such file"), ValueError)
