"""Execution providers: their names and options, what is installed, and which operators are quantized for the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from winml_dag.ep import provider
from winml_dag.ep.availability import Libraries, installed, libraries_of, require_installed, resolve_target
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.providers import tensorrt
from winml_dag.ep.providers.qnn import SOCS
from winml_dag.ep.registry import CPU, EXECUTION_PROVIDERS, QNN, Target, find_ep
from winml_dag.errors import UsageError

SPELLINGS = [(spelling, ep) for ep in EXECUTION_PROVIDERS for spelling in (ep.name, ep.alias, *ep.aliases)]


def test_provider_is_found_by_any_name_and_case():
    texts = [text.lower() for text, _ in SPELLINGS]
    assert len(texts) == len(set(texts))
    for text, ep in SPELLINGS:
        for change in (str.lower, str.upper, str.title):
            assert find_ep(change(text)) == ep
    with pytest.raises(UsageError, match="openvino") as caught:
        find_ep("openvin")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("ep", "device", "expected"),
    [
        (None, None, ("CPUExecutionProvider", "cpu")),
        (None, "auto", ("CPUExecutionProvider", "cpu")),
        ("auto", "auto", ("CPUExecutionProvider", "cpu")),
        (None, "cpu", ("CPUExecutionProvider", "cpu")),
        ("qnn", None, ("QNNExecutionProvider", "npu")),
        ("qnn", "auto", ("QNNExecutionProvider", "npu")),
        ("QNNExecutionProvider", "GPU", ("QNNExecutionProvider", "gpu")),
        (None, "qnn", ("QNNExecutionProvider", "npu")),
        ("qnn", "QNN", ("QNNExecutionProvider", "npu")),
        ("dml", None, ("DmlExecutionProvider", "gpu")),
        ("openvino", "cpu", ("OpenVINOExecutionProvider", "cpu")),
    ],
)
def test_target_is_resolved_from_provider_and_device(ep, device, expected):
    target = resolve_target(ep, device)
    assert (target.ep.name, target.device) == expected


def test_unsupported_or_unknown_device_is_refused():
    for ep, device in product(EXECUTION_PROVIDERS, ("npu", "gpu", "cpu")):
        if device in ep.devices:
            assert resolve_target(ep.alias, device).device == device
        else:
            with pytest.raises(UsageError, match=device):
                resolve_target(ep.alias, device)
    for alias, device in (("cpu", "qnn"), (None, "np"), ("qnn", "tpu")):
        with pytest.raises(UsageError):
            resolve_target(alias, device)


def test_missing_provider_is_refused_with_advice(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    require_installed(Target(CPU, "cpu"))
    for ep in EXECUTION_PROVIDERS:
        if ep != CPU:
            assert not installed(ep)
            with pytest.raises(UsageError) as caught:
                require_installed(Target(ep, ep.devices[0]))
            assert caught.value.advice.startswith(ep.how_to_get)
            assert f"{ep.alias}=FOLDER" in caught.value.advice


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Installs distributions, plug-ins (names without a version) and system libraries where they are searched for."""
    site, system = tmp_path / "site", tmp_path / "system"
    site.mkdir()
    system.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(provider, "_LOADER_CACHE", tmp_path / "ld.so.cache")
    for variable in ("LD_LIBRARY_PATH", "PATH"):
        monkeypatch.setenv(variable, str(system))
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path))

    def put(*names):
        for name in names:
            if name.startswith("onnxruntime_") and "-" not in name:
                (site / name).mkdir()
                (site / name / "__init__.py").touch()
            elif name.endswith(".dist-info"):
                (site / name).mkdir()
            else:
                (system / name).touch()

    return put


BUILD = ("onnxruntime_gpu-1.31.1.dist-info",)
DRIVER = ("libcuda.so.1", "nvcuda.dll")
SDK = ("libnvinfer.so.10", "nvinfer_10.dll")
AMD = ("onnxruntime_migraphx-1.31.1.dist-info", "libamdhip64.so.6", "amdhip64_6.dll")


