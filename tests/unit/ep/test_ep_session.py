"""What onnxruntime's errors come to in a message of ours."""

from __future__ import annotations

import pytest

from winml_dag.ep.session import reason

PYTHON_BINDING = (
    "/onnxruntime/onnxruntime/python/onnxruntime_pybind_state.cc:1053 std::shared_ptr<onnxruntime::Factory> "
    "onnxruntime::python::CreateExecutionProviderFactoryInstance(const onnxruntime::SessionOptions&, const "
    "std::string&) Invalid OpenVINO EP option: nonsense\n\n"
)
PLUGIN = (
    "/src/plugin_ep/ep_plugin_provider_interfaces.cc:71 virtual std::unique_ptr<X> Factory::Create(const Options&, "
    "const OrtLogger&) Error creating execution provider: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : no such device"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[ONNXRuntimeError] : 11 : EP_FAIL : Unhandled exception type: 1", "Unhandled exception type: 1"),
        (PYTHON_BINDING, "Invalid OpenVINO EP option: nonsense"),
        (PLUGIN, "no such device"),
        ("Load model from a/b.onnx:1 failed", "Load model from a/b.onnx:1 failed"),
        ("", "RuntimeError"),
        ("x" * 500, "x" * 400 + "..."),
    ],
)
def test_a_reason_is_what_was_said_without_sources_and_codes(text: str, said: str) -> None:
    assert reason(RuntimeError(text)) == said
