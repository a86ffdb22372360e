"""Signature: the tensors that a model takes and gives, told from its configuration alone. No stage of a build:
`config` asks, in a process of its own, and nothing of the answer is kept.

This is the declaration; the work, which needs torch and transformers, is in
:mod:`winml_dag.stages.export.signature`.
"""

from __future__ import annotations

from dataclasses import dataclass

from winml_dag.engine.stage import Stage
from winml_dag.stages.export import ComponentFields, ExportFields, LoaderFields

# Name among the surroundings of its node: the folder of the saved model.
MODEL = "model"


@dataclass(frozen=True)
class SignatureConfig:
    """``loader`` and ``export`` as for the export that it is about. ``component``: the one that is meant, if any."""

    loader: LoaderFields
    export: ExportFields
    component: ComponentFields | None = None


SIGNATURE = Stage(
    name="signature",
    version=1,
    work="winml_dag.stages.export.signature:run",
    config="winml_dag.stages.signature:SignatureConfig",
    inputs={},
    outputs={},
)
