"""Every field of every stage's config is in its key, and every one can be reached from a recipe.

A config field that no recipe can change is either dead or was forgotten.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from field_values import Field, fields_of, sections_in, values
from planned_keys import stages_of
from reach import BASES, EDITS, REFUSED, edited

from winml_dag.canonical import JsonValue
from winml_dag.engine.stage import config_json, read_config
from winml_dag.engine.worker import load
from winml_dag.stages.builtin import LINE
from winml_dag.stages.sensitivity import SENSITIVITY, SensitivityConfig
from winml_dag.store.records import KeyInputs, cache_key

STAGES = {**LINE, "sensitivity": SENSITIVITY}
CONFIGS: dict[str, type] = {name: load(stage.config) for name, stage in STAGES.items()}
FIELDS = [(name, field) for name, kind in CONFIGS.items() for field in fields_of(kind)]


def filled(declared: Any) -> Any:
    """Return a value of this type with every optional part present."""
    kind: Any = next(sections_in(declared), None)
    if kind is None:
        return next(value for value in reversed(values(declared)) if value is not None)
    hints = typing.get_type_hints(kind)
    made = kind(**{field.name: filled(hints[field.name]) for field in dataclasses.fields(kind)})
    origins = {typing.get_origin(part) for part in (declared, *typing.get_args(declared))}
    return (made,) if tuple in origins else {"word": made} if Mapping in origins else made


def variants(config: Any, path: list[str], declared: Any) -> Iterator[Any]:
    """Yield *config* with every other value at *path*, of type *declared*."""
    name, *rest = path
    inner = getattr(config, name)
    if rest:
        one = inner[0] if isinstance(inner, tuple) else inner["word"] if isinstance(inner, Mapping) else inner
        for changed in variants(one, rest, declared):
            again = (
                (changed,) if isinstance(inner, tuple) else {"word": changed} if isinstance(inner, Mapping) else changed
            )
            yield dataclasses.replace(config, **{name: again})
    elif next(sections_in(declared), None) is None:
        yield from (dataclasses.replace(config, **{name: value}) for value in values(declared))
    elif type(None) in typing.get_args(declared):
        yield dataclasses.replace(config, **{name: None})


@pytest.mark.parametrize(("stage", "field"), FIELDS, ids=[f"{stage}: {field.path}" for stage, field in FIELDS])
def test_every_config_field_is_in_key(stage: str, field: Field) -> None:
    """No two values, including null and absence, share a key, and the stage receives what was hashed."""
    config = filled(CONFIGS[stage])
    configs = [config_json(each) for each in (config, *variants(config, field.path.split("."), field.type))]
    distinct = {repr(each): each for each in configs}
    assert len(distinct) > 1 or (field.section and type(None) not in typing.get_args(field.type))
    keys = {cache_key(KeyInputs(stage, 1, each, {}, {})) for each in distinct.values()}
    assert len(keys) == len(distinct)
    assert all(config_json(read_config(CONFIGS[stage], each)) == each for each in distinct.values())


def leaves_of(value: JsonValue, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves_of(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def test_every_config_field_is_reachable_from_recipe(project: Path) -> None:
    """With the edits of the table, each of which states what it reaches."""
    moved: set[str] = set()
    unedited = {base: stages_of(recipe, project) for base, recipe in BASES.items()}
    for name, base, value, expected in EDITS:
        if expected == REFUSED:
            continue
        before, after = unedited[base], stages_of(edited(BASES[base], name, value), project)
        for stage in before.keys() & after.keys():
            old, new = (dict(leaves_of(each[stage].config)) for each in (before, after))
            moved |= {f"{stage}: {leaf}" for leaf in {*old, *new} if old.get(leaf) != new.get(leaf)}
    # Changes inside lists show in the list, changes inside mappings below the mapping.
    lists = ("export: export.input_tensors", "normalize: export.input_tensors", "quantize: quant.node_overrides")
    leaves = {f"{stage}: {field.path}" for stage, field in FIELDS if not field.section} | {*lists}
    leaves = {leaf for leaf in leaves if not leaf.startswith(tuple(f"{each}." for each in lists))}
    # Only `quantize` names the result differently than every build does, and ranks nodes.
    leaves = {leaf for leaf in leaves if leaf != "finalize: file" and not leaf.startswith("sensitivity: ")}
    # Only `analyze` tries operators on the target that no table has.
    leaves = {leaf for leaf in leaves if not leaf.startswith(("analyze: analyze.learned", "analyze: analyze.lists"))}
    assert {leaf for leaf in leaves if not any(f"{each}.".startswith(f"{leaf}.") for each in moved)} == set()


def test_sensitivity_depends_on_quantize_config_and_validate_samples() -> None:
    """With any edit, the ranking uses the settings of quantize and the samples of validate."""
    quantize, validate = filled(CONFIGS["quantize"]), filled(CONFIGS["validate"])
    before = config_json(SensitivityConfig.of(quantize, validate))
    changed = {field.path: field for field in fields_of(CONFIGS["quantize"]) if not field.section}
    assert {"quant.mode", "quant.nodes_to_exclude", "target.rules"} <= changed.keys()
    for path, field in changed.items():
        others = [each for each in variants(quantize, path.split("."), field.type) if each != quantize]
        assert others
        assert all(config_json(SensitivityConfig.of(other, validate)) != before for other in others), path
    for path in ("validate.samples", "validate.seed", "validate.classifies", "quant"):
        declared = next(field.type for field in fields_of(CONFIGS["validate"]) if field.path == path)
        others = [each for each in variants(validate, path.split("."), declared) if each != validate]
        assert others
        assert all(config_json(SensitivityConfig.of(quantize, other)) != before for other in others), path
