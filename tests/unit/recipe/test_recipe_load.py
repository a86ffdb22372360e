"""From a recipe's text, in JSON or YAML, to a recipe, or to all that is wrong with it and where."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipe_strategies import json_values, recipes

from winml_dag.errors import InputError, RecipeError, WinmlDagError
from winml_dag.recipe.document import MAX_DEPTH, Document, Location
from winml_dag.recipe.fields import is_path_like
from winml_dag.recipe.load import LoadedRecipe, load_recipe, parse_recipe
from winml_dag.recipe.reading import ModuleItem, module_items
from winml_dag.recipe.schema import Recipe
from winml_dag.recipe.text import RecipeFormat, read_text

FORMATS: st.SearchStrategy[RecipeFormat] = st.sampled_from(["json", "yaml"])

WRONG = """\
loader:
  task: fill-mask
  modle_type: bert
quant:
  mode: banana
  samples: ten
optim:
  gelu_fusionn: true
"""


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_format_is_chosen_by_file_extension(tmp_path: Path, mark: bytes) -> None:
    for name, text in (("a.json", b'{"auto":\tfalse}'), ("a.yaml", b"auto: false"), ("a.YML", b"auto: false")):
        (tmp_path / name).write_bytes(mark + text)
        loaded = load_recipe(tmp_path / name)
        assert (loaded.format, loaded.recipe.auto) == ("json" if name == "a.json" else "yaml", False)


def test_all_recipe_problems_are_reported_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "bert.yaml"
    path.write_text(WRONG)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.exit_code == 2
    assert caught.value.message == f"The recipe {path} has 4 problems:"
    assert caught.value.problems == (
        f"{path}:3: loader.modle_type: unknown key; did you mean 'model_type'?",
        f"{path}:5: quant.mode: 'banana' is not one of static, dynamic, rtn, fp16",
        f"{path}:6: quant.samples: expected a whole number, got 'ten'",
        f"{path}:8: optim.gelu_fusionn: unknown capability; did you mean 'gelu_fusion'?",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n\t"quant": {\n\t\t"mdoe": "rtn"\n\t}\n}', "a.json:3: quant.mdoe: unknown key; did you mean 'mode'?"),
        ('{"a\\nb": 1}', "a.json:1: 'a\\nb': unknown key"),
    ],
    ids=["tabs", "a line break in a key"],
)
def test_json_problems_have_line_and_stay_on_one_line(text: str, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "a.json", "json")
    assert caught.value.problems == (problem,)


_MODULES = """# two layers
- loader: {module_path: encoder.layer.0, model_class: BertLayer}
- loader: {module_path: encoder.layer.1}
  quant: {sampels: 3}
