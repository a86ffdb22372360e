"""What a build reports on a quantization and a compilation: lines for people, JSON for programs, the manifest."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_builds import build_tiny, save_model

from winml_dag.canonical import JsonObject
from winml_dag.cli.buildreport import builds_json, print_result
from winml_dag.cli.options import How
from winml_dag.cli.stage_lines import compiled_lines
from winml_dag.ep.registry import QNN
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.request import Overrides, RemoteOptions, Request
from winml_dag.pipeline.stageresults import QuantizeResult
from winml_dag.stages.quality import Quality, what_to_try

MIB = 2**20
QUANTIZE: JsonObject = {
    "mode": "static",
    "weight_type": "uint8",
    "activation_type": "uint16",
    "nodes_quantized": 49,
    "nodes_skipped": 12,
    "nodes_skipped_reasons": {
        "Softmax": {"excluded by quant.nodes_to_exclude": 6},
        "Gelu": {"no rule for this operator": 3, "excluded by quant.nodes_to_exclude": 1},
        "Clip": {"no rule for this operator": 2},
    },
    "qdq_insertion_time_seconds": 0.84,
    "postproc_time_seconds": 0.25,
    "size_before_bytes": 86 * MIB,
    "size_after_bytes": 22 * MIB,
}
CALIBRATE: JsonObject = {"data": "text", "samples": 32, "calibration_time_seconds": 1.23}
QUALITY = Quality("logits", 0.99941, 0.99812, 31.2, 0.02, 24, 24, 3, "text", held_out=True)


def built(
    precision: str = "w8a16",
    *,
    measured: dict[str, JsonObject] | None = None,
    fails: dict[str, str] | None = None,
    **quant: Any,
) -> BuildResult:
    """Return a build whose stages have the metrics *measured* in addition to the default ones."""
    save_model(Path("tiny.onnx"))
    metrics = {"quantize": QUANTIZE, "calibrate": CALIBRATE, "validate": {"quality": QUALITY.to_json()}}
    overrides = Overrides(
        onnx=Path("tiny.onnx"), ep="cpu", precision=precision, settings={"quant": quant}, analyze=False
    )
    return build_tiny(Request(None, overrides, Path("out")), metrics=metrics | (measured or {}), fails=fails)


def lines(result: BuildResult, capsys: pytest.CaptureFixture[str], *, quiet: bool = False) -> list[str]:
    capsys.readouterr()
    print_result(result, How(Path("cache"), RemoteOptions(), quiet=quiet))
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note: ")]


def done(result: BuildResult) -> QuantizeResult:
    found = result.quantization
    assert found is not None
    return found


def test_build_prints_quantization_and_quality_lines(capsys: pytest.CaptureFixture[str]) -> None:
    quantized, quality, last = lines(built(), capsys)
    assert quantized == (
        "quantized 49 of 61 nodes (left in float: 6 Softmax, 4 Gelu, 2 Clip), 86.0 MiB -> 22.0 MiB,"
        " calibration 1.2 s on 32 samples (text), Q/DQ in 0.8 s"
    )
    assert quality == (
        "quality: cosine 0.99941, SQNR 31.2 dB, largest error 0.02 (logits), top-1 24 of 24,"
        " on 3 held-out samples (text)"
    )
    assert last.startswith("Built ")


def test_activations_kept_at_16_bits_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    spared = {"quantize": {**QUANTIZE, "equalized_tensors": 7, "activations_kept_at_16_bits": 36}}
    result = built("w8a8", measured=spared)
    assert "Clip), 36 activations kept at 16 bits, 86.0 MiB" in lines(result, capsys)[0]
    (step,) = done(result).steps
    assert (step.equalized_tensors, step.activations_kept_at_16_bits) == (7, 36)


def test_chained_quantization_prints_one_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = {**QUANTIZE, "mode": "rtn", "nodes_quantized": 5, "nodes_skipped": 56, "qdq_insertion_time_seconds": 0}
    half = {**blocks, "mode": "fp16", "nodes_quantized": 60, "nodes_skipped": 1, "nodes_skipped_reasons": {}}
    half |= {"size_before_bytes": 22 * MIB, "size_after_bytes": 20 * MIB}
    result = built("w4a16", measured={"quantize": blocks, "quantize.1": half})
    first, second = lines(result, capsys)[:2]
    assert re.fullmatch(r"quantized 5 of 61 nodes \(left .*\), 86.0 MiB -> 22.0 MiB, rtn in \d+\.\d s", first)
    assert re.fullmatch(r"quantized 60 of 61 nodes, 22.0 MiB -> 20.0 MiB, fp16 in \d+\.\d s", second)
    found = done(result)
    assert [step.id for step in found.steps] == ["quantize", "quantize.1"]
    assert (found.size_before_bytes, found.size_after_bytes) == (86 * MIB, 20 * MIB)
    assert (found.nodes_quantized, found.nodes_skipped, found.nodes_skipped_reasons) == (60, 1, {})
    assert found.postproc_time_seconds == 0.5
    assert found.calibration is None


def test_reused_calibration_is_marked_as_reused(capsys: pytest.CaptureFixture[str]) -> None:
    built("w8a16")
    result = built("w8a8", measured={"quantize": {**QUANTIZE, "nodes_skipped": 0, "nodes_skipped_reasons": {}}})
    quantized = lines(result, capsys)[0]
    assert quantized.startswith("quantized 49 of 49 nodes, ")
    assert "on 32 samples (text) (reused), Q/DQ in 0.8 s" in quantized
    calibration = done(result).calibration
    assert calibration is not None
    assert (calibration.cached, done(result).cached) == (True, False)


def test_quiet_and_up_to_date_builds_print_no_quantization(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line[:6] for line in lines(built(), capsys, quiet=True)] == ["Built "]
    assert [line[:10] for line in lines(built(), capsys)] == ["Up to date"]


def test_float_model_has_no_quality_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = built("fp32")
    assert result.quantization is None
    assert [line[:6] for line in lines(result, capsys)] == ["Built "]
    assert json.loads(Path("out/build_manifest.json").read_text())["quality"] is None


def test_poor_quality_is_warned_with_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    poor = Quality("hidden", 0.87, None, 6.0, 1.2, None, None, 3, "random", held_out=True)
    measured: dict[str, JsonObject] = {
        "validate": {"quality": poor.to_json()},
        "calibrate": {**CALIBRATE, "data": "random"},
    }
    result = built("w8a8", measured=measured)
    quality, warning = lines(result, capsys)[1:3]
    assert quality == "quality: cosine 0.87000, SQNR 6.0 dB, largest error 1.2 (hidden), on 3 random samples"
    assert warning.startswith("warning: The quality is poor: cosine 0.87000, where w8a8 usually has 0.95 and more.")
    assert "real data (quant.calibration_data)" in warning
    assert "precision w8a16" in warning
    assert "--sensitivity" in warning
    assert done(result).poor
    assert warning.removeprefix("warning: ") in done(result).warnings
    assert json.loads(Path("out/build_manifest.json").read_text())["quality"] == {**poor.to_json(), "poor": True}


def test_json_and_manifest_include_winml_cli_quantization_fields() -> None:
    (value,) = json.loads(json.dumps(builds_json([built()], 1.0)))["builds"]
    found: dict[str, Any] = value["quantization"]
    assert found.keys() >= {
        *("success", "output_path", "calibration_path", "calibration_time_seconds", "qdq_insertion_time_seconds"),
        *("postproc_time_seconds", "total_time_seconds", "nodes_quantized", "nodes_skipped", "errors", "warnings"),
    }
    assert (found["success"], found["output_path"]) == (True, str(Path("out/model.onnx")))
    assert (found["nodes_quantized"], found["nodes_skipped"]) == (49, 12)
    assert (found["qdq_insertion_time_seconds"], found["postproc_time_seconds"]) == (0.84, 0.25)
    assert found["calibration_time_seconds"] == 1.23
    assert found["quality"] == QUALITY.to_json()
    assert (found["cached"], found["poor"], found["errors"]) == (False, False, [])
    stages = {stage["stage"]: stage for stage in value["stages"]}
    assert stages["quantize"]["metrics"] == QUANTIZE
    manifest = json.loads(Path("out/build_manifest.json").read_text())
    assert manifest["quality"] == {**QUALITY.to_json(), "poor": False}
    (stage,) = (stage for stage in manifest["stages"] if stage["name"] == "quantize")
    expected = {name: value for name, value in QUANTIZE.items() if name != "mode"}
    assert {name: stage[name] for name in expected} == expected
    assert stage["calibration_time_seconds"] == 1.23
    assert stage["metrics"] == {"mode": "static"}
    assert done(built()).cached


def test_plan_json_has_no_quantization(tells) -> None:
    save_model(Path("tiny.onnx"))
    (value,) = tells("plan", "--onnx", "tiny.onnx", "-p", "w8a16", "--no-analyze")["builds"]
    assert "quantization" not in value


def test_saved_calibration_path_is_reported() -> None:
    assert done(built()).calibration_path is None
    assert done(built(save_calibration=True)).calibration_path == Path("out/calibration_ranges.json")
    saved = done(built(calibration_save_path="ranges/tiny.json")).calibration_path
    assert saved is not None
    assert saved.samefile("ranges/tiny.json")


def test_failed_quantization_reports_its_error() -> None:
    result = done(built(fails={"quantize": "No node of the model could be quantized."}))
    assert (result.success, result.output_path, result.steps) == (False, None, ())
    assert result.errors == ("quantize: No node of the model could be quantized.",)


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({}, "on 3 held-out samples (text)"),
        ({"samples": 1}, "on 1 held-out sample (text)"),
        ({"data": "random"}, "on 3 random samples"),
        ({"samples": 1, "held_out": False}, "on 1 sample (text) that calibration has seen too"),
        ({"held_out": None}, "on 3 samples (text) that calibration may have seen"),
        ({"sqnr_db": None, "top1_of": None}, "largest error 0.02 (logits), on 3 held-out samples (text)"),
    ],
)
def test_quality_sentence_names_sample_count_and_data(change: dict[str, Any], end: str) -> None:
    assert Quality(**{**QUALITY.to_json(), **change}).sentence().endswith(end)


def test_top1_shortfall_needs_enough_real_samples() -> None:
    changed = {"top1_agreed": 20, "top1_of": 24}
    quality = Quality(**{**QUALITY.to_json(), **changed})
    assert quality.shortfall("w8a16") == "the best class is another one in 4 of 24 decisions"
    assert Quality(**{**quality.to_json(), "data": "random"}).shortfall("w8a16") is None
    assert Quality(**{**quality.to_json(), "top1_agreed": 2, "top1_of": 3}).shortfall("w8a16") is None
    assert QUALITY.shortfall("w8a16") is None


def test_suggestions_depend_on_precision_and_data() -> None:
    assert what_to_try("w8a8", calibrated_on="text", measured_on="text") == (
        "To try: use the precision w8a16; leave the worst nodes in float (winml-dag quantize --sensitivity ranks them)."
    )
    assert what_to_try("dynamic", calibrated_on=None, measured_on="text") == "To try: use the precision fp16."
    assert what_to_try("dynamic", calibrated_on=None, measured_on="random") == (
        "To try: measure on real data (quant.calibration_data); use the precision fp16."
    )
    assert what_to_try("fp16", calibrated_on=None, measured_on="npz") == ""


@pytest.mark.parametrize(
    "value", [None, {}, {"output": "logits"}, *({**QUALITY.to_json(), name: True} for name in ("cosine", "samples"))]
)
def test_invalid_quality_record_is_ignored(value: Any) -> None:
    assert Quality.from_json(value) is None
    assert Quality.from_json(QUALITY.to_json()) == QUALITY


ON_QNN: JsonObject = {
    "execution_provider": "QNNExecutionProvider",
    "device": "npu",
    "reference": True,
    "data": "text",
    "samples": 3,
    "quality": QUALITY.to_json(),
}


def test_validated_float_model_prints_validation_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = lines(built("fp32", measured={"validate": ON_QNN}), capsys)
    assert told[0].startswith("validated on QNNExecutionProvider npu: cosine 0.99941, SQNR 31.2 dB")
    assert not any(line.startswith("validated") for line in lines(built(measured={"validate": ON_QNN}), capsys))


def test_validation_without_reference_reports_that_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    alone = {name: value for name, value in ON_QNN.items() if name != "quality"} | {"reference": False}
    told = lines(built("fp32", measured={"validate": alone}), capsys)
    assert told[0].endswith("it loads, runs and returns finite values on 3 samples (text) and on ones")


def test_validation_warnings_appear_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"quality": QUALITY.to_json(), "warnings": ["Output 'logits' of the reference itself has 3 NaN."]}
    result = built(measured={"validate": odd})
    assert "warning: Output 'logits' of the reference itself has 3 NaN." in lines(result, capsys)
    assert done(result).warnings[-1] == "Output 'logits' of the reference itself has 3 NaN."
    assert not done(result).poor


# Of a compilation

COMPILED: JsonObject = {
    "ep_context_partitions": 1,
    "nodes_on_cpu": {},
    "cpu_nodes": [],
    "edge_quantization_nodes": 2,
    "ep_sdk_version": "v2.51.0.260929181845",
    "ep_compatibility_info": "v2:6:2.51.0:5.51.0:73:60:0:0",
    "binary_size_bytes": 24_956_108,
    "compile_time_seconds": 1.07,
}
LEFT = [
    {"name": "q", "op_type": "QuantizeLinear"},
    {"name": "/a", "op_type": "Gather"},
    {"name": "/b", "op_type": "Cast"},
    {"name": "/c", "op_type": "Gather"},
]
PARTED: JsonObject = {
    **COMPILED,
    "ep_context_partitions": 3,
    "nodes_on_cpu": {"Cast": 1, "Gather": 2, "QuantizeLinear": 1},
    "cpu_nodes": LEFT,
}


@pytest.fixture
def compiled() -> Callable[[JsonObject], BuildResult]:
    pytest.importorskip("onnxruntime_qnn", reason="a plan for QNN needs onnxruntime-qnn")

    def compiled(measured: JsonObject) -> BuildResult:
        model = save_model(Path("tiny.onnx"))
        request = Request(None, Overrides(onnx=model, ep="qnn", precision="fp32"), Path("out"))
        return build_tiny(request, metrics={"compile": measured})

    return compiled


def test_compilation_line_lists_partitions_and_cpu_nodes(
    compiled: Callable[[JsonObject], BuildResult],
) -> None:
    assert list(compiled_lines(compiled(COMPILED))) == [
        f"compiled for {QNN.name} npu: 1 partition, nothing on the CPU, 23.8 MiB binary, SDK 2.51.0, 1.1 s"
    ]
    shutil.rmtree("cache")
    result = compiled(PARTED)
    first, second = compiled_lines(result)
    assert "3 partitions, 4 nodes on the CPU, " in first
    assert second == "on the CPU: 2 Gather, 1 Cast, 1 QuantizeLinear (/a, /b, /c, ...)", "what computes comes first"
    told: dict[str, Any] = json.loads(json.dumps(builds_json([result], 0.0)))["builds"][0]["compilation"]
    assert {name: told[name] for name in PARTED} == PARTED
    assert (told["execution_provider"], told["device"], told["cached"]) == (QNN.name, "npu", False)
    manifest = json.loads(Path("out/build_manifest.json").read_text())
    stage = next(stage for stage in manifest["stages"] if stage["name"] == "compile")
    assert {name: stage[name] for name in PARTED} == PARTED
