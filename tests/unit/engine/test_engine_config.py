"""A stage's config reaches its worker unchanged, through JSON text."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.canonical import canonical_json
from winml_dag.engine.stage import config_json, read_config
from winml_dag.stages.calibrate import CalibrateConfig
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export import ComponentsConfig, ExportConfig
from winml_dag.stages.finalize import FinalizeConfig
from winml_dag.stages.optimize import OptimizeConfig
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.validate import ValidateConfig

CONFIGS = (
    ExportConfig,
    ComponentsConfig,
    OptimizeConfig,
    CalibrateConfig,
    QuantizeConfig,
    CompileConfig,
    ValidateConfig,
    FinalizeConfig,
)

texts = st.text(max_size=5)
BY_TYPE: dict[object, st.SearchStrategy[object]] = {
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: texts,
    type(None): st.none(),
}
json_values = st.recursive(
    st.one_of(*BY_TYPE.values()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def values(hint: object) -> st.SearchStrategy[typing.Any]:
    """Return a strategy for everything that a field of type *hint* can hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is Mapping:
        return st.dictionaries(texts, values(arguments[1]), max_size=2)
    assert origin in (types.UnionType, typing.Union), f"{hint} is new here"
    is_json = any(typing.get_origin(argument) is Sequence for argument in arguments)
    return json_values if is_json else st.one_of(*map(values, arguments))


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_a_config_comes_back_from_json_as_it_was(kind: type[typing.Any], data: st.DataObject) -> None:
    config = data.draw(values(kind))
    text = canonical_json(config_json(config))
    again = read_config(kind, json.loads(text))
    assert again == config
    assert canonical_json(config_json(again)) == text


@dataclass(frozen=True)
class Inner:
    bits: int = 8


@dataclass(frozen=True)
class Config:
    samples: int
    inner: Inner = Inner()
    names: tuple[Inner, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)


def test_defaults_are_written_out_so_that_they_are_hashed() -> None:
    assert config_json(Config(3)) == {"samples": 3, "inner": {"bits": 8}, "names": [], "options": {}}


def test_what_is_left_out_takes_its_default() -> None:
    assert read_config(Config, {"samples": 3, "names": [{"bits": 4}]}) == Config(3, names=(Inner(4),))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({}, "Config needs samples"),
        ({"samples": 1, "sampels": 2}, "Config has no field sampels"),
        ({"samples": 1, "inner": {"bit": 2}}, "Inner has no field bit"),
        ([1], "Config needs an object"),
    ],
)
def test_json_that_is_not_the_config_is_refused_by_name(value: typing.Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        read_config(Config, value)


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="is not JSON"):
        config_json(Config(samples={1}))  # type: ignore[arg-type]
