"""What is chosen of a sweep: cells by filters and shards, winners by goals; and several files as one sweep."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.recipe.document import Positions
from winml_dag.recipe.goal import MEASURES, Goal, group_axes, groups, winner_folder
from winml_dag.recipe.load import LoadedRecipe, load_recipe
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.problems import problems
from winml_dag.recipe.reading import is_sweep
from winml_dag.recipe.schema import Loader, Recipe
from winml_dag.recipe.sweep import Cell, Shard, Sweep, filtered, in_shard, parse_shard, shards, sweep_of_files


def made_up(axes: Mapping[str, Sequence[str]], left_out: Sequence[str] = ()) -> Sweep:
    """Return every combination of the labels of *axes*; each label of ``model`` is a separate model."""
    path = Path("sweep.yaml")
    cells = []
    for labels in product(*axes.values()):
        values = dict(zip(axes, labels, strict=True))
        name = "/".join(labels)
        recipe = Recipe(loader=Loader(model_type=values.get("model")))
        loaded = None if name in left_out else LoadedRecipe(path, recipe, "yaml")
        cells.append(Cell(name, values, name, path, loaded, "not wanted" if name in left_out else ""))
    return Sweep("sweep", path, {axis: tuple(labels) for axis, labels in axes.items()}, tuple(cells))


AXES = {"model": ("bert", "resnet", "resnext"), "precision": ("fp32", "w8a8", "w8a16"), "quant.samples": ("10", "50")}
SWEEP = made_up(AXES, left_out=["bert/fp32/10"])


def names(cells: tuple[Cell, ...]) -> list[str]:
    return [cell.name for cell in cells]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("model=bert", 6),
        ("model=bert, res*", 18),
        ("model=res*", 12),
        ("precision!=fp32", 12),
        ("precision!=w8*", 6),
        ("quant.samples=50", 9),
        ("bert/w8a8/10", 1),
        ("bert/w8a8/10,resnet/*", 7),
        ("*/fp32/*", 6),
    ],
)
def test_filter_accepts_labels_patterns_and_names(text: str, number: int) -> None:
    taken = filtered(SWEEP, [text])
    assert len(taken) == number
    assert list(taken) == [cell for cell in SWEEP.cells if cell in taken], "left out or not"


@settings(max_examples=40, deadline=None)
@given(
    axis=st.sampled_from(sorted(AXES)),
    labels=st.data(),
)
def test_filters_narrow_and_negation_is_complement(axis: str, labels: st.DataObject) -> None:
    chosen = labels.draw(st.lists(st.sampled_from(AXES[axis]), min_size=1, max_size=len(AXES[axis]) - 1, unique=True))
    taken, rest = filtered(SWEEP, [f"{axis}={','.join(chosen)}"]), filtered(SWEEP, [f"{axis}!={','.join(chosen)}"])
    assert sorted(names(taken) + names(rest)) == sorted(names(SWEEP.cells))
    assert {cell.values[axis] for cell in taken} == set(chosen)
    # Each separately, in any order: the intersection.
    other = labels.draw(st.sampled_from(["model=bert", "precision!=fp32", "*/10"]))
    both = [name for name in names(taken) if name in names(filtered(SWEEP, [other]))]
    first = f"{axis}={','.join(chosen)}"
    if both:
        assert names(filtered(SWEEP, [first, other])) == names(filtered(SWEEP, [other, first])) == both
    else:
        with pytest.raises(UsageError, match="leaves none of the 18 cells"):
            filtered(SWEEP, [first, other])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle=bert", "there is no axis 'modle'; did you mean 'model'?"),
        ("model=bret", "'bret' is not a value of model; did you mean 'bert'?"),
        ("model=", "'' is not a value of model"),
        ("brt/w8a8/10", "there is no cell 'brt/w8a8/10'; did you mean 'bert/w8a8/10'?"),
        ("bert", "there is no cell 'bert'"),
    ],
)
def test_invalid_filter_is_refused_with_suggestion(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        filtered(SWEEP, [text])
    assert message in str(caught.value)


def test_separate_recipes_are_filtered_by_file_name(tmp_path: Path) -> None:
    for name in ("a=1", "b, c", "b"):
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    sweep = sweep_of_files([tmp_path])
    assert names(filtered(sweep, ["a=1"])) == ["a=1"]
    assert names(filtered(sweep, ["b, c"])) == ["b, c"]
    assert names(filtered(sweep, ["a*,b"])) == ["a=1", "b"]


@settings(max_examples=50, deadline=None)
@given(
    models=st.integers(1, 7),
    rest=st.integers(1, 9),
    count=st.integers(1, 12),
    seed=st.randoms(use_true_random=False),
)
def test_shards_partition_cells_evenly(models: int, rest: int, count: int, seed: random.Random) -> None:
    axes = {"model": [f"m{place}" for place in range(models)], "x": [f"x{place}" for place in range(rest)]}
    cells = made_up(axes).cells
    parts = shards(cells, count)
    assert len(parts) == count
    assert sorted(names(tuple(chain.from_iterable(parts)))) == sorted(names(cells))
    assert max(map(len, parts)) <= 1.5 * len(cells) / count + 1
    # Whatever the order in which a system lists files, every machine gets the same shards.
    shuffled = seed.sample(cells, len(cells))
    assert [set(names(part)) for part in shards(shuffled, count)] == [set(names(part)) for part in parts]
    # No more exports are split than there are shard boundaries.
    divided = sum(len({cell.values["model"] for cell in part}) for part in parts) - models
    assert divided <= count - 1


def test_cells_sharing_export_stay_in_one_shard() -> None:
    cells = made_up({"model": [f"m{place:02}" for place in range(50)], "x": "abcdef"}).cells
    parts = shards(cells, 8)
    assert sum(len({cell.values["model"] for cell in part}) for part in parts) == 50
    assert {len(part) for part in parts} <= {36, 42}


def test_shard_keeps_order_and_first_has_excluded_cells() -> None:
    found = [in_shard(SWEEP.cells, Shard(number, 3)) for number in (1, 2, 3)]
    assert sorted(names(tuple(chain.from_iterable(found)))) == sorted(names(SWEEP.cells))
    assert all(list(part) == [cell for cell in SWEEP.cells if cell in part] for part in found)
    assert [name for name in names(found[0]) if name == "bert/fp32/10"]


def test_separate_recipes_are_sharded_by_export(tmp_path: Path) -> None:
    for place, model in enumerate("abab"):
        recipe: Mapping[str, object] = {"model": model, "quant": {"samples": place + 1}}
        (tmp_path / f"{place}.json").write_text(json.dumps(recipe), encoding="utf-8")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    sweep: Sweep = sweep_of_files([tmp_path])
    assert [names(part) for part in shards(sweep.cells, 2)] == [["0", "2"], ["1", "3", "broken"]]


@pytest.mark.parametrize("text", ["9/8", "0/8", "1/0", "-1/2", "1", "a/b", "1/2/3", "", "1/99999"])
def test_invalid_shard_is_refused(text: str) -> None:
    assert str(parse_shard("3/8")) == "3/8"
    with pytest.raises(UsageError):
        parse_shard(text)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "matrix: {model: [a]}", True),
        ("a.yaml", "{'matrix': {model: [a]}}", True),
        ("a.json", '{"matrix": {"model": ["a"]}}', True),
        ("a.yaml", "model: matrix\nloader: {task: matrix}", False),
        ("a.yaml", "stages: {matrix: {command: [x]}}", False),
        ("a.yaml", "- matrix", False),
        ("a.yaml", "model: a", False),
    ],
)
def test_recipe_with_matrix_is_a_sweep(name: str, text: str, expected: bool, tmp_path: Path) -> None:
    assert is_sweep(write(tmp_path, name, text)) is expected


def test_files_lists_and_sweeps_combine_into_one_sweep(tmp_path: Path) -> None:
    write(tmp_path, "one.json", '{"model": "a.onnx"}')
    modules = '{"loader": {"module_path": "x", "model_class": "Layer"}}, {"loader": {"module_path": "y"}}'
    write(tmp_path, "list.json", f"[{modules}]")
    write(tmp_path, "many.yaml", "measure: [perf]\nmatrix: {precision: [fp32, w8a8], exclude: [{precision: fp32}]}")
    sweep = sweep_of_files([tmp_path])
    assert [cell.name for cell in sweep.cells] == ["list/Layer_0", "list/module_1", "many/fp32", "many/w8a8", "one"]
    assert [cell.folder for cell in sweep.cells] == [cell.name for cell in sweep.cells]
    assert [(cell.file.name, cell.item) for cell in sweep.cells[:2]] == [("list.json", 0), ("list.json", 1)]
    assert (sweep.axes, sweep.measure) == ({"precision": ("fp32", "w8a8")}, ("perf",))
    assert [cell.recipe is None for cell in sweep.cells] == [True, True, True, False, True]
    assert {path.name for path in sweep.files} == {"one.json", "list.json", "many.yaml"}


def test_single_sweep_or_list_has_no_name_prefix(tmp_path: Path) -> None:
    many = write(tmp_path, "many.yaml", "name: mine\nmatrix: {precision: [fp32, w8a8]}")
    sweep = sweep_of_files([many])
    assert (sweep.name, [cell.name for cell in sweep.cells]) == ("mine", ["fp32", "w8a8"])
    listed = write(tmp_path, "list.json", '[{"loader": {"module_path": "x"}}]')
    assert [cell.name for cell in sweep_of_files([listed]).cells] == ["module_0"]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("bert/w8a8.json", "vit/w8a8.json", "vit/w8a16.json"), ["bert/w8a8", "vit/w8a16", "vit/w8a8"]),
        # They differ on every system.
        (("Bert.yaml", "bert.json"), ["Bert.yaml", "bert.json"]),
    ],
)
def test_equal_file_names_are_disambiguated(tmp_path: Path, files: tuple[str, ...], names: list[str]) -> None:
    for file in files:
        write(tmp_path, file, "{}")
    assert [cell.folder for cell in sweep_of_files([tmp_path]).cells] == names


def test_build_outputs_in_recipe_folder_are_ignored(tmp_path: Path) -> None:
    for name in ("one.yaml", "report.json", "other/sweep.json", "other/build_manifest.json"):
        write(tmp_path, name, "{}")
    for name in ("build_manifest.json", "winml_build_config.json", "analyze_result.json"):
        write(tmp_path, f"out/one/{name}", "{}")
    write(tmp_path, "out/sweep.json", '{\n"began_at": "2026-11-22T10:00:00+00:00"\n}')
    write(tmp_path, "out/report.json", "{}")
    found = sweep_of_files([tmp_path]).cells
    assert [cell.name for cell in found] == ["one", "build_manifest", "sweep", "report"]


def test_goal_in_one_of_several_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "matrix: {precision: [fp32]}\ngoal: {minimize: size}")
    write(tmp_path, "b.yaml", "model: b.onnx")
    with pytest.raises(RecipeError, match="has a goal, and it is one of 2 recipes"):
        sweep_of_files([tmp_path])
    with pytest.raises(InputError, match="There is no recipe in"):
        sweep_of_files([write(tmp_path, "c/notes.txt", "").parent])


def test_finding_recipes_imports_no_schema(tmp_path: Path) -> None:
    write(tmp_path, "one.json", '{"model": "a.onnx"}')
    write(tmp_path, "two.yaml", "model: b.onnx")
    code = (
        "import sys; from pathlib import Path; from winml_dag.recipe.sweep import sweep_of_files\n"
        "sweep_of_files([Path(sys.argv[1])])\n"
        "print([name for name in ('pydantic', 'yaml', 'torch', 'onnx') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_single_build_command_refuses_sweep(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is a sweep of several builds, and this is about one"):
        load_recipe(write(tmp_path, "many.yaml", "matrix: {precision: [fp32]}"))
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, "one.yaml", "base: other.yaml\nmodel: a"))
    assert caught.value.problems == (
        f"{tmp_path / 'one.yaml'}:1: base: is a key of a sweep, which has a matrix besides",
    )


def complaint(**goal: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Goal.model_validate(goal)
    (line,) = problems(caught.value, Goal, Positions(), "sweep.yaml")
    return line.removeprefix("sweep.yaml:1: ")


@pytest.mark.parametrize(
    ("measure", "text", "value"),
    [
        ("cosine", ">=0.99", 0.99),
        ("sqnr_db", ">= 20 dB", 20),
        ("accuracy_drop", "<=-0.01", -0.01),
        ("size", "<=20MB", 20e6),
        ("size", "<= 1.5 MiB", 1.5 * 2**20),
        ("size", "<=1000", 1000),
        ("latency", "<=5", 5),
        ("latency", "<=0.25s", 250),
        ("latency", "<=80us", 0.08),
        ("peak_memory", "<=1GiB", 2**30),
        ("max_abs_error", "<=1e-3", 1e-3),
    ],
)
def test_bound_is_parsed_in_unit_of_its_measure(measure: str, text: str, value: float) -> None:
    (bound,) = Goal.model_validate({"minimize": "size", "subject_to": {measure: text}}).bounds
    assert bound.value == pytest.approx(value)
    assert bound.at_least == MEASURES[measure].more_is_better
    assert bound.holds(value)
    assert bound.holds(value + 1) == bound.at_least


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ({"cosin": ">=0.9"}, "subject_to.cosin: unknown measure; did you mean 'cosine'?"),
        ({"cosine": 0.99}, 'subject_to.cosine: expected a bound in quotes, such as ">=0.99" or "<=20MB"'),
        ({"cosine": "0.99"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '0.99'"),
        ({"cosine": ">0.99"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '>0.99'"),
        ({"cosine": ">=0.9.9"}, "subject_to.cosine: expected a bound such as \">=0.99\", got '>=0.9.9'"),
        (
            {"cosine": "<=0.99"},
            'subject_to.cosine: more is better of this measure, so a bound is written with >=, such as ">=0.99"',
        ),
        ({"cosine": ">=1.5"}, "subject_to.cosine: no model keeps '>=1.5': it is 1 at best"),
        ({"cosine": ">=-1"}, "subject_to.cosine: every model keeps '>=-1': it is -1 at worst"),
        ({"max_abs_error": "<=-1"}, "subject_to.max_abs_error: no model keeps '<=-1': it is 0 at best"),
        ({"latency": "<=5m"}, "subject_to.latency: 'm' is not a unit of this measure; write us, µs, ms, s, or none"),
        ({"cosine": ">=0.9 MB"}, "subject_to.cosine: 'MB' is not a unit of this measure; it has none"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(map(str, next(iter(value.items())))),
)
def test_invalid_goal_bound_is_reported_with_key(bounds: dict[str, object], what: str) -> None:
    assert complaint(minimize="size", subject_to=bounds) == what


@given(st.sampled_from(sorted(MEASURES)), st.text("<>=-+0123456789.e kMGTiBbitsdµ%\0ü", max_size=12))
def test_any_bound_text_parses_or_is_refused(measure: str, text: str) -> None:
    try:
        goal = Goal.model_validate({"minimize": "size", "subject_to": {measure: text}})
    except ValidationError:
        return
    assert [bound.text for bound in goal.bounds] == [text]


MATRIX = """
matrix:
  arch:
    - {name: a, model: a.onnx}
    - {name: b, model: b.onnx}
  precision: [w8a8, w8a16]
  where:
    - {name: host, ep: cpu}
    - {name: npu, ep: qnn, compile: {}}
  quant.samples: [4, 8]
