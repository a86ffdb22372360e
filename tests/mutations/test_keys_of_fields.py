"""The stages that an edit reaches: every field of a recipe and every option of a run.

A field that a stage reads without having it in its key gives a wrong hit; one in the key that is not read gives a
needless run. ``reach`` states by hand what is right. Values come from the types of the fields: a new field is covered
automatically, and fails here until the table lists the stages that it reaches.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, Literal

import pytest
from field_values import Field, fields_of, values
from planned_keys import NO_OPTIONS, differing, keys, reached, stages_of
from reach import BASES, EDITS, OPTIONS, REFUSED, TRIED, Edit, declared_name, edited, within
from same_meaning import SAME, SAME_OPTIONS

from winml_dag.ep.registry import QNN, Target
from winml_dag.errors import RecipeError, WinmlDagError
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.stageconfigs import SPEED_OPTIONS
from winml_dag.recipe.schema import Recipe

# Read by no stage of this version; the schema rejects wrong values.
UNREAD = ("eval", "perf")
# Keys that the schema's types do not declare.
FLAGS = tuple(Field(f"optim.{flag}", bool, section=False) for flag in TRIED)
_IN_COMPILE = {base for base in BASES if base.endswith(" in compile")}
_OPTIM = Field("optim", Mapping[Literal[TRIED], bool], section=True)
# User-defined stages and the components of a composite model have tests of their own.
FIELDS = tuple(
    _OPTIM if field.path == "optim" else field
    for field in fields_of(Recipe)
    if not field.path.startswith(("stages", "components"))
)


def declared_reach(name: str, table: Iterable[Edit] = EDITS) -> set[str]:
    return {stage for field, _, _, stages in table if field == name and stages != REFUSED for stage in stages.split()}


def bases_of(path: str, table: Iterable[Edit] = EDITS) -> list[Mapping[str, Any]]:
    """Return all bases: those first on which *table* says that an edit reaches something, then the special ones."""
    name = declared_name(path)
    named = {base for field, base, _, stages in table if field == name and stages not in ("", REFUSED)}
    if path.startswith("compile.quant_config."):
        named = {f"{base} in compile" for base in named} & _IN_COMPILE or _IN_COMPILE
    special_first = list(BASES)[::-1]
    return [BASES[base] for base in sorted(special_first, key=lambda base: base not in named)]


@pytest.mark.parametrize("edit", EDITS, ids=[f"{field}-{base}-{value}" for field, base, value, _ in EDITS])
def test_field_edit_reaches_exactly_its_stages(project: Path, edit: Edit) -> None:
    field, base, value, expected = edit
    recipe = edited(BASES[base], field, value)
    assert recipe != BASES[base]
    if expected == REFUSED:
        with pytest.raises(RecipeError, match=r"cannot do"):
            stages_of(recipe, project)
        return
    assert differing(keys_of(BASES[base], project), keys_of(recipe, project)) == set(expected.split())


def test_every_recipe_field_is_in_table() -> None:
    known = {declared_name(field.path) for field in (*FIELDS, *FLAGS)}
    unread = {name for name in known if name.startswith(tuple(f"{section}." for section in UNREAD))}
    assert {field for field, *_ in EDITS} == known - unread


def is_refused(name: str) -> bool:
    """Return whether this version does not support the field, so that it has no other value yet."""
    return {stages for field, _, _, stages in EDITS if field == name} == {REFUSED}


@dataclasses.dataclass
class Found:
    """The result for all values of a field on all bases: stages reached, values sharing a key, accepted values."""

    reach: set[str] = dataclasses.field(default_factory=set)
    same: list[list[Any]] = dataclasses.field(default_factory=list)
    taken: set[str] = dataclasses.field(default_factory=set)

    def add(self, before: Mapping[str, str], planned: Iterable[tuple[Any, Mapping[str, str]]]) -> None:
        by_keys: dict[str, list[Any]] = {json.dumps(before): []}
        for value, after in planned:
            self.taken.add(repr(value))
            self.reach |= differing(before, after)
            by_keys.setdefault(json.dumps(after), []).append(value)
        if len(by_keys) > 1:  # where the field has no effect, all values are equal
            self.same += [group for group in by_keys.values() if len(group) > 1]

    def undeclared(self, declared: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
        return [group for group in self.same if not any(all(value in those for value in group) for those in declared)]


def values_by_turns(declared: Any) -> Iterator[list[Any]]:
    """Yield all values for the first base, and for each further base the next one.

    Most are words with equal meaning to the field: all of them on all bases would be 100,000 plans.
    """
    every = values(declared)
    yield every
    yield from ([value] for value in cycle(every))


def try_values(
    field: Field, project: Path, turns: Iterator[list[Any]], found: Found, until: set[str] | None = None
) -> None:
    """Try *turns*, the values for each base that has, or can be given, the field's section.

    To reach *until*, the bases come first on which the table has an edit of the field. The fields of quant have all
    bases under ``quant``, and the few that have a section of compile for them under ``compile.quant_config``.
    """
    *sections, name = field.path.split(".")
    bases = list(BASES.values())[: 1 if field.path.startswith(UNREAD) else None]
    if field.path.startswith("compile.quant_config."):
        bases = [base for label, base in BASES.items() if label in {"float", *_IN_COMPILE}]
    for base in bases if until is None else bases_of(field.path):
        try:
            recipe, place = within(base, sections)
        except (IndexError, AttributeError):
            continue
        if (before := unless_refused(recipe, project)) is None:
            continue  # the base conflicts: quant twice, random weights for an existing model
        found.add(before, planned(recipe, place, name, next(turns), project))
        if found.reach == until:
            break


def planned(
    recipe: Mapping[str, Any], place: dict[str, Any], name: str, tried: Iterable[Any], project: Path
) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Yield each value that *recipe* accepts at *place*, and the resulting keys."""
    for value in tried:
        place[name] = value
        if (after := unless_refused(recipe, project)) is not None:
            yield value, after


