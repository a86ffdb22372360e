"""Text of recipes, as JSON and as YAML: what it means, where its parts are, and what is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_strategies import json_values, recipes

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import MAX_DEPTH, Document, Location
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.text import RecipeFormat, read_text

FORMATS: tuple[RecipeFormat, ...] = ("json", "yaml")


def read_yaml(text: str) -> Document:
    return read_text(text, "a.yaml", "yaml")


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        (
            '{"a": {"b": 1,\n"b": 2},\n"a": 3}',
            ["2:1: the key 'b' is there twice, first on line 1", "3:1: the key 'a' is there twice, first on line 1"],
        ),
        ('{\n  "a": 1,\n  oops\n}', ["3:3: expecting property name enclosed in double quotes"]),
        ('{"a": 1, "\\u0061": 2}', ["1:10: the key 'a' is there twice, first on line 1"]),
        ('["\\uD83D"]', ["1:2: the text has half of a character"]),
        *(
            (f'{{"a": [{number}]}}', [f"1:8: {number[:40]} is not a number that can be used here"])
            for number in ("NaN", "-Infinity", "1e999", "-1e999", "9" * 5000)
        ),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_json_that_not_every_reader_could_take_is_refused_with_its_place(text: str, complaints: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        read_text(text, "a.json", "json")
    assert caught.value.problems == tuple(f"a.json:{each}" for each in complaints)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_too_deep_a_nesting_of_json_is_refused(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    with pytest.raises(RecipeError, match="nested too deeply"):
        read_text(opening * depth + "1" + closing * depth, "a.json", "json")
    assert read_text(json.dumps([[]] * 1000), "a.json", "json").value == [[]] * 1000, "side by side they are fine"
    whole = read_text('["\\ud83d\\ude00", "\\\\ud800"]', "a.json", "json").value
    assert whole == ["\N{GRINNING FACE}", "\\ud800"], "and so is a whole character in two halves"


@given(value=json_values, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_positions_point_at_what_was_written(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for kind in FORMATS:
        document = read_text(text, "a", kind)
        assert document.value == value
        positions = document.positions()
        for location, inner in parts(value):
            written = json.dumps(inner, ensure_ascii=ascii_only)
            start = written[:1] if isinstance(inner, dict | list) else written
            assert text_at(text, positions.of_value(location)).startswith(start)
            if location and isinstance(location[-1], str):
                key = json.dumps(location[-1], ensure_ascii=ascii_only)
                assert text_at(text, positions.of_key(location)).startswith(f"{key}:")


def parts(value: object, location: Location = ()) -> Iterator[tuple[Location, object]]:
    yield location, value
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from parts(inner, (*location, step))


def text_at(text: str, position: tuple[int, int]) -> str:
    line, column = position
    return "\n".join(text.split("\n")[line - 1 :])[column - 1 :]


def yaml_complaints(text: str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        read_yaml(text)
    return caught.value.problems


@settings(max_examples=50)
@given(recipe=recipes)
def test_a_recipe_in_json_means_the_same_when_read_as_yaml(recipe: object) -> None:
    text = json.dumps(recipe, ensure_ascii=False)
    assert parse_recipe(text, "a", "yaml") == parse_recipe(text, "a", "json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("1e-3", 0.001),
        ("1_000", "1_000"),
        ("010", 10),
        ("0x10", 16),
        ("0o10", 8),
        ("'1'", "1"),
        ("true", True),
        ("~", None),
        ("", None),
        ("1.10", 1.1),
        ("version 1", "version 1"),
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}").value
    assert found == {"a": value}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(value)
    # Keys that are whole numbers are text, as in JSON.
    assert read_yaml("0: cat\n1: dog").value == {"0": "cat", "1": "dog"}


@pytest.mark.parametrize("key", ["true", "~", "1.5", ".inf", "[a]", "{a: b}", "? [a]\n"])
def test_other_keys_must_be_text(key: str) -> None:
    assert any(
        complaint.endswith(("a key must be text; put it in quotes", "a key must be text"))
        for complaint in yaml_complaints(f"{key}: 1")
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: @", "a.yaml:2:4: found character"),
        ("a: 1\na: 2", "a.yaml:2:1: the key 'a' is there twice, first on line 1"),
        ("a: 1\n'a': 2", "a.yaml:2:1: the key 'a' is there twice, first on line 1"),
        ("a: !!python/object:os.system x", "a.yaml:1:4: tags (a word that begins with !) are not supported"),
        ("a: !!binary x", "a.yaml:1:4: tags (a word that begins with !) are not supported"),
        ("a: 1\n---\nb: 1", "a.yaml:2:1: a recipe is one document; there is a second one here"),
        ("a: 1\nb: \x07", "a.yaml:2:4: control characters are not allowed"),
        ("a: &a {}\nb: {<<: *a}", "a.yaml:2:5: merge keys (<<) are not supported; write the keys out"),
        ("a: *a", "a.yaml:1:4: the alias *a does not refer to a complete value before it"),
        ("a: &a [*a]", "a.yaml:1:8: the alias *a does not refer to a complete value before it"),
        ("a: .nan", "a.yaml:1:4: .nan is not a number that can be used here; put quotes around it if it is text"),
        ("a: 1e999", "a.yaml:1:4: 1e999 is not a number that can be used here; put quotes around it if it is text"),
        ("[" * (MAX_DEPTH + 2), f"a.yaml:1:{MAX_DEPTH + 2}: nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_named_with_line_and_column(text: str, complaint: str) -> None:
    (found,) = yaml_complaints(text)
    assert found.startswith(complaint)


def test_an_alias_is_its_value_unless_that_would_be_too_large() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\nc: [*x, &y 3, *y]").value == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], 3, 3]}
    lines = ["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    (complaint,) = yaml_complaints("\n".join(lines))
    assert "more than 20000 values" in complaint, "they would stand for gigabytes"
    nest = "[" * 40
    lines = [f"a0: &a0 {nest}{']' * 40}", *(f"a{n}: &a{n} {nest}*a{n - 1}{']' * 40}" for n in range(1, 3))]
    assert yaml_complaints("\n".join(lines)) == ("a.yaml:2:49: nested too deeply",)


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "{a: " * 200_000, "? " * 200_000])
def test_no_nesting_ends_the_process(text: str) -> None:
    assert yaml_complaints(text)[-1].endswith("nested too deeply")