"""


def sweep_of(folder: Path, text: str, matrix: str = MATRIX) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(matrix + text, encoding="utf-8")
    return load_sweep(path)


def refusal(folder: Path, text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        sweep_of(folder, text)
    return [line.removeprefix(f"{folder / 'sweep.yaml'}:") for line in caught.value.problems]


@pytest.mark.parametrize(
    ("goal", "axes", "folders"),
    [
        ("", ("arch", "where"), ["best/a/host", "best/a/npu", "best/b/host", "best/b/npu"]),
        (', per: [arch], folder: "ship/{arch}-best"', ("arch",), ["ship/a-best", "ship/b-best"]),
        (", per: []", (), ["best"]),
    ],
    ids=["whatever their axes are called", "per and folder say otherwise", "one of all"],
)
def test_winner_is_chosen_per_model_and_target(
    tmp_path: Path, goal: str, axes: tuple[str, ...], folders: list[str]
) -> None:
    sweep = sweep_of(tmp_path, f"goal: {{minimize: size{goal}}}\n")
    (found,) = sweep.goals
    assert group_axes(found, sweep.axes, sweep.cells) == axes
    assert [winner_folder(found, group) for group in groups(axes, sweep.cells)] == folders


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'goal: {minimize: latency, subject_to: {accuracy_drop: "<=0.01"}}',
            "11: goal.minimize: latency is not measured; write `measure: [perf]`\n"
            "11: goal.subject_to.accuracy_drop: accuracy_drop is not measured; write `measure: [eval]`",
        ),
        ("goal: {minimize: speed}", "11: goal.minimize: 'speed' is not one of latency, size"),
        (
            "goal: {minimize: size, per: [arhc]}",
            "11: goal.per: 'arhc' is not an axis of the matrix; did you mean 'arch'?",
        ),
        (
            'goal: {minimize: size, folder: "x/{whre}"}',
            "11: goal.folder: there is no axis 'whre'; did you mean 'where'?",
        ),
        (
            'goal: {minimize: size, folder: "x/{precision}"}',
            "11: goal.folder: there is one winner for each value of arch, where, so nothing else can name its folder",
        ),
        ("search: {}", "11: search: there is no goal to search for; add `goal`"),
        (
            'goal: [{minimize: size, subject_to: {size: "<=1MB"}}]\nsearch: {}',
            '12: search: no goal has a bound on quality that a low precision could miss, such as cosine: ">=0.99"',
        ),
    ],
)
def test_impossible_goal_is_refused_with_line(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(tmp_path, f"{text}\n") == told.split("\n")


def test_requested_measure_can_be_minimized(tmp_path: Path) -> None:
    assert sweep_of(tmp_path, "measure: [perf]\ngoal: {minimize: latency}\n").goals


def test_winner_folder_collision_is_refused(tmp_path: Path) -> None:
    (told,) = refusal(tmp_path, "goal:\n  - {minimize: size}\n  - {minimize: size, subject_to: {cosine: '>=0.9'}}\n")
    assert told.startswith("13: goal[1].folder: goal 1's winner of arch a, where host and goal 2's winner of arch a")
    (told,) = refusal(tmp_path, 'goal: {minimize: size, per: [arch], folder: "{arch}"}\n')
    assert told.startswith("11: goal.folder: goal 1's winner of arch a and the cell a/")
