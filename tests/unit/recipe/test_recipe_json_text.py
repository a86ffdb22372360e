from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_strategies import json_values

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import MAX_DEPTH, Location
from winml_dag.recipe.reading import read_json
from winml_dag.recipe.yaml_text import read_yaml


def complaints(text: str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        read_json(text, "a.json")
    return caught.value.problems


def test_malformed_text_is_named_with_line_and_column() -> None:
    (complaint,) = complaints('{\n  "a": 1,\n  oops\n}')
    assert complaint.startswith("a.json:3:3: ")


def test_keys_that_are_there_twice_are_refused_with_both_places() -> None:
    assert complaints('{"a": {"b": 1,\n"b": 2},\n"a": 3}') == (
        "a.json:2:1: the key 'b' is there twice, first on line 1",
        "a.json:3:1: the key 'a' is there twice, first on line 1",
    )


def test_two_spellings_of_one_key_are_the_same_key() -> None:
    assert complaints('{"a": 1, "\\u0061": 2}') == ("a.json:1:10: the key 'a' is there twice, first on line 1",)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e999", "9" * 5000])
def test_numbers_that_no_other_json_reader_could_take_are_refused(number: str) -> None:
    assert complaints(f'{{"a": [{number}]}}') == (f"a.json:1:8: {number[:40]} is not a number that can be used here",)


def test_half_a_character_is_refused_and_a_whole_one_is_not() -> None:
    assert complaints('["\\uD83D"]') == ("a.json:1:2: the text has half of a character",)
    assert read_json('["\\ud83d\\ude00", "\\\\ud800"]', "a.json").value == ["\N{GRINNING FACE}", "\\ud800"]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_too_deep_a_nesting_is_refused(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    (complaint,) = complaints(opening * depth + "1" + closing * depth)
    assert complaint.endswith("nested too deeply")


def test_many_brackets_side_by_side_are_fine() -> None:
    text = json.dumps([[]] * 1000)
    assert read_json(text, "a.json").value == [[]] * 1000


@given(value=json_values, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_positions_point_at_what_was_written(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for read in (read_json, read_yaml):
        document = read(text, "a")
        assert document.value == value
        positions = document.positions()
        for location, inner in _parts(value):
            assert _text_at(text, positions.of_value(location)).startswith(
                json.dumps(inner, ensure_ascii=ascii_only)[:1]
            )
            if not isinstance(inner, dict | list):
                assert _text_at(text, positions.of_value(location)).startswith(
                    json.dumps(inner, ensure_ascii=ascii_only)
                )
            if location and isinstance(location[-1], str):
                key = json.dumps(location[-1], ensure_ascii=ascii_only)
                assert _text_at(text, positions.of_key(location)).startswith(f"{key}:")


def _parts(value: object, location: Location = ()) -> Iterator[tuple[Location, object]]:
    yield location, value
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _parts(inner, (*location, step))


def _text_at(text: str, position: tuple[int, int]) -> str:
    line, column = position
    return "\n".join(text.split("\n")[line - 1 :])[column - 1 :]
