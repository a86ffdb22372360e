"""One transformer of onnxruntime's levels beyond the portable one, and no other.

The level as a whole is for CPUs: a compiler for NPUs leaves its operators out, and the model falls apart. A session can
be told which transformers not to run, and not which to run, so all others are named here. An operator that comes from
one of another name is found by what is compared at the end of the stage.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort

from winml_dag.stages.optimize.names import names_in, rename_generated
from winml_dag.stages.optimize.portable import optimize_in_session
from winml_dag.stages.optimize.selection import PORTABLE

_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED

# What the extended level of onnxruntime 1.31 runs for its CPU provider; a name that another version does not know is
# nothing to it.
_ALL = frozenset(
    {
        "AttentionFusion",
        "BiasDropoutFusion",
        "BiasGeluFusion",
        "BiasSkipLayerNormFusion",
        "BiasSoftmaxFusion",
        "ConcatSliceElimination",
        "ConvActivationFusion",
        "ConvAddActivationFusion",
        "DQMatMulNBitsFusion",
        "DynamicQuantizeMatMulFusion",
        "EmbedLayerNormFusion",
        "FastGeluFusion",
        "GatherSliceToSplitFusion",
        "GatherToSliceFusion",
        "GeluApproximation",
        "GeluFusionL2",
        "GemmActivationFusion",
        "GroupQueryAttentionFusion",
        "GroupQueryAttentionPreNormFusion",
        "LayerNormFusionL2",
        "MatMulActivationFusion",
        "MatMulIntegerToFloatFusion",
        "MatMulNBitsMlpFusion",
        "MatMulNBitsQkvFusion",
        "MatMulScaleFusion",
        "MatmulTransposeFusion",
        "NchwcTransformer",
        "NhwcTransformer",
        "QDQSelectorActionTransformer",
        "QuickGeluFusion",
        "SimplifiedLayerNormFusion",
        "SkipLayerNormFusion",
    }
)


def run_alone(transformer: str, source: Path, destination: Path) -> None:
    """Write *source*, as *transformer* makes it, as *destination*.

    With an empty name nothing is done but to write the model as onnxruntime writes all.

    Raises:
        StageError: when onnxruntime cannot load the model.
    """
    model = optimize_in_session(source, destination, _LEVEL, (_ALL - {transformer}) | PORTABLE)
    rename_generated(model, names_in(source))
    onnx.save(model, destination)
