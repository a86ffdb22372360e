"""Report what capabilities would change in a model for a request's target; nothing is stored or written.

It is not a stage: the answer is used once, and trying all capabilities takes as long as a build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.pipeline.onestage import build_of_one
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.variant import Build
from winml_dag.stages.optimize import OptimizeConfig, OptimizeTarget

if TYPE_CHECKING:
    from winml_dag.stages.optimize.check import Change

# Any capability that makes operators of onnxruntime's own domain: only with one enabled is the target checked for them.
_ASKS_FOR_THE_FORM = "quick_gelu_fusion"


def target_of(request: Request, names: tuple[str, ...]) -> OptimizeTarget:
    """Return the target of *request*, a request of the command ``optimize``. Raises as ``build_of_one``."""
    # Each is tried alone, so they may contradict each other; they only have to exist.
    optim: dict[str, JsonValue] = {**dict.fromkeys(names, False), _ASKS_FOR_THE_FORM: True}
    settings = {**(request.overrides.settings or {}), "optim": optim}
    build = build_of_one(replace(request, overrides=replace(request.overrides, settings=settings)), download=False)
    assert isinstance(build, Build)
    config: OptimizeConfig = build.configs["optimize"]
    return config.target


def changes_by(names: tuple[str, ...], model: Path, target: OptimizeTarget) -> Iterator[Change]:
    """Yield what the capabilities *names* would do to *model*, as each is tried; without *names*, all that are off.

    Raises:
        StageError: for a model that cannot be optimized.
    """
    from winml_dag.stages.optimize.check import changes, optional_capabilities

    with TemporaryDirectory(prefix="winml-dag-") as folder:
        yield from changes(model, names or optional_capabilities(), target, Path(folder))