@pytest.mark.parametrize(
    ("there", "alias"),
    [
        (BUILD + DRIVER, "cuda"),
        ((*BUILD, *DRIVER, "libnvinfer_plugin.so.10"), "cuda"),
        (BUILD + DRIVER + SDK, "tensorrt"),
        (BUILD, "cuda"),
        (BUILD + SDK, "tensorrt"),
        ((*BUILD, *DRIVER, "onnxruntime_ep_nv_tensorrt_rtx"), "nvtensorrtrtx"),
        ((*BUILD, *DRIVER, "onnxruntime_qnn"), "cuda"),
        (("onnxruntime_qnn", *DRIVER), "qnn"),
        (("onnxruntime_ep_openvino", *BUILD), "openvino"),
        ((*AMD, "onnxruntime_qnn"), "migraphx"),
    ],
)
def test_device_alone_selects_provider_with_its_libraries(packages, there, alias):
    packages(*there)
    target = resolve_target(None, "gpu")
    assert (target.ep.alias, target.device, target.is_open) == (alias, "gpu", False)


@pytest.mark.skipif(sys.platform == "win32", reason="ldconfig is of Linux")
@pytest.mark.usefixtures("packages")
def test_library_in_ldconfig_cache_is_found(tmp_path):
    (tmp_path / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib/libcuda.so.1\0")
    assert provider.NVIDIA_DRIVER.is_there()
    assert not tensorrt.SDK.is_there()


@pytest.mark.usefixtures("packages")
def test_device_without_installed_provider_lists_candidates():
    target = resolve_target(None, "gpu")
    assert target.is_open
    with pytest.raises(UsageError, match="No execution provider that drives the gpu is installed here") as caught:
        require_installed(target)
    for alias in ("openvino", "migraphx", "tensorrt", "nvtensorrtrtx", "cuda", "qnn", "dml"):
        assert f"{alias}: {find_ep(alias).how_to_get.rstrip('.')}" in caught.value.advice


def test_provider_libraries_are_found_in_name_order(monkeypatch, tmp_path):
    package = tmp_path / "onnxruntime_qnn"
    runtime = tmp_path / "onnxruntime" / "capi"
    for folder in (package / "libs", runtime):
        folder.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    for name in ("__init__.py", "libQnnHtp.so", "QnnHtp.dll", "libs/libA.so.1.7", "LICENSE"):
        (package / name).write_bytes(b"")
    for name in ("libonnxruntime.so.1.31.1", "onnxruntime_providers_cuda.dll", "build_info.py"):
        (runtime / name).write_bytes(b"")
    (tmp_path / "onnxruntime_gpu-1.31.1.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "missing"), str(tmp_path)])

    assert installed(QNN)
    assert installed(find_ep("cuda"))
    assert not installed(find_ep("dml"))
    assert libraries_of(QNN, None).names() == ["QnnHtp.dll", "libQnnHtp.so", "libs/libA.so.1.7"]
    assert libraries_of(QNN, None).folders == (package, package / "libs")
    # A provider built into onnxruntime comes with that build's libraries.
    assert libraries_of(find_ep("cuda"), None).names() == ["libonnxruntime.so.1.31.1", "onnxruntime_providers_cuda.dll"]
    assert libraries_of(find_ep("dml"), None) == Libraries()


def test_resolving_targets_imports_no_runtime():
    code = (
        "import sys\n"
        "from winml_dag.ep import availability, provider\n"
        "import winml_dag.stages.compile, winml_dag.stages.validate\n"
        "target = availability.resolve_target('qnn', None)\n"
        "provider.complete_options(target, {})\n"
        "availability.installed(target.ep)\n"
        "availability.libraries_of(target.ep, availability.environment_of(target.ep))\n"
        "heavy = {'onnxruntime', 'onnxruntime_qnn', 'onnx', 'numpy', 'importlib.metadata', 'tomllib', 'platformdirs'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NPU = resolve_target("qnn", "npu")
GPU = resolve_target("qnn", "gpu")


@given(st.sampled_from(SOCS), st.booleans(), st.booleans())
def test_soc_model_is_always_set_and_matches_htp_arch(soc, say_model, say_arch):
    given_options = {}
    if say_model:
        given_options["soc_model"] = soc.model
    if say_arch:
        given_options["htp_arch"] = soc.htp_arch
    options = complete_options(NPU, given_options)
    assert options["htp_graph_finalization_optimization_mode"] == "3"
    assert {**options, **given_options} == options
    found = next(known for known in SOCS if known.model == options["soc_model"])
    assert options["htp_arch"] == found.htp_arch


def test_default_npu_is_snapdragon_x_elite_and_unknown_soc_has_no_arch():
    options = complete_options(NPU, {})
    assert (options["soc_model"], options["htp_arch"]) == ("60", "73")
    newer = complete_options(NPU, {"soc_model": "99999"})
    assert (newer["soc_model"], newer.get("htp_arch")) == ("99999", None)
    assert complete_options(GPU, {}) == {}


@given(st.data())
def test_completing_options_is_idempotent(data):
    table = QNN.option_table("npu")
    names = [name for name, option in table.items() if option.values and not option.refusal and name != "htp_arch"]
    name = data.draw(st.sampled_from(names))
    once = complete_options(NPU, {name: data.draw(st.sampled_from(table[name].values))})
    assert complete_options(NPU, once) == once


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"htp_archh": "73"}, "htp_arch"),
        ({"banana": "1"}, "no provider option"),
        ({"htp_arch": "12"}, "htp_arch"),
        ({"htp_performance_mode": "bursts"}, "burst"),
        ({"vtcm_mb": "-3"}, "above 0"),
        ({"soc_model": "abc"}, "above 0"),
        ({"soc_model": "60,88"}, "above 0"),
        ({"soc_model": "0"}, "above 0"),
        ({"enable_htp_fp16_precision": "yes"}, "enable_htp_fp16_precision"),
        ({"backend_path": "libQnnHtp.so"}, "Remove it"),
        ({"profiling_level": "basic"}, "Remove it"),
        ({"device_type": "GPU"}, "contradicts"),
        ({"soc_model": "60", "htp_arch": "75"}, "Snapdragon X Elite"),
    ],
)
def test_option_that_qnn_would_ignore_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        complete_options(NPU, options)


