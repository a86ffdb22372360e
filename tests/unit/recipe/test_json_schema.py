"""The published JSON Schemas accept the shipped recipes, and reject what the code rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SHIPPED = sorted(RECIPES.rglob("*.yaml"))


def errors(kind: str, written: dict[str, Any]) -> list[str]:
    schema = json.loads((RECIPES / f"{kind}.schema.json").read_text(encoding="utf-8"))
    return [error.message for error in Draft202012Validator(schema).iter_errors(written)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_recipe_names_the_schema_that_it_follows(path: Path) -> None:
    kind = "sweep" if path.parent.name == "sweeps" else "recipe"
    text = path.read_text(encoding="utf-8")
    assert f"# yaml-language-server: $schema=../{kind}.schema.json\n" in text
    assert errors(kind, yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("recipe", {"sampels": 8}),
        ("recipe", {"quant": {"samples": "8"}}),
        ("recipe", {"matrix": {"precision": ["fp32"]}}),
        ("sweep", {"matrix": {"precision": "fp32"}}),
        ("sweep", {"matrix": {}, "measure": ["speed"]}),
    ],
)
def test_a_mistake_is_found(kind: str, written: dict[str, Any]) -> None:
    assert errors(kind, written)
