"""A stage's config as JSON, and read back. ``tests/mutations`` has every value of every field of our stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from winml_dag.engine.stage import config_json, read_config


@dataclass(frozen=True)
class Inner:
    bits: int = 8


@dataclass(frozen=True)
class Config:
    samples: int
    inner: Inner = Inner()
    names: tuple[Inner, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)


def test_defaults_are_written_and_thus_hashed() -> None:
    assert config_json(Config(3)) == {"samples": 3, "inner": {"bits": 8}, "names": [], "options": {}}


def test_missing_fields_take_their_defaults() -> None:
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
def test_invalid_config_json_is_refused_by_name(value: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        read_config(Config, value)


def test_non_json_value_is_refused() -> None:
    with pytest.raises(TypeError, match="is not JSON"):
        config_json(Config(samples={1}))  # type: ignore[arg-type]
