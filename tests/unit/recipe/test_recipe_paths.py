from __future__ import annotations

from pathlib import Path

import pytest

from winml_dag.recipe.load import is_path_like, resolve_path


@pytest.mark.parametrize(
    "model", ["./bert", "../bert", "~/bert", "/models/bert", "C:/models", "a\\b", "a/b/c", "bert.onnx"]
)
def test_what_can_only_be_a_path(model: str) -> None:
    assert is_path_like(model)


@pytest.mark.parametrize("model", ["bert", "org/bert", "sentence-transformers/all-MiniLM-L6-v2", "gpt2.5"])
def test_what_may_be_a_hub_id(model: str) -> None:
    assert not is_path_like(model)


def test_home_is_the_users(tmp_path: Path) -> None:
    assert resolve_path(tmp_path, "~/x") == Path.home() / "x"
