from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from recipe_strategies import recipes

from winml_dag.errors import RecipeError
from winml_dag.recipe.document import MAX_DEPTH
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.yaml_text import read_yaml


def complaints(text: str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        read_yaml(text, "a.yaml")
    return caught.value.problems


@given(recipe=recipes)
@settings(deadline=None)
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
    found = read_yaml(f"a: {text}", "a.yaml").value
    assert found == {"a": value}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(value)


def test_keys_that_are_whole_numbers_are_text_as_in_json() -> None:
    assert read_yaml("0: cat\n1: dog", "a.yaml").value == {"0": "cat", "1": "dog"}


@pytest.mark.parametrize("key", ["true", "~", "1.5", ".inf", "[a]", "{a: b}", "? [a]\n"])
def test_other_keys_must_be_text(key: str) -> None:
    assert any(
        complaint.endswith(("a key must be text; put it in quotes", "a key must be text"))
        for complaint in complaints(f"{key}: 1")
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
    (found,) = complaints(text)
    assert found.startswith(complaint)


def test_an_alias_is_its_value() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\nc: [*x, &y 3, *y]", "a.yaml").value == {
        "a": [1, 2],
        "b": [1, 2],
        "c": [[1, 2], 3, 3],
    }


def test_aliases_that_would_stand_for_gigabytes_are_refused() -> None:
    lines = ["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    (complaint,) = complaints("\n".join(lines))
    assert "more than 20000 values" in complaint


def test_aliases_that_would_nest_too_deeply_are_refused() -> None:
    nest = "[" * 40
    lines = [f"a0: &a0 {nest}{']' * 40}", *(f"a{n}: &a{n} {nest}*a{n - 1}{']' * 40}" for n in range(1, 3))]
    assert complaints("\n".join(lines)) == ("a.yaml:2:49: nested too deeply",)


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "{a: " * 200_000, "? " * 200_000])
def test_no_nesting_ends_the_process(text: str) -> None:
    assert complaints(text)[-1].endswith("nested too deeply")
