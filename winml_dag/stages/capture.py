"""Capture: which modules of a class a model has, and what each is called with. No stage of a build: `config --module`
asks, in a process of its own, and nothing of the answer is kept.

This is the declaration; the work, which needs torch and transformers, is in
:mod:`winml_dag.stages.export.captured`.
"""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine.stage import Memory, Stage
from winml_dag.stages.export import ExportFields, LoaderFields

# Names among the surroundings of its node: folders of the saved model and of the user's script.
MODEL, SCRIPT = "model", "script"


@dataclass(frozen=True)
class CaptureConfig:
    """``loader`` and ``export`` as for the whole model, ``module_class`` the name of a class of PyTorch modules."""

    loader: LoaderFields
    export: ExportFields
    module_class: str


CAPTURE = Stage(
    name="capture",
    version=1,
    work="winml_dag.stages.export.captured:run",
    config="winml_dag.stages.capture:CaptureConfig",
    inputs={},
    outputs={},
    memory=Memory(450 << 20, 2.6),
)
