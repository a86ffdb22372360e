"""DirectML: any GPU on Windows."""

from __future__ import annotations

from winml_dag.ep.provider import ONNXRUNTIME_PROVIDERS, ExecutionProvider, Integers, Package

PROVIDER = DML = ExecutionProvider(
    name="DmlExecutionProvider",
    alias="dml",
    aliases=("directml",),
    devices=("gpu",),
    place=6,
    places={"gpu": 7},
    packages=(Package("onnxruntime-windowsml"), Package("onnxruntime-directml")),
    how_to_get="DirectML needs Windows; there, install onnxruntime-windowsml instead of onnxruntime.",
    ihv_type="Microsoft",
    integers=Integers(
        source=f"{ONNXRUNTIME_PROVIDERS}/DirectML-ExecutionProvider.html",
        reason="takes signed and unsigned integers; these are as on the CPU",
    ),
)