_planned: dict[str, Mapping[str, str] | None] = {}


def unless_refused(
    recipe: Mapping[str, Any], project: Path, overrides: Overrides = NO_OPTIONS
) -> Mapping[str, str] | None:
    """Return the keys of the stages of *recipe*; None if it is refused."""
    name = f"{json.dumps(recipe)} {overrides!r}"
    if name not in _planned:
        try:
            _planned[name] = keys(stages_of(recipe, project, overrides))
        except WinmlDagError:
            _planned[name] = None
    return _planned[name]


def keys_of(recipe: Mapping[str, Any], project: Path, overrides: Overrides = NO_OPTIONS) -> Mapping[str, str]:
    """Return the keys of the stages of *recipe*; raise what it is refused with."""
    found = unless_refused(recipe, project, overrides)
    return keys(stages_of(recipe, project, overrides)) if found is None else found


@pytest.mark.parametrize("field", [*FIELDS, *FLAGS], ids=lambda field: field.path)
def test_field_values_reach_exactly_listed_stages(project: Path, field: Field) -> None:
    """Together they reach exactly the listed stages, and no two share a key unless the table declares them equal."""
    name = declared_name(field.path)
    found = Found()
    try_values(field, project, values_by_turns(field.type), found)
    if field.path.startswith(UNREAD):
        assert found.reach == set()
        assert len(found.taken) > 1
        return
    expected = declared_reach(name)
    if field.section or name == "compile.provider_options":  # their contents have tests of their own
        inside = [declared_reach(declared_name(each.path)) for each in FIELDS if each.path.startswith(f"{field.path}.")]
        assert found.reach <= expected.union(*inside)
    else:
        if found.reach != expected:  # some values show it on some bases only
            try_values(field, project, repeat(values(field.type)), found, until=expected)
        assert found.reach == expected
        assert found.undeclared(SAME.get(name, ())) == []
    assert (len(found.taken) > 1) != is_refused(name)


OVERRIDES = tuple(fields_of(Overrides))
# Fields of a section, which the section's tests cover.
SETTINGS = ("settings",)


@pytest.mark.parametrize("option", OPTIONS, ids=[f"{name}-{base}-{value}" for name, base, value, _ in OPTIONS])
def test_option_reaches_exactly_its_stages(project: Path, option: Edit) -> None:
    name, base, value, expected = option
    before, after = (keys_of(BASES[base], project, each) for each in (NO_OPTIONS, Overrides(**{name: value})))
    assert differing(before, after) == set(expected.split())


def test_every_option_is_in_table() -> None:
    assert {name for name, *_ in OPTIONS} == {field.path for field in OVERRIDES}


# Of the settings of quant, the fields of quant cover all values.
@pytest.mark.parametrize("field", [f for f in OVERRIDES if f.path not in SETTINGS], ids=lambda field: field.path)
def test_option_values_reach_exactly_listed_stages(project: Path, field: Field) -> None:
    expected = declared_reach(field.path, OPTIONS)
    found = Found()
    try_options(field, project, values_by_turns(field.type), found)
    if found.reach != expected:
        try_options(field, project, repeat(values(field.type)), found, until=expected)
    assert found.reach == expected
    assert found.undeclared(SAME_OPTIONS.get(field.path, ())) == []


def try_options(
    field: Field, project: Path, turns: Iterator[list[Any]], found: Found, until: set[str] | None = None
) -> None:
    bases = BASES.values() if until is None else bases_of(field.path, OPTIONS)
    for base, tried in zip(bases, turns, strict=False):
        after = ((value, unless_refused(base, project, Overrides(**{field.path: value}))) for value in tried)
        found.add(keys_of(base, project), ((value, reached) for value, reached in after if reached is not None))
        if found.reach == until:
            break


NPU = Target(QNN, "npu")
PROVIDER_OPTIONS = {name: option for name, option in (QNN.option_table("npu") or {}).items() if not option.refusal}


@pytest.mark.parametrize("name", PROVIDER_OPTIONS)
def test_provider_option_reaches_stages_that_read_it(project: Path, name: str) -> None:
    option = PROVIDER_OPTIONS[name]
    tried = option.values or (("affinity.json", "other.json") if option.file else ("57", "69"))
    found = [stages_of(edited(BASES["static"], "compile.provider_options", {name: value}), project) for value in tried]
    expected = {"compile"} if option.file else {"validate"} if option.run_time else {"compile", "validate"}
    if "compile" in expected and not option.file and name not in SPEED_OPTIONS:
        expected.add("analyze")  # which asks the provider with it
    for number, one in enumerate(found):
        assert all(reached(one, other) == expected for other in found[number + 1 :])