def test_npu_options_are_refused_for_other_devices():
    with pytest.raises(UsageError, match="for the npu"):
        complete_options(GPU, {"htp_arch": "73"})
    with pytest.raises(UsageError, match="no provider options"):
        complete_options(resolve_target("cpu", None), {"a": "b"})
    assert (QNN.file_options, find_ep("cpu").file_options) == ({"op_affinity"}, frozenset())


def test_device_type_option_is_accepted_and_set_for_openvino():
    assert "device_type" not in complete_options(NPU, {"device_type": "NPU"})
    assert complete_options(resolve_target("openvino", "gpu"), {}) == {"device_type": "GPU"}


def test_run_time_options_do_not_affect_compile_options():
    quiet = compile_options(NPU, complete_options(NPU, {"htp_performance_mode": "power_saver"}))
    assert quiet == compile_options(NPU, complete_options(NPU, {"rpc_control_latency": "100"}))
    assert quiet != compile_options(NPU, complete_options(NPU, {"vtcm_mb": "4"}))


def test_option_that_openvino_plugin_ignores_is_refused(tmp_path, monkeypatch):
    (tmp_path / "onnxruntime_ep_openvino").mkdir()
    (tmp_path / "onnxruntime_ep_openvino" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    plugin = resolve_target("openvino", "gpu")
    taken = {"load_config": "x.json"}
    assert complete_options(plugin, {**taken, "device_type": "GPU"}) == taken
    for name in ("precision", "num_of_threads", "cache_dir"):
        with pytest.raises(UsageError, match=f"'{name}' cannot be set: OpenVINO's plugin ignores it.* load_config"):
            complete_options(plugin, {name: "1"})
    with pytest.raises(UsageError, match="no provider option 'nonsense'"):
        complete_options(plugin, {"nonsense": "1"})
    with pytest.raises(UsageError, match="contradicts device 'gpu'"):
        complete_options(plugin, {"device_type": "AUTO:GPU,CPU"})


# Operators that are quantized for the CPU by default: onnxruntime has integer kernels for them, or they move bytes.


OPERATORS = CPU.integers.operators
QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Sample:
    """Shapes of the quantized inputs; weights (also quantized) and constants of the inputs after them; attributes."""

    shapes: tuple[tuple[int, ...], ...] = ((4, 8),)
    weights: tuple[tuple[int, ...], ...] = ()
    constants: tuple[Any, ...] = ()
    attributes: str = ""
    first: bool = False
    outputs: int = 1


IMAGE = (1, 8, 8, 8)
SAMPLES: Mapping[str, Sample] = {
    "Add": Sample(((4, 8), (4, 8))),
    "ArgMax": Sample(),
    "AveragePool": Sample((IMAGE,), attributes="<kernel_shape = [2, 2]>"),
    "Concat": Sample(((4, 8), (4, 8)), attributes="<axis = 0>"),
    "Conv": Sample((IMAGE,), ((8, 8, 3, 3),)),
    "DepthToSpace": Sample((IMAGE,), attributes="<blocksize = 2>"),
    "Expand": Sample(((1, 8),), constants=([4, 8],)),
    "Flatten": Sample((IMAGE,)),
    "Gather": Sample(constants=([0, 2],)),
    "GatherElements": Sample(constants=([[0, 2]],)),
    "Gemm": Sample(weights=((8, 8),)),
    "GlobalAveragePool": Sample((IMAGE,)),
    "LeakyRelu": Sample(),
    "MatMul": Sample(weights=((8, 8),)),
    "MaxPool": Sample((IMAGE,), attributes="<kernel_shape = [2, 2]>"),
    "Mul": Sample(((4, 8), (4, 8))),
    "Reshape": Sample(constants=([8, 4],)),
    "Resize": Sample(
        (IMAGE,),
        constants=(None, np.array([1, 1, 2, 2], np.float32)),
        attributes='<mode = "nearest", coordinate_transformation_mode = "asymmetric">',
    ),
    "Sigmoid": Sample(),
    "Slice": Sample(constants=([0], [2], [0])),
    "Softmax": Sample(),
    "Split": Sample(attributes="<axis = 0, num_outputs = 2>", outputs=2),
    "Squeeze": Sample(((1, 4, 8),), constants=([0],)),
    "Tile": Sample(constants=([1, 2],)),
    "Transpose": Sample(attributes="<perm = [1, 0]>"),
    "Unsqueeze": Sample(constants=([0],)),
    "Where": Sample(((4, 8), (4, 8)), constants=([True, False] * 4,), first=True),
    # Without an integer kernel.
    "BatchNormalization": Sample((IMAGE,), constants=tuple(np.ones(8, np.float32) for _ in range(4))),
    "ConvTranspose": Sample((IMAGE,), ((8, 8, 3, 3),)),
    "Div": Sample(((4, 8), (4, 8))),
    "Erf": Sample(),
    "HardSigmoid": Sample(),
    "LayerNormalization": Sample(weights=((8,),)),
    "Pow": Sample(((4, 8), (4, 8))),
    "ReduceMean": Sample(constants=([1],)),
    "Sqrt": Sample(),
}
FLOAT_ONLY = {"BatchNormalization", "Div", "Erf", "HardSigmoid", "Pow", "ReduceMean", "Sqrt"}
SLOWER = {"AveragePool", "Softmax"}
# Useful for reasons other than kernels.
OTHERWISE = {"Clip", "Relu", "ConvTranspose", "LayerNormalization"}


def quantized_model(op_type: str, dtype: type[np.unsignedinteger[Any]]) -> onnx.ModelProto:
    """Return the operator alone, with all inputs and outputs between Q and DQ."""
    sample = SAMPLES[op_type]
    middle = np.iinfo(dtype).max // 2 + 1
    tensors: dict[str, Any] = {"scale": np.float32(4 / middle), "zero": dtype(middle)}

    def converted(source: str, made: str) -> str:
        return f"{made}q = QuantizeLinear({source}, scale, zero) {made} = DequantizeLinear({made}q, scale, zero) "

    places = range(len(sample.shapes))
    text = "".join(converted(f"x{place}", f"i{place}") for place in places)
    for place, shape in enumerate(sample.weights):
        tensors[f"w{place}q"] = np.random.default_rng(place).integers(0, 2 * middle, shape).astype(dtype)
        text += f"w{place} = DequantizeLinear(w{place}q, scale, zero) "
    given = [*(f"i{place}" for place in places), *(f"w{place}" for place in range(len(sample.weights)))]
    constants = {f"c{place}": value for place, value in enumerate(sample.constants)}
    fixed = ["" if value is None else name for name, value in constants.items()]
    tensors |= {name: value for name, value in constants.items() if value is not None}
    results = [f"r{place}" for place in range(sample.outputs)]
    read = ", ".join([*fixed, *given] if sample.first else [*given, *fixed])
    text += f"{', '.join(results)} = {op_type} {sample.attributes} ({read}) "
    outputs = ["int64[] r0"]
    if op_type != "ArgMax":
        text += "".join(converted(name, f"{name}d") for name in results)
        outputs = [f"float[] {name}d" for name in results]
    inputs = ", ".join(f"float{list(shape)} x{place}" for place, shape in enumerate(sample.shapes))
    header = '<ir_version: 10, opset_import: ["": 21]>'
    model = onnx.parser.parse_model(f"{header} g ({inputs}) => ({', '.join(outputs)}) {{ {text} }}")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in tensors.items())
    return model


