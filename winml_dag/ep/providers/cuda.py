"""NVIDIA's CUDA."""

from __future__ import annotations

from winml_dag.ep.provider import NVIDIA_DRIVER, ONNXRUNTIME_QUANTIZATION, ExecutionProvider, Integers, Package

PROVIDER = CUDA = ExecutionProvider(
    name="CUDAExecutionProvider",
    alias="cuda",
    devices=("gpu",),
    place=5,
    places={"gpu": 5},
    packages=(Package("onnxruntime-gpu"),),
    how_to_get="On a machine with an NVIDIA GPU, install onnxruntime-gpu instead of onnxruntime, or in an environment "
    "of its own.",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER,),
    integers=Integers(source=ONNXRUNTIME_QUANTIZATION, reason="as on the CPU"),
)