"""


def test_recipe_list_items_are_read_separately_with_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "modules.yaml"
    path.write_text(_MODULES, encoding="utf-8")
    assert module_items(path) == (ModuleItem("encoder.layer.0", "BertLayer"), ModuleItem("encoder.layer.1", None))
    assert load_recipe(path, 0).recipe.loader.module_path == "encoder.layer.0"
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, 1)
    assert caught.value.problems == (f"{path}:4: quant.sampels: unknown key; did you mean 'samples'?",)


@pytest.mark.parametrize(
    ("text", "is_list"),
    [
        *((text, False) for text in ("model: m", "# about\n---\n\nmodel: m\n", "--- {model: m}", "&x {model: m}", "")),
        ("--- [{loader: {module_path: a}}]", True),
        ("&x\n- loader: {module_path: a}", True),
        ("%YAML 1.2\n---\n# c\n-\n  loader: {module_path: a}", True),
    ],
)
def test_recipe_list_is_detected_in_every_yaml_form(tmp_path: Path, text: str, is_list: bool) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text, encoding="utf-8")
    assert isinstance(read_text(text, "list.yaml", "yaml").value, list) is is_list
    assert module_items(path) == ((ModuleItem("a", None),) if is_list else None)


def test_non_recipe_content_is_refused(tmp_path: Path) -> None:
    for text in ("", "3", "null", "text", "# nothing but a comment"):
        with pytest.raises(RecipeError, match="no keys and values"):
            parse_recipe(text, "a.yaml", "yaml")
    with pytest.raises(RecipeError, match="list of recipes for single modules") as caught:
        parse_recipe('[{"loader": {}}]', "modules.json", "json")
    assert "`build` or `plan`" in caught.value.advice
    path = tmp_path / "list.json"
    path.write_text('[\n{"loader": {"module_path": "a"}},\n{"model": "m"}]', encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        module_items(path)
    assert caught.value.problems == (f"{path}:3: has no loader.module_path",)
    with pytest.raises(RecipeError, match=r"ends with \.json, \.yaml or \.yml"):
        load_recipe(tmp_path / "model.onnx")


def test_unreadable_recipe_is_input_error(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(65 * 1024 * 1024)
    (tmp_path / "latin.json").write_bytes('{"auto": true,\n"model": "é"}'.encode("latin-1"))
    for name, complaint in (
        ("none.json", "There is no recipe"),
        ("folder.json", "is a folder"),
        ("huge.json", "too large"),
        ("latin.json", r"latin\.json:2: the recipe is not UTF-8"),
        ("nul\0.json", "cannot be read"),
    ):
        with pytest.raises(InputError, match=complaint) as caught:
            load_recipe(tmp_path / name)
        assert caught.value.exit_code == 3


def test_paths_are_relative_to_recipe(tmp_path: Path) -> None:
    loaded = LoadedRecipe(tmp_path / "a.json", parse_recipe("{}", "a.json", "json"), "json")
    for written, path in (
        ("data/x.npz", tmp_path / "data" / "x.npz"),
        (str(tmp_path / "model.onnx"), tmp_path / "model.onnx"),
        ("~/x", Path.home() / "x"),
    ):
        assert loaded.resolve_path(written) == path


def test_json_recipe_imports_no_heavy_modules() -> None:
    code = (
        "import sys; from winml_dag.recipe.load import parse_recipe; parse_recipe('{\"quant\": {}}', 'a', 'json');"
        "heavy = {'yaml', 'difflib', 'numpy', 'onnx', 'onnxruntime', 'torch', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(str.encode), suffix=st.sampled_from([".json", ".yaml"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_loader_handles_any_bytes(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(data)
    load_or_complain(lambda: load_recipe(path).recipe)


@given(value=json_values, section=st.none() | st.sampled_from(sorted(Recipe.model_fields)), kind=FORMATS)
def test_schema_handles_any_json_value(value: object, section: str | None, kind: RecipeFormat) -> None:
    text = json.dumps(value if section is None else {section: value})
    load_or_complain(lambda: parse_recipe(text, "any", kind))


@given(data=st.data(), kind=FORMATS)
@settings(max_examples=50)
def test_parser_handles_any_edit_of_recipe(data: st.DataObject, kind: RecipeFormat) -> None:
    text = json.dumps(data.draw(recipes), indent=data.draw(st.sampled_from([None, 1])))
    at = data.draw(st.integers(0, len(text)))
    slip = data.draw(st.sampled_from([*"{}[]:,\"'-#&*!\\ \t\n0x\0\ud800", "null", "&a ", "*a", "1e999", "\\ud800"]))
    edited = text[:at] + slip + text[at + data.draw(st.integers(0, 3)) :]
    load_or_complain(lambda: parse_recipe(edited, "any", kind))


def load_or_complain(load: Callable[[], Recipe]) -> None:
    """Whatever happens, the result is a recipe, or an error with a printable message."""
    error: WinmlDagError | None = None
    try:
        load()
    except (RecipeError, InputError) as caught:
        error = caught
    assert str(error).encode()
    assert all(len(problem.splitlines()) == 1 for problem in getattr(error, "problems", ()))


@pytest.mark.parametrize(
    ("model", "is_path"),
    [
        *((path, True) for path in ("./m", "../m", "~/m", "/models/m", "C:/models", "a\\b", "a/b/c", "bert.onnx")),
        *((name, False) for name in ("bert", "org/bert", "sentence-transformers/all-MiniLM-L6-v2", "gpt2.5")),
    ],
)
def test_path_is_distinguished_from_hub_id(model: str, is_path: bool) -> None:
    assert is_path_like(model) is is_path


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
def test_ambiguous_or_invalid_json_is_refused_with_position(text: str, complaints: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        read_text(text, "a.json", "json")
    assert caught.value.problems == tuple(f"a.json:{each}" for each in complaints)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_deeply_nested_json_is_refused(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    with pytest.raises(RecipeError, match="nested too deeply"):
        read_text(opening * depth + "1" + closing * depth, "a.json", "json")
    assert read_text(json.dumps([[]] * 1000), "a.json", "json").value == [[]] * 1000, "side by side they are fine"
    whole = read_text('["\\ud83d\\ude00", "\\\\ud800"]', "a.json", "json").value
    assert whole == ["\N{GRINNING FACE}", "\\ud800"], "and so is a whole character in two halves"


@given(value=json_values, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_positions_match_source_text(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for kind in get_args(RecipeFormat):
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
def test_json_recipe_parses_identically_as_yaml(recipe: object) -> None:
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
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}").value
    assert found == {"a": value}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(value)
    # Keys that are whole numbers are text, as in JSON.
    assert read_yaml("0: cat\n1: dog").value == {"0": "cat", "1": "dog"}


@pytest.mark.parametrize("key", ["true", "~", "1.5", ".inf", "[a]", "{a: b}", "? [a]\n"])
def test_non_text_keys_are_refused(key: str) -> None:
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
        ("a: 1\nb: \ud800", "a.yaml:2:1: the text has half of a character"),
        ("a: &a {}\nb: {<<: *a}", "a.yaml:2:5: merge keys (<<) are not supported; write the keys out"),
        ("a: *a", "a.yaml:1:4: the alias *a does not refer to a complete value before it"),
        ("a: &a [*a]", "a.yaml:1:8: the alias *a does not refer to a complete value before it"),
        ("a: .nan", "a.yaml:1:4: .nan is not a number that can be used here; put quotes around it if it is text"),
        ("a: 1e999", "a.yaml:1:4: 1e999 is not a number that can be used here; put quotes around it if it is text"),
        ("[" * (MAX_DEPTH + 2), f"a.yaml:1:{MAX_DEPTH + 2}: nested too deeply"),
    ],
)
def test_yaml_error_has_line_and_column(text: str, complaint: str) -> None:
    (found,) = yaml_complaints(text)
    assert found.startswith(complaint)


def test_alias_is_expanded_up_to_a_limit() -> None:
    assert read_yaml("a: &x [1, 2]\nb: *x\nc: [*x, &y 3, *y]").value == {"a": [1, 2], "b": [1, 2], "c": [[1, 2], 3, 3]}
    lines = ["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    (complaint,) = yaml_complaints("\n".join(lines))
    assert "more than 20000 values" in complaint, "they would stand for gigabytes"
    nest = "[" * 40
    lines = [f"a0: &a0 {nest}{']' * 40}", *(f"a{n}: &a{n} {nest}*a{n - 1}{']' * 40}" for n in range(1, 3))]
    assert yaml_complaints("\n".join(lines)) == ("a.yaml:2:49: nested too deeply",)


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "{a: " * 200_000, "? " * 200_000])
def test_deeply_nested_yaml_is_refused(text: str) -> None:
    assert yaml_complaints(text)[-1].endswith("nested too deeply")