def runs_on_integers(op_type: str, dtype: type[np.unsignedinteger[Any]], folder: Path) -> bool:
    """Return whether onnxruntime's highest optimization level leaves no float form of the operator."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(
        quantized_model(op_type, dtype).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    graph = onnx.load(folder / "optimized.onnx").graph
    dequantized = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return not any(name in dequantized for node in graph.node if node.op_type not in QDQ for name in node.input)


@pytest.mark.parametrize("op_type", sorted(SAMPLES.keys() - FLOAT_ONLY - OTHERWISE))
def test_8_bit_operator_runs_on_integers(op_type: str, tmp_path: Path) -> None:
    assert runs_on_integers(op_type, np.uint8, tmp_path)
    assert (op_type in OPERATORS[8]) == (op_type not in SLOWER)


@pytest.mark.parametrize("op_type", sorted(FLOAT_ONLY))
def test_float_only_operator_is_not_quantized(op_type: str, tmp_path: Path) -> None:
    assert not runs_on_integers(op_type, np.uint8, tmp_path)
    assert op_type not in OPERATORS[8]


def test_every_8_bit_operator_has_sample_or_exception() -> None:
    assert set(OPERATORS[8]) <= SAMPLES.keys() | OTHERWISE


@pytest.mark.parametrize("op_type", ["Add", "Conv", "Gemm", "MatMul", "MaxPool", "Mul", "Sigmoid"])
def test_16_bit_operator_has_no_integer_kernel(op_type: str, tmp_path: Path) -> None:
    assert not runs_on_integers(op_type, np.uint16, tmp_path)
