from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipe_strategies import json_values, recipes

from winml_dag.errors import InputError, RecipeError, WinmlDagError
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
def test_json_and_yaml_are_told_apart_by_the_name(tmp_path: Path, mark: bytes) -> None:
    for name, text in (("a.json", b'{"auto":\tfalse}'), ("a.yaml", b"auto: false"), ("a.YML", b"auto: false")):
        (tmp_path / name).write_bytes(mark + text)
        loaded = load_recipe(tmp_path / name)
        assert (loaded.format, loaded.recipe.auto) == ("json" if name == "a.json" else "yaml", False)


def test_everything_that_is_wrong_is_said_at_once_and_where(tmp_path: Path) -> None:
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
def test_problems_in_json_have_a_line_and_stay_in_one(text: str, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "a.json", "json")
    assert caught.value.problems == (problem,)


_MODULES = """# two layers
- loader: {module_path: encoder.layer.0, model_class: BertLayer}
- loader: {module_path: encoder.layer.1}
  quant: {sampels: 3}
"""


def test_each_recipe_of_a_list_is_read_alone_with_its_own_lines(tmp_path: Path) -> None:
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
def test_a_list_is_told_however_it_begins(tmp_path: Path, text: str, is_list: bool) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text, encoding="utf-8")
    assert isinstance(read_text(text, "list.yaml", "yaml").value, list) is is_list
    assert module_items(path) == ((ModuleItem("a", None),) if is_list else None)


def test_what_is_not_one_recipe_is_refused(tmp_path: Path) -> None:
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


def test_what_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
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


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    loaded = LoadedRecipe(tmp_path / "a.json", parse_recipe("{}", "a.json", "json"), "json")
    for written, path in (
        ("data/x.npz", tmp_path / "data" / "x.npz"),
        (str(tmp_path / "model.onnx"), tmp_path / "model.onnx"),
        ("~/x", Path.home() / "x"),
    ):
        assert loaded.resolve_path(written) == path


def test_a_json_recipe_costs_no_import_that_it_does_not_need() -> None:
    code = (
        "import sys; from winml_dag.recipe.load import parse_recipe; parse_recipe('{\"quant\": {}}', 'a', 'json');"
        "heavy = {'yaml', 'difflib', 'numpy', 'onnx', 'onnxruntime', 'torch', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(str.encode), suffix=st.sampled_from([".json", ".yaml"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_break_the_loader(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(data)
    load_or_complain(lambda: load_recipe(path).recipe)


@given(value=json_values, section=st.none() | st.sampled_from(sorted(Recipe.model_fields)), kind=FORMATS)
def test_no_json_value_breaks_the_schema(value: object, section: str | None, kind: RecipeFormat) -> None:
    text = json.dumps(value if section is None else {section: value})
    load_or_complain(lambda: parse_recipe(text, "any", kind))


@given(data=st.data(), kind=FORMATS)
@settings(max_examples=50)
def test_no_slip_in_a_recipe_breaks_the_parser(data: st.DataObject, kind: RecipeFormat) -> None:
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
def test_what_can_only_be_a_path_is_told_from_what_may_be_a_hub_id(model: str, is_path: bool) -> None:
    assert is_path_like(model) is is_path
