"""Equal keys mean equal work: whatever can change the bytes changes the key, and nothing else does."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from engine_samples import node, properties
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.canonical import JsonValue, json_hash
from winml_dag.engine.stage import key_inputs_of
from winml_dag.installed import ABSENT, distribution_version, versions
from winml_dag.store.records import KeyInputs, cache_key

names = st.text(max_size=4)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values: st.SearchStrategy[JsonValue] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6
)
texts = st.dictionaries(names, st.text(max_size=4), max_size=3)

made_of: dict[str, st.SearchStrategy[Any]] = {
    "stage": st.text(max_size=4),
    "version": st.integers(),
    "config": st.dictionaries(names, values, max_size=3),
    "inputs": texts,
    "toolchain": texts,
}
key_inputs = st.builds(KeyInputs, **made_of)


def exactly(value: Any) -> str:
    """Return a text that distinguishes values equal in Python (1, 1.0, True), independent of the order of names."""
    if isinstance(value, dict):
        return repr({key: exactly(value[key]) for key in sorted(value)})
    return repr([exactly(inner) for inner in value]) if isinstance(value, list) else repr(value)


def turned(value: Any) -> Any:
    """Return the same value with its names in another order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(inner) for inner in value] if isinstance(value, list) else value


def test_properties_cover_every_key_input() -> None:
    assert made_of.keys() == {field.name for field in fields(KeyInputs)}


@pytest.mark.parametrize("name", list(made_of))
@properties
@given(data=st.data())
def test_different_key_input_gives_different_key(name: str, data: st.DataObject) -> None:
    made = data.draw(key_inputs)
    other = data.draw(made_of[name].filter(lambda value: exactly(value) != exactly(getattr(made, name))))
    assert cache_key(replace(made, **{name: other})) != cache_key(made)


@properties
@given(key_inputs)
def test_mapping_order_does_not_change_the_key(made: KeyInputs) -> None:
    mappings = {name: turned(getattr(made, name)) for name in ("config", "inputs", "toolchain")}
    assert cache_key(replace(made, **mappings)) == cache_key(made)
    assert json_hash(mappings["config"]) == json_hash(made.config)


def test_equal_values_in_different_fields_give_different_keys() -> None:
    made = KeyInputs("compile", 1, {}, {"model": "x"}, {})
    assert cache_key(made) != cache_key(replace(made, inputs={}, toolchain={"model": "x"}))


def test_non_json_value_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_hash({"min_cosine": float("nan")})


def test_node_and_input_names_are_not_in_the_key() -> None:
    first = node("optimize.0", "export.out", of="optimize")
    second = node("optimize.1", "analyze.out", of="optimize")
    digests = {"in0": "sha256:00"}
    assert cache_key(key_inputs_of(first, digests)) == cache_key(key_inputs_of(second, digests))


def test_key_format_is_stable() -> None:
    """Raise KEY_FORMAT when this fails, or every existing record is silently lost."""
    made = KeyInputs("quantize", 3, {"quant": {"samples": 10, "bits": 8.0}}, {"model": "sha256:ab"}, {"onnx": "1.23"})
    assert cache_key(made) == "51817f0c05d53ba0660180764d1bf98f2d0ca1a423a1621863ebb3230928c648"


@pytest.mark.parametrize("name", ["pytest", "onnxruntime", "PyYAML", "diskcache", "typing_extensions"])
def test_distribution_version_is_the_installed_one(name: str) -> None:
    assert distribution_version(name) == importlib.metadata.version(name)


@pytest.mark.parametrize("spelling", ["onnx-ir", "onnx_ir", "ONNX.IR"])
def test_distribution_name_spelling_is_normalized(spelling: str) -> None:
    assert distribution_version(spelling) == importlib.metadata.version("onnx-ir")


def test_missing_package_is_recorded_as_absent() -> None:
    assert versions(["no-such-thing"]) == {"no-such-thing": ABSENT}


def test_first_folder_on_import_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        (tmp_path / folder / f"wine_label-{version}.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("nowhere", "first", "second")])
    assert distribution_version("wine-label") == "2.0"
