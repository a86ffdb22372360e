"""Hypothesis strategies for JSON values, and for recipes: valid values of every field of the schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import JsonValue

from winml_dag.recipe import fields
from winml_dag.recipe.fields import Section, keys_of
from winml_dag.recipe.schema import Compile, EpConfig, Recipe

# Printable, and without the separators that only JSON allows unescaped.
TEXT = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x24F, exclude_characters="\x7f", exclude_categories=["Cc"])
)
WORDS = TEXT.filter(str.strip)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)

# By the mark of a field's type, for those whose values do not follow from their type.
_numbers_or_names = st.integers(1, 1000) | WORDS
_SPECIAL = {
    fields.PrecisionName: st.sampled_from(["auto", "fp32", "int8", "w8a16", "w4a16"]),
    fields.CapabilityName: st.sampled_from(["gelu_fusion", "constant_folding"]),
    fields.Axis: st.integers(0, 5).map(str),
    fields.Dimension: _numbers_or_names,
    fields.Chip: _numbers_or_names,
    fields.ModelPath: WORDS | st.dictionaries(TEXT, WORDS, max_size=2),
}
# Only one of each pair may be there: the other ones are ep_config and iterations.
_LEFT_OUT = ("ep_config", "duration")


def _values(kind: Any, marks: Iterable[Any] = ()) -> st.SearchStrategy[Any]:
    """Return the values of a field of the type *kind*, which is annotated with *marks*."""
    origin, inner = get_origin(kind), get_args(kind)
    for special, values in _SPECIAL.items():
        if any(mark is get_args(special)[1] for mark in marks):
            return values
    if origin is Annotated:
        return _values(inner[0], inner[1:])
    if kind is JsonValue:
        return json_values
    if origin in (Union, UnionType):
        return st.one_of(*map(_values, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        several = st.lists(_values(inner[0]), max_size=2)
        return several if inner[-1] is Ellipsis else st.tuples(*map(_values, inner)).map(list)
    if origin is Mapping:
        return st.dictionaries(_values(inner[0]), _values(inner[1]), max_size=2)
    if kind is Compile:
        return sections(Compile) | st.fixed_dictionaries({"ep_config": sections(EpConfig)})
    if issubclass(kind, Section):
        return sections(kind)
    limits = {
        name: value for mark in marks for each in getattr(mark, "metadata", [mark]) for name, value in _limits(each)
    }
    least, most = limits.get("ge", limits.get("gt")), limits.get("le")
    if kind is int:
        return st.integers(least if "ge" in limits or least is None else least + 1, most)
    if kind is float:
        return st.floats(least, most, exclude_min="gt" in limits, allow_nan=False, allow_infinity=False)
    return {bool: st.booleans(), NoneType: st.none(), str: WORDS if marks else TEXT}[kind]


def _limits(mark: object) -> Iterable[tuple[str, Any]]:
    return ((name, getattr(mark, name)) for name in ("ge", "gt", "le") if hasattr(mark, name))


@cache
def sections(kind: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Return sections with some of their fields."""
    known = {name: info for name, info in kind.model_fields.items() if name not in _LEFT_OUT}
    every = {keys_of(name, info)[0]: _values(info.annotation, info.metadata) for name, info in known.items()}
    required = [name for name, info in known.items() if info.is_required()]
    some = st.lists(st.sampled_from(sorted(every)), unique=True, max_size=15)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: every[name] for name in (*names, *required)}))


def _quantized_once(recipe: dict[str, Any]) -> dict[str, Any]:
    """Keep the quantization of the recipe, and not that of compile, if there are both."""
    compile_ = recipe.get("compile")
    if recipe.get("quant") is not None and compile_ is not None:
        compile_.pop("quant_config", None)
    return recipe


recipes = sections(Recipe).map(_quantized_once)
