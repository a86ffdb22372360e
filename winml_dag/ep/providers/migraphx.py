"""AMD's MIGraphX, for GPUs."""

from __future__ import annotations

from winml_dag.ep.provider import (
    ONNXRUNTIME_PROVIDERS,
    SIGNED,
    WINDOWS_ML,
    ExecutionProvider,
    Integers,
    Package,
    SystemLibrary,
)

PROVIDER = MIGRAPHX = ExecutionProvider(
    name="MIGraphXExecutionProvider",
    alias="migraphx",
    devices=("gpu",),
    place=8,
    places={"gpu": 2},
    packages=(Package("onnxruntime-migraphx"), WINDOWS_ML),
    how_to_get="On a machine with an AMD GPU, install onnxruntime-migraphx instead of onnxruntime, or in an "
    "environment of its own.",
    ihv_type="AMD",
    needs=(SystemLibrary("libamdhip64.so", "amdhip64"),),
    integers=Integers(
        SIGNED,
        weight_symmetric=True,
        source=f"{ONNXRUNTIME_PROVIDERS}/MIGraphX-ExecutionProvider.html",
        reason="int8 weights; nothing else is documented",
    ),
)
