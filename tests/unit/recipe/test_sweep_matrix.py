"""A matrix as users rely on it: its cells, and that each equals the recipe written by hand."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.errors import InputError, RecipeError, WinmlDagError
from winml_dag.recipe.load import parse_recipe
from winml_dag.recipe.matrix import load_sweep
from winml_dag.recipe.sweep import Cell, Sweep

CPU = {"name": "cpu", "ep": "cpu"}
NPU = {"name": "npu", "ep": "qnn", "compile": {}}


def sweep_of(folder: Path, said: Mapping[str, Any] | str, name: str = "sweep.yaml") -> Sweep:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said), encoding="utf-8")
    return load_sweep(path)


def cells_of(sweep: Sweep) -> dict[str, Cell]:
    return {cell.name: cell for cell in sweep.cells}


def said_by(cell: Cell) -> dict[str, Any]:
    assert cell.recipe is not None
    return cell.recipe.recipe.to_dict()


def problems_of(folder: Path, said: Mapping[str, Any] | str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as caught:
        sweep_of(folder, said)
    return tuple(line.replace(f"{folder}{os.sep}", "").replace("\\", "/") for line in caught.value.problems)


def test_every_combination_is_a_cell_with_its_values(tmp_path: Path) -> None:
    sweep = sweep_of(
        tmp_path,
        """
        export: {batch_size: 2}
        output_dir: out
        measure: [perf]
        matrix:
          model: [a/one.onnx, org/two]
          target: [{name: cpu, ep: cpu}, {name: npu, ep: qnn, compile: {}}]
          quant.samples: [10, 50]
        """,
    )
    assert sweep.axes == {"model": ("one", "two"), "target": ("cpu", "npu"), "quant.samples": ("10", "50")}
    assert [cell.name for cell in sweep.cells] == [
        f"{model}/{target}/{samples}" for model in ("one", "two") for target in ("cpu", "npu") for samples in (10, 50)
    ]
    cell = cells_of(sweep)["two/npu/50"]
    assert cell.values == {"model": "two", "target": "npu", "quant.samples": "50"}
    assert said_by(cell) == {
        "model": "org/two",
        "ep": "qnn",
        "compile": {},
        "export": {"batch_size": 2},
        "quant": {"samples": 50},
    }
    assert (sweep.name, sweep.output_dir, sweep.measure) == ("sweep", tmp_path / "out", ("perf",))


def test_more_specific_settings_take_precedence(tmp_path: Path) -> None:
    """Each position that can set ``validate.samples`` sets another number; all other fields are kept."""
    (tmp_path / "lowest.yaml").write_text("validate: {samples: 1, seed: 1, min_cosine: 0.1}", encoding="utf-8")
    (tmp_path / "base.yaml").write_text("base: lowest.yaml\nvalidate: {samples: 2, seed: 2}", encoding="utf-8")
    (tmp_path / "of_value.yaml").write_text("validate: {samples: 3, max_abs_error: 3}", encoding="utf-8")
    said = {
        "base": "base.yaml",
        "validate": {"samples": 4},
        "matrix": {
            "model": [{"name": "m", "base": "of_value.yaml"}, {"name": "n"}],
            "first": [{"name": "a", "validate": {"samples": 5}}, {"name": "b"}],
            "second": [{"name": "c", "validate": {"samples": 6}}, {"name": "d"}],
            "include": [{"model": "m", "first": "a", "second": "d", "validate": {"samples": 7}}],
        },
        "overrides": [{"when": {"model": "n", "first": ["a"], "second": "c*"}, "validate": {"samples": 8}}],
    }
    cells = cells_of(sweep_of(tmp_path, said))
    samples = {name: said_by(cell)["validate"]["samples"] for name, cell in cells.items()}
    assert samples == {"m/a/c": 6, "m/a/d": 7, "m/b/c": 6, "m/b/d": 4, "n/a/c": 8, "n/a/d": 5, "n/b/c": 6, "n/b/d": 4}
    rest = {"seed": 2, "min_cosine": 0.1}
    assert said_by(cells["m/b/d"])["validate"] == {"samples": 4, **rest, "max_abs_error": 3.0}
    assert said_by(cells["n/b/d"])["validate"] == {"samples": 4, **rest}


def test_null_removes_section_and_new_name_replaces_alias(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    base = "quant: {calibration_samples: 3, load_path: r.json}\ncompile: {}"
    (tmp_path / "there" / "base.yaml").write_text(base, encoding="utf-8")
    ranges = str(tmp_path / "there" / "r.json")
    kinds = {
        "float": {"quant": None, "compile": None},
        "kept": {},
        "more": {"quant": {"samples": 9}},
        "other": {"quant": {"calibration_load_path": "o.json"}},
    }
    matrix = {"kind": [{"name": name, **keys} for name, keys in kinds.items()]}
    cells = cells_of(sweep_of(tmp_path, {"base": "there/base.yaml", "matrix": matrix}))
    assert {name: said_by(cell)["quant"] for name, cell in cells.items()} == {
        "float": None,
        "kept": {"samples": 3, "calibration_load_path": ranges},
        "more": {"samples": 9, "calibration_load_path": ranges},
        "other": {"samples": 3, "calibration_load_path": "o.json"},
    }
    assert [said_by(cells[name])["compile"] for name in ("float", "more")] == [None, {}]


def test_cells_are_excluded_with_reason_and_included_beside_axes(tmp_path: Path) -> None:
    said = {
        "matrix": {
            "model": ["a.onnx", "b.onnx"],
            "precision": ["fp32", "w8a8"],
            "target": [CPU, NPU],
            "exclude": [
                {"precision": "fp*", "target": "npu", "because": "integers only"},
                {"model": "b", "precision": ["w8a8"], "target": ["cpu", "npu"]},
            ],
            "include": [
                {"model": "a", "precision": "w4a16", "target": "cpu", "quant": {"samples": 7}},
                {"model": "b", "precision": "w8a8", "target": "cpu"},
                {"model": "a", "precision": "fp32", "target": "cpu", "skip_optimize": True},
            ],
        }
    }
    sweep = sweep_of(tmp_path, said)
    cells = cells_of(sweep)
    left_out = {name: cell.left_out for name, cell in cells.items() if cell.left_out}
    assert left_out == {
        "a/fp32/npu": "integers only",
        "b/fp32/npu": "integers only",
        "b/w8a8/npu": f"excluded by {tmp_path / 'sweep.yaml'}:1",
    }
    assert all(cells[name].recipe is None for name in left_out)
    assert said_by(cells["a/w4a16/cpu"])["quant"] == {"samples": 7}
    assert said_by(cells["a/fp32/cpu"])["skip_optimize"] is True
    assert "skip_optimize" not in said_by(cells["b/fp32/cpu"])
    assert len(cells) == 9
    assert sweep.axes["precision"] == ("fp32", "w8a8", "w4a16")


# The section and field that a value of each axis sets.
FIELDS = {"x": ("validate", "samples"), "y": ("validate", "seed"), "z": ("perf", "seed")}


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a matrix with excluded cells, some of which are included again."""
    sizes = {name: draw(st.integers(1, 4)) for name in list(FIELDS)[: draw(st.integers(1, 3))]}
    matrix: dict[str, Any] = {
        name: [{"name": f"{name}{number}", section: {field: number}} for number in range(1, size + 1)]
        for name, size in sizes.items()
        for section, field in [FIELDS[name]]
    }
    whole = list(product(*([value["name"] for value in values] for values in matrix.values())))
    excluded = draw(st.lists(st.sampled_from(whole), unique=True, max_size=3))
    included = draw(st.lists(st.sampled_from(excluded), unique=True)) if excluded else []
    return {
        **matrix,
        "exclude": [dict(zip(sizes, labels, strict=True)) for labels in excluded],
        "include": [dict(zip(sizes, labels, strict=True)) for labels in included],
    }


