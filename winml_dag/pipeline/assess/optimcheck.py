"""Report what capabilities would change in a model for a request's target; nothing is stored or written.

It is not a stage: the answer is used once, and trying all capabilities takes as long as a build.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonValue
from winml_dag.pipeline.onestage import build_of_one
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.variant import Build, Skip
from winml_dag.stages.optimize import OptimizeTarget

if TYPE_CHECKING:
    from winml_dag.stages.optimize.check import Change

# Any capability that makes operators of onnxruntime's own domain: only with one enabled is the target checked for them.
_ASKS_FOR_THE_FORM = "quick_gelu_fusion"


@dataclass(frozen=True)
class Checked:
    """The target's operator domain, and the changes, yielded as each capability is tried."""

    standard_domain_only: bool
    changes: Iterator[Change]


@contextmanager
def checked(request: Request, names: tuple[str, ...]) -> Iterator[Checked]:
    """Yield what the capabilities *names* would do to the model of *request*, a request of the command ``optimize``.

    Without *names*, all capabilities that are off are tried.

    Raises:
        UsageError, InputError: as ``build_of_one``.
        StageError: for a model that cannot be optimized.
    """
    from winml_dag.stages.optimize.check import changes, optional_capabilities

    target = _target(request, names)
    assert request.overrides.onnx is not None
    with TemporaryDirectory(prefix="winml-dag-") as folder:
        model = request.overrides.onnx.absolute()
        found = changes(model, names or optional_capabilities(), target, Path(folder))
        yield Checked(target.standard_domain_only, found)


def _target(request: Request, names: tuple[str, ...]) -> OptimizeTarget:
    # Each is tried alone, so they may contradict each other; they only have to exist.
    optim: dict[str, JsonValue] = {**dict.fromkeys(names, False), _ASKS_FOR_THE_FORM: True}
    settings = {**(request.overrides.settings or {}), "optim": optim}
    build = build_of_one(replace(request, overrides=replace(request.overrides, settings=settings)), download=False)
    assert isinstance(build, Build)
    assert not isinstance(build.optimize, Skip)
    return build.optimize.target
