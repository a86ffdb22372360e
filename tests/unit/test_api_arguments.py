"""The keyword arguments of the API functions: exactly the documented ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import winml_dag
from winml_dag.errors import UsageError

FUNCTIONS: list[Callable[..., Any]] = [
    getattr(winml_dag, name) for name in winml_dag.__all__ if name[0].islower() and callable(getattr(winml_dag, name))
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_unknown_keyword_argument_raises_type_error(function: Callable[..., Any]) -> None:
    name = function.__name__
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'overwrit'"):
        function("model.onnx", "out", overwrit=True)
    with pytest.raises(TypeError, match=rf"{name}\(\) .*'chache_dir'; did you mean 'cache_dir'\?"):
        function("model.onnx", "out", chache_dir="cache")
    with pytest.raises(TypeError, match=rf"{name}\(\) .*'arguments'"):
        function("model.onnx", "out", arguments={})
    with pytest.raises(TypeError, match="'rebuild' and 'force_rebuild', two names of one argument"):
        function("model.onnx", "out", rebuild=True, force_rebuild=True)


def test_internal_request_fields_are_not_arguments() -> None:
    """Even where the request object has a field of that name."""
    with pytest.raises(TypeError, match=r"build_onnx_model\(\) got an unexpected keyword argument 'sensitivity'"):
        winml_dag.build_onnx_model("model.onnx", "out", sensitivity=True)  # type: ignore[call-arg]


def test_build_without_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="jobs is 0, and must be at least 1"):
        winml_dag.build_onnx_model("model.onnx", tmp_path / "out", jobs=0, cache_dir=tmp_path / "cache")