@settings(max_examples=30, deadline=None)
@given(matrix=matrices())
def test_cells_equal_handwritten_recipes(matrix: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    sweep = sweep_of(tmp_path_factory.getbasetemp(), {"matrix": matrix})
    axes = {name: [value["name"] for value in matrix[name]] for name in FIELDS if name in matrix}
    built = {tuple(cell.values.values()): cell for cell in sweep.cells if not cell.left_out}
    excluded, included = ({tuple(each.values()) for each in matrix[word]} for word in ("exclude", "include"))
    assert len(sweep.cells) == len({cell.name for cell in sweep.cells})
    assert {tuple(cell.values.values()) for cell in sweep.cells} == set(product(*axes.values()))
    assert built.keys() == (set(product(*axes.values())) - excluded) | included
    for labels, cell in built.items():
        by_hand: dict[str, dict[str, int]] = {}
        for axis, label in zip(axes, labels, strict=True):
            section, field = FIELDS[axis]
            by_hand.setdefault(section, {})[field] = int(label[1:])
        assert cell.recipe is not None
        assert cell.recipe.recipe == parse_recipe(json.dumps(by_hand), "by hand", "json")


BASE = {
    "model": "models/one.onnx",
    "loader": {"user_script": "make.py"},
    "quant": {"calibration_data": "data", "model_id": "org/known", "dataset_name": "rows"},
    "compile": {
        "qnn_sdk_root": "sdk",
        "provider_options": {"op_affinity": "affinity.json", "mode": "burst", "table": "named.txt"},
        "provider_option_file_keys": ["table"],
    },
    "validate": {"input_data": "inputs.npz"},
    "perf": {"input_data": "/absolute/inputs.npz"},
    "eval": {"dataset": {"path": "~/rows", "label_mapping_file": "labels.json"}, "reference_path": "float.onnx"},
    "components": {"encoder": {"quant": {"calibration_data": "of_encoder"}}},
}


def test_base_recipe_paths_are_relative_to_base(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "rows").mkdir(parents=True)
    (there / "affinity.json").write_text("{}", encoding="utf-8")
    (there / "base.yaml").write_text(json.dumps({**BASE, "output_dir": "of its own"}), encoding="utf-8")
    own = {"base": "../there/base.yaml", "matrix": {"perf.seed": [1]}, "eval": {"model_id": "here"}}
    sweep = sweep_of(tmp_path, own, "here/sweep.yaml")
    assert {"base.yaml", "known", "rows"} <= {path.name for path in sweep.files}
    beside = sweep_of(tmp_path, {**own, "base": "base.yaml"}, "there/sweep.yaml")
    assert said_by(beside.cells[0])["model"] == "models/one.onnx", "in the same folder it is as it was written"
    assert beside.files == (there / "sweep.yaml", there / "base.yaml")
    recipe = said_by(cells_of(sweep)["1"])
    resolved = json.loads(json.dumps(recipe).replace(json.dumps(str(tmp_path / "there"))[1:-1], "THERE"))
    assert resolved == {
        "model": "THERE/models/one.onnx",
        "loader": {"user_script": "THERE/make.py"},
        "quant": {"calibration_data": "THERE/data", "model_id": "org/known", "dataset_name": "THERE/rows"},
        "compile": {
            "qnn_sdk_root": "THERE/sdk",
            "provider_options": {"op_affinity": "THERE/affinity.json", "mode": "burst", "table": "THERE/named.txt"},
            "provider_option_file_keys": ["table"],
        },
        "validate": {"input_data": "THERE/inputs.npz"},
        "perf": {"input_data": "/absolute/inputs.npz", "seed": 1},
        "eval": {
            "dataset": {"path": "~/rows", "label_mapping_file": "THERE/labels.json"},
            "reference_path": "THERE/float.onnx",
            "model_id": "here",
        },
        "components": {"encoder": {"quant": {"calibration_data": "THERE/of_encoder"}}},
    }


def test_invalid_field_is_reported_once_where_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "base.yaml").write_text("export:\n  opset: 3\n", encoding="utf-8")
    said = """base: other/base.yaml
quant: {mdoe: static}
matrix:
  model:
    - name: bert
      loader:
        modle_type: bert
    - {name: vit}
  precision: [w8a8, w9a9]
  perf.warmup: [1, two]
  target:
    - {name: cpu, ep: cpu}
    - {name: npu, ep: qnn}
overrides:
  - when: {model: vit}
    validate: {samples: many}
"""
    found = problems_of(tmp_path, said)
    assert [line.partition("; ")[0] for line in found if "w9a9" not in line] == [
        "other/base.yaml:2: export.opset: unknown key",
        "sweep.yaml:2: quant.mdoe: unknown key",
        "sweep.yaml:7: loader.modle_type: unknown key",
        "sweep.yaml:10: perf.warmup: expected a whole number, got 'two'",
        "sweep.yaml:16: validate.samples: expected a whole number, got 'many'",
    ]
    assert [line.partition(": ")[0] for line in found if "w9a9" in line] == ["sweep.yaml:9"]


