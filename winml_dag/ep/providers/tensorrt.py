"""NVIDIA's TensorRT, which is part of onnxruntime-gpu.

That package also contains CUDA: TensorRT is faster, and comes first if the SDK that it needs exists.
"""

from __future__ import annotations

from winml_dag.ep.provider import NVIDIA_DRIVER, SIGNED, ExecutionProvider, Integers, Package, SystemLibrary

SDK = SystemLibrary("libnvinfer.so", "nvinfer")
INTEGERS = Integers(
    SIGNED,
    SIGNED,
    per_channel=True,
    weight_symmetric=True,
    activation_symmetric=True,
    runs_blocks=False,
    cannot=dict.fromkeys(((8, 16), (16, 8), (16, 16)), "has no 16-bit integers; use w8a8 or fp16"),
    source="https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html",
    reason="zero points have to be zero; weights have a scale for each channel",
)

PROVIDER = TENSORRT = ExecutionProvider(
    name="TensorrtExecutionProvider",
    alias="tensorrt",
    aliases=("trt",),
    devices=("gpu",),
    place=9,
    places={"gpu": 3},
    packages=(Package("onnxruntime-gpu"),),
    how_to_get="On a machine with an NVIDIA GPU and TensorRT, install onnxruntime-gpu instead of onnxruntime, or in "
    "an environment of its own.",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER, SDK),
    integers=INTEGERS,
)
