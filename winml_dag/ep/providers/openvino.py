"""Intel's OpenVINO: a build of onnxruntime, or a plugin that ignores most options."""

from __future__ import annotations

from collections.abc import Mapping

from winml_dag.ep.provider import SIGNED, WINDOWS_ML, ExecutionProvider, Integers, Option, Package

_IGNORED = "OpenVINO's plugin ignores it; what it means is set in a file that load_config names"
# The plugin logs which options of OpenVINO's build of onnxruntime it ignores, but not unknown ones; that build refuses
# those itself.
_PLUGIN: Mapping[str, Option] = {
    "load_config": Option(file=True),
    "reshape_input": Option(),
    "enable_causallm": Option(values=("true", "false", "1", "0")),
    **dict.fromkeys(
        (
            *("cache_dir", "device_id", "device_luid", "enable_opencl_throttling", "enable_qdq_optimizer"),
            *("model_priority", "num_of_threads", "num_streams", "precision"),
        ),
        Option(refusal=_IGNORED),
    ),
}


class _OpenVino(ExecutionProvider):
    def option_table(self, device: str) -> Mapping[str, Option] | None:
        return super().option_table(device) if self.takes_device_type() else _PLUGIN

    def takes_device_type(self) -> bool:
        """Return true for the build, which also supports more than devices, such as GPU.1 or AUTO:NPU,CPU.

        The plugin does not read the option: its device is selected among those that it offers.
        """
        from winml_dag.ep.availability import environment_of, package_of

        package = package_of(self, environment_of(self))
        return package is None or package.is_runtime

    def with_defaults(self, device: str, given: Mapping[str, str]) -> dict[str, str]:
        return {"device_type": device.upper(), **given} if self.takes_device_type() else dict(given)


PROVIDER = OPENVINO = _OpenVino(
    name="OpenVINOExecutionProvider",
    alias="openvino",
    aliases=("ov",),
    devices=("npu", "gpu", "cpu"),
    place=2,
    places={"npu": 2, "gpu": 1},
    makes_ep_context=True,
    packages=(
        Package("onnxruntime-openvino"),
        Package("onnxruntime-ep-openvino", plugin="onnxruntime_ep_openvino"),
        WINDOWS_ML,
    ),
    how_to_get="Install it with: pip install winml_dag[openvino]",
    ihv_type="Intel",
    file_options=frozenset({"load_config"}),
    integers=Integers(
        SIGNED,
        per_channel=True,
        # Cosine of all-MiniLM-L6-v2 in w8a8: 0.815 with 8 bits throughout, 0.988 with some at 16, still in one
        # partition
        mixes_widths=True,
        weight_symmetric=True,
        source="https://docs.openvino.ai/2024/openvino-workflow/model-optimization-guide/"
        "quantizing-models-post-training/basic-quantization-flow.html",
        reason="its own tools make symmetric int8 weights for each channel, and asymmetric activations",
    ),
)
