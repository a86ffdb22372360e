"""References in a command's arguments: placeholders, and arguments that may be files of the project."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.engine.command import fill
from winml_dag.pipeline.userstages.plan import placeholders, plain_words


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("tools/tidy.py", {"tools/tidy.py"}),
        ("--script=tools/tidy.py", {"tools/tidy.py"}),
        ("cat 'a.txt' b.txt>{outputs.n};c", {"cat", "a.txt", "b.txt", "c"}),
        ("$(cat a.txt)", {"cat", "a.txt"}),
        ("a name with blanks.txt", {"a name with blanks.txt", "blanks.txt"}),
        ("{inputs.text}.bak", set()),
        ("awk '{print NR}' data.csv", {"data.csv"}),
    ],
)
def test_words_that_may_be_files_are_found(argument: str, words: set[str]) -> None:
    assert words <= set(plain_words([argument]))
    assert not any("{" in word and "." in word and "inputs" in word for word in plain_words([argument]))


@given(st.text("{}inputs.outpx ", max_size=30))
def test_what_is_found_as_a_placeholder_is_what_is_filled_in(argument: str) -> None:
    found = list(placeholders(argument))
    names = {section: {name: "\0" for other, name in found if other == section} for section in ("inputs", "outputs")}
    assert fill(argument, {**names, "config": {}}).count("\0") == len(found)