WRONG = [
    ("matrix: {}", "matrix: has no axis"),
    ("matrix: {model: []}", "matrix.model: has no values"),
    ("matrix: {model: }", "matrix.model: has no values"),
    ("matrix: {model: a.onnx}", "matrix.model: expected a list of values"),
    ("matrix: {precison: [w8a8]}", "did you mean 'precision'?"),
    ("matrix: {base: [a]}", "matrix.base: an axis cannot have this name"),
    ("matrix: {model: [{loader: {}}]}", "matrix.model[0]: keys and values need a name"),
    ("matrix: {optim: [[a]]}", "matrix.optim[0]: a list needs a name"),
    ("matrix: {model: [a/x.onnx, b/x.onnx]}", "matrix.model[1]: there is a value 'x' already; give each a name"),
    ("matrix: {x: [{name: a/b}]}", "matrix.x[0].name: a name is that of a folder"),
    ("matrix: {x: [{name: NUL}]}", "matrix.x[0].name: a name is that of a folder"),
    ("matrix: {x: [{name: [a]}]}", "matrix.x[0].name: expected text"),
    ("matrix: {x: [{name: a, output_dir: b}]}", "output_dir: is of the whole sweep"),
    (
        "matrix: {precision: [w8a8], exclude: [{precision: w8}]}",
        "matrix.exclude[0].precision: 'w8' is not a value of precision; did you mean 'w8a8'?",
    ),
    (
        "matrix: {precision: [w8a8], exclude: [{precisoin: w8a8}]}",
        "matrix.exclude[0].precisoin: there is no axis 'precisoin'; did you mean 'precision'?",
    ),
    ("matrix: {precision: [w8a8], exclude: [{because: no}]}", "names no axis"),
    (
        "matrix: {precision: [w8a8], x: [{name: a}], include: [{precision: fp32}]}",
        "matrix.include[0]: names no value of x; for several cells there is `overrides`",
    ),
    (
        "matrix: {precision: [w8a8], include: [{precision: w8a8}]}",
        "there is a cell w8a8 already, and no keys are added to it",
    ),
    (
        "matrix: {x: [{name: a}], include: [{x: {name: a, quant: {}}}]}",
        "matrix.include[0].x: there is a value 'a' already; name it alone",
    ),
    (
        "matrix: {x: [{name: near}], include: [{x: neer}]}",
        "matrix.include[0].x: 'neer' is not a value of x; did you mean 'near'?",
    ),
    (
        "matrix: {x: [{name: a}, {name: b}], y: [{name: c}, {name: d}], exclude: [{x: a, y: c}]}\n"
        "overrides: [{when: {x: a, y: c}, quant: {}}]",
        "overrides[0].when: there is no such cell",
    ),
    ("matrix: {x: [{name: a}]}\noverrides: [{quant: {}}]", "needs `when`"),
    ("matrix: {x: [{name: a}]}\noverrides: [{when: {x: a}}]", "says nothing"),
    ("matrix: {x: [{name: a}]}\noverrides: [{when: {y: a}, quant: {}}]", "overrides[0].when.y: there is no axis 'y'"),
    (
        "matrix: {x: [{name: a, quant: {samples: 1, calibration_samples: 2}}]}",
        "is another name of 'samples', which is there too",
    ),
    ("folder: '{modle}'\nmatrix: {model: [a.onnx]}", "folder: there is no axis 'modle'; did you mean 'model'?"),
    ("folder: '../{x}'\nmatrix: {x: [{name: a}]}", "'..' cannot be a folder"),
    ("folder: '{x'\nmatrix: {x: [{name: a}]}", "a brace has no other"),
    ("folder: 'a={x}'\nmatrix: {x: [{name: a}]}", "means something in"),
    (
        "folder: all/{x}\nmatrix: {x: [{name: a}], y: [{name: b}, {name: c}]}",
        "folder: gives a x b and a x c one folder: all/a",
    ),
    ("matrix: {x: [{name: a}, {name: A}]}", "matrix: gives a and A one folder: a"),
    (
        "folder: all\nmatrix: {x: [{name: a x b}, {name: a}], y: [{name: c}, {name: b x c}]}",
        "folder: gives a x b x c and a x c one folder: all",
    ),
    ("matrix: {x: [{name: sweep.json}]}", "is the name of a file of the sweep"),
    ("base: nowhere.yaml\nmatrix: {x: [{name: a}]}", "base: There is no recipe"),
    ("base: 'catalog:berd'\nmatrix: {x: [{name: a}]}", "in the catalog"),
    ("base: [3]\nmatrix: {x: [{name: a}]}", "base[0]: expected the path of a recipe"),
    ('base: "a\\0b"\nmatrix: {x: [{name: a}]}', "base: expected the path of a recipe"),
    (f"base: {'a' * 300}.yaml\nmatrix: {{x: [{{name: a}}]}}", "base: "),
    ("base: sweep.yaml\nmatrix: {x: [{name: a}]}", "based on each other"),
    ("measure: [perv]\nmatrix: {x: [{name: a}]}", "measure[0]: 'perv' is not one of"),
    ("goal: {}\nmatrix: {x: [{name: a}]}", "goal.minimize: is required"),
    ("search: {}\nmatrix: {x: [{name: a}]}", "search: there is no goal"),
    (
        "stages: {s: {command: [x], outputs: {o: o.txt}}}\nmatrix: {x: [{name: a}, {name: b}]}",
        "stages.s: would be put into this folder by 2 cells",
    ),
    (
        "compile: {quant_config: {calibration_save_path: r.json}}\nmatrix: {x: [{name: a}, {name: b}]}",
        "compile.quant_config.calibration_save_path: would be put into this folder by 2 cells",
    ),
    (
        "components: {c: {quant: {calibration_save_path: r.json}}}\nmatrix: {x: [{name: a}, {name: b}]}",
        "components.c.quant.calibration_save_path: would be put into this folder by 2 cells",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_sweep_error_has_line_and_key(text: str, expected: str, tmp_path: Path) -> None:
    found = problems_of(tmp_path, text)
    assert any(expected in line for line in found), found
    assert all(line.startswith("sweep.yaml:") for line in found), found


def test_circular_bases_are_refused_with_path(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("base: a.yaml", encoding="utf-8")
    found = problems_of(tmp_path, {"base": "a.yaml", "matrix": {"precision": ["fp32"]}})
    assert found == ("sweep.yaml:1: base: these recipes are based on each other: a.yaml -> b.yaml -> a.yaml",)
    for text in ("matrix: {x: [{name: a}]}", "[1]"):
        (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
        (told,) = problems_of(tmp_path, {"base": "a.yaml", "matrix": {"precision": ["fp32"]}})
        assert "base takes recipes of one build" in told


def test_oversized_invalid_or_missing_sweep_is_refused(tmp_path: Path) -> None:
    numbers = list(range(1, 102))
    said = {"matrix": {"quant.samples": numbers, "validate.seed": numbers}}
    with pytest.raises(RecipeError, match=r"has 10,201 cells \(101 quant.samples x 101 validate.seed\), and 10,000"):
        sweep_of(tmp_path, said)
    with pytest.raises(RecipeError, match="has no keys and values"):
        sweep_of(tmp_path, "[matrix]")
    with pytest.raises(InputError, match="There is no recipe"):
        load_sweep(tmp_path / "nowhere.yaml")


WHOLE = {
    "base": ["base.yaml"],
    "folder": "{x}/{precision}",
    "quant": {"samples": 3},
    "matrix": {
        "x": [{"name": "a", "base": "base.yaml", "perf": {"seed": 1}}, {"name": "b"}],
        "precision": ["w8a8", "fp32"],
        "include": [{"x": "a", "precision": "int8", "quant": {}}],
        "exclude": [{"x": "b", "precision": "fp*", "because": "no"}],
    },
    "overrides": [{"when": {"x": ["a", "b*"]}, "quant": {"samples": 4}}],
    "goal": {"minimize": "size", "subject_to": {"cosine": ">=0.9"}},
}
_WORDS = st.sampled_from(["", "a", "*", "w8a8", "{x}", "..", "base.yaml", "x", "name", "quant", "include"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(0, 1) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


def _paths(value: object) -> Iterator[tuple[str | int, ...]]:
    yield ()
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from ((step, *rest) for rest in _paths(inner))


@settings(max_examples=70, deadline=None)
@given(path=st.sampled_from(list(_paths(WHOLE))[1:]), junk=_JUNK)
def test_any_junk_in_sweep_raises_only_winml_dag_errors(
    path: tuple[str | int, ...], junk: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "base.yaml").write_text("model: a.onnx", encoding="utf-8")
    said: Any = copy.deepcopy(WHOLE)
    inner = said
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = junk
    try:
        sweep = sweep_of(folder, said, "slip.yaml")
    except WinmlDagError:
        return
    assert len({cell.folder.casefold() for cell in sweep.cells}) == len(sweep.cells)
