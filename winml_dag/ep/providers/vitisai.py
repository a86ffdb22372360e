"""AMD's VitisAI, for NPUs of Ryzen processors."""

from __future__ import annotations

from winml_dag.ep.provider import SIGNED, WINDOWS_ML, ExecutionProvider, Integers, Package

PROVIDER = VITISAI = ExecutionProvider(
    name="VitisAIExecutionProvider",
    alias="vitisai",
    aliases=("vitis",),
    devices=("npu",),
    place=3,
    places={"npu": 3},
    makes_ep_context=True,
    takes_onnx=False,
    fixed_shapes=True,
    packages=(Package("onnxruntime-vitisai"), WINDOWS_ML),
    how_to_get="It comes with AMD's Ryzen AI software for Windows, and with Windows ML (pip install windowsml); run "
    "this target on such a machine.",
    ihv_type="AMD",
    auto={"npu": ("fp32", "the provider quantizes")},
    integers=Integers(
        SIGNED,
        SIGNED,
        weight_symmetric=True,
        activation_symmetric=True,
        source="https://ryzenai.docs.amd.com/en/latest/",
        reason="signed and symmetric; without a quantized model it makes bfloat16 by itself",
    ),
)
