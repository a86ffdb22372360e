"""NVIDIA's TensorRT for RTX, for GPUs of PCs."""

from __future__ import annotations

from winml_dag.ep.provider import NVIDIA_DRIVER, WINDOWS_ML, ExecutionProvider, Package
from winml_dag.ep.providers.tensorrt import INTEGERS

PROVIDER = NV_TENSORRT_RTX = ExecutionProvider(
    name="NvTensorRTRTXExecutionProvider",
    alias="nvtensorrtrtx",
    aliases=("nv_tensorrt_rtx",),
    devices=("gpu",),
    place=7,
    places={"gpu": 4},
    makes_ep_context=True,
    packages=(
        Package("onnxruntime-ep-nv-tensorrt-rtx-cu13", plugin="onnxruntime_ep_nv_tensorrt_rtx"),
        Package("onnxruntime-ep-nv-tensorrt-rtx-cu12", plugin="onnxruntime_ep_nv_tensorrt_rtx"),
        Package("onnxruntime-trt-rtx"),
        WINDOWS_ML,
    ),
    how_to_get="On a machine with an NVIDIA RTX GPU, install it with: pip install onnxruntime-ep-nv-tensorrt-rtx",
    ihv_type="NVIDIA",
    needs=(NVIDIA_DRIVER,),
    integers=INTEGERS,
)
