from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from analysis_samples import ABOUT, FAILS, LEFT, TAKEN, Analyzed, analyze, cases_of, table
from optimize_samples import graph, optimize

from winml_dag.canonical import canonical_json
from winml_dag.ep.availability import installed, resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import QNN as QNN_EP
from winml_dag.ep.support import Case, Level, Outcome
from winml_dag.pipeline.stageconfigs import analyze_target
from winml_dag.stages.analyze import ASKED_ABOUT, AnalyzeConfig, AnalyzeFields, AnalyzeTarget, QuantizedTo
from winml_dag.stages.analyze.analysis import FUSIONS
from winml_dag.stages.analyze.ask import ask
from winml_dag.stages.analyze.judging import as_quantized

QNN = AnalyzeConfig(target=AnalyzeTarget("QNNExecutionProvider", "npu", standard_domain_only=True))
ON_CPU = AnalyzeConfig(target=AnalyzeTarget(asks=True))
NOTHING = b"{}"

# With tanh: onnxruntime's basic level fuses the exact form itself from opset 20 on.
GELU_TEXT = (
    "g (float[2, 4] x) => (float[2, 4] y) <float three = {3}, float bend = {0.044715}, float steep = {0.7978846}, "
    "float one = {1}, float half = {0.5}> "
    "{ p = Pow(x, three) q = Mul(p, bend) s = Add(x, q) t = Mul(s, steep) f = Tanh(t) a = Add(f, one) h = Mul(x, half) "
    "y = Mul(h, a) }"
)
GELU = graph(GELU_TEXT, 20)


def _gelu_case(model: onnx.ModelProto) -> Case:
    mul = cases_of(model)[-1]
    return replace(mul, op_type="Gelu", inputs=mul.inputs[:1], attributes=(("approximate", "tanh"),))


@pytest.fixture(scope="module")
def helps() -> bytes:
    """Return a table in which Tanh is left to the CPU and Gelu is supported."""
    rows = [(case, LEFT if case.op_type == "Tanh" else TAKEN) for case in cases_of(GELU)]
    return table([*rows, (_gelu_case(GELU), TAKEN)])


def _actions(analyzed: Analyzed, pattern: str = "SUBGRAPH/GeluPattern") -> Any:
    (found,) = [each for each in analyzed.result["results"][0]["information"] if each["pattern_id"] == pattern]
    return found["actions"]


def test_analysis_result_has_expected_fields_without_time_or_path(helps: bytes) -> None:
    model = graph(GELU_TEXT, 20)
    model.producer_name = "Model Maker"
    result, again = (analyze(model, QNN, helps).result for _ in range(2))
    assert result == again, "wherever it is made"
    assert tempfile.gettempdir() not in str(result)
    assert result["analysis_timestamp"] is None
    assert result["metadata"] == {
        "model_path": "model.onnx",
        "opset_version": 20,
        "producer_name": "Model Maker",
        "producer_version": "",
        "total_operators": 8,
        "operator_counts": {"Pow": 1, "Mul": 4, "Add": 2, "Tanh": 1},
        "unique_operator_types": 4,
        "detected_pattern_count": {"SUBGRAPH/GeluPattern": 1},
    }
    (target,) = result["results"]
    assert {name: target[name] for name in target if name not in ("information", "classification")} == {
        "ihv_type": "QC",
        "ep_type": "QNNExecutionProvider",
        "device_type": "npu",
        "ep_version": ABOUT.ep_version,
        "driver_version": None,
        "runtime_support": False,
        "has_errors": False,
        "has_warnings": True,
    }
    assert target["classification"]["partial"] == ["OP/ai.onnx/Tanh"]
    assert target["classification"]["unknown"] == []
    assert result["lint"]["passed"] is True


def test_operator_verdict_is_that_of_its_worst_node() -> None:
    model = graph("g (float[2, 4] x, int64[2] i) => (float[2, 4] y, int64[2] z) { y = Neg(x) z = Neg(i) }")
    plain, whole = cases_of(model)
    for outcome, verdict in ((LEFT, "partial"), (FAILS, "unsupported"), (TAKEN, "supported")):
        found = analyze(model, QNN, table([(plain, TAKEN), (whole, outcome)]))
        assert found.result["results"][0]["classification"][verdict] == ["OP/ai.onnx/Neg"]
        assert found.result["results"][0]["has_errors"] == (verdict == "unsupported")
    half = analyze(model, QNN, table([(plain, TAKEN)]))
    assert half.metrics["nodes"]["supported"] == half.metrics["nodes"]["unknown"] == 1
    assert half.result["results"][0]["classification"]["unknown"] == ["OP/ai.onnx/Neg"]


def test_better_supported_rewrite_is_proposed(tmp_path: Path, helps: bytes) -> None:
    found = analyze(GELU, QNN, helps, flags=NOTHING)
    assert found.metrics["proposed"].keys() == {"gelu_fusion"}
    assert found.flags == canonical_json({"gelu_fusion": True, "standard_domain_only": True}).encode()
    (action,) = _actions(found)
    assert (action["level"], action["status"], action["enabled"]) == ("optional", "supported", True)
    assert (action["pattern_from_id"], action["pattern_to_id"]) == ("SUBGRAPH/GeluPattern", "OP/ai.onnx/Gelu")
    assert action["action_items"] == [{"type": "optimize", "optimization_options": {"gelu_fusion": True}}]
    better = optimize(tmp_path / "o", GELU, *found.metrics["proposed"], standard_domain_only=True)
    again = analyze(better.model, QNN, helps, flags=found.flags)
    assert again.metrics["nodes"] == {"supported": 1, "partial": 0, "unsupported": 0, "unknown": 0}
    assert again.flags == found.flags
    # A pattern that does not run at all makes its capability required.
    rows = [(case, FAILS if case.op_type == "Tanh" else TAKEN) for case in cases_of(GELU)]
    (action,) = _actions(analyze(GELU, QNN, table([*rows, (_gelu_case(GELU), LEFT)])))
    assert (action["level"], action["status"]) == ("required", "partial")


@pytest.mark.parametrize(
    ("now", "fused"),
    [(TAKEN, TAKEN), (TAKEN, None), (LEFT, LEFT), (LEFT, FAILS), (FAILS, None), (FAILS, FAILS), (None, TAKEN)],
)
def test_rewrite_without_known_gain_is_not_proposed(now: Outcome | None, fused: Outcome | None) -> None:
    rows = []
    if now is not None:
        rows = [(case, now if case.op_type == "Tanh" else TAKEN) for case in cases_of(GELU)]
    if fused is not None:
        rows.append((_gelu_case(GELU), fused))
    found = analyze(GELU, QNN, table(rows), flags=NOTHING)
    assert found.metrics["proposed"] == {}
    assert found.flags == NOTHING
    assert analyze(GELU, QNN).flags == NOTHING, "nor is anything without a table"


def test_rewrite_that_worsens_another_place_is_listed_but_not_proposed() -> None:
    """With more than two dimensions, a Gemm has a Reshape on both sides."""
    weights = {name: np.ones(dims, np.float32) for name, dims in {"w": (4, 4), "b": (4,)}.items()}
    text = "g (float[2, 4] x, float[2, 3, 4] t) => (float[2, 4] y, float[2, 3, 4] z) {{ {} }}"
    separate = graph(text.format("m = MatMul(x, w) y = Add(m, b) n = MatMul(t, w) z = Add(n, b)"), **weights)
    fused = graph(
        text.format("y = Gemm(x, w, b) r = Reshape(t, flat) n = Gemm(r, w, b) z = Reshape(n, whole)"),
        **weights, flat=np.array([-1, 4]), whole=np.array([2, 3, 4]),
    )  # fmt: skip
    rows = [(case, TAKEN if case.inputs[0].dims != (2, 4) else LEFT) for case in cases_of(separate)]  # type: ignore[union-attr]
    rows += [(case, LEFT if case.op_type == "Reshape" else TAKEN) for case in cases_of(fused)]
    found = analyze(separate, QNN, table(rows), flags=NOTHING)
    (action,) = _actions(found, "SUBGRAPH/MatMulAddPattern")
    assert "1 other place would be worse off" in action["details"]
    assert not action["enabled"]
    assert found.flags == NOTHING


def test_recipe_settings_and_earlier_rounds_are_respected(helps: bytes) -> None:
    for said, count in ((True, 0), (False, 1)):
        found = analyze(GELU, replace(QNN, optim={"gelu_fusion": said}), helps, flags=NOTHING)
        actions = _actions(found)
        assert [action["enabled"] for action in actions] == [False] * count
        assert found.flags == NOTHING
    before = b'{"reshape_mergedreshape":true}'
    grown = analyze(GELU, QNN, helps, flags=before)
    assert set(grown.metrics["discovered"]) == {"gelu_fusion", "reshape_mergedreshape"}
    silent = analyze(GELU, replace(QNN, analyze=AnalyzeFields(propose=False)), helps, flags=before)
    assert silent.flags == before
    assert silent.metrics["proposed"] == {}


def test_rewrite_missing_from_opset_is_advised_but_not_proposed() -> None:
    old = graph(GELU_TEXT, 17)
    rows = [(case, LEFT if case.op_type == "Tanh" else TAKEN) for case in cases_of(old)]
    fused = replace(_gelu_case(old), opset=20)
    found = analyze(old, QNN, table([*rows, (fused, TAKEN)]), flags=NOTHING)
    assert found.flags == NOTHING
    (action,) = _actions(found)
    assert (action["level"], action["enabled"]) == ("warning", False)
    assert "export.opset_version 20" in action["details"]


def test_recipe_can_set_exactly_the_proposable_capabilities() -> None:
    # Capabilities that are not considered are in no key of analyze, so its discoveries would be ignored.
    assert {fusion.capability for fusion in FUSIONS} | {"clamp_constant_values"} == set(ASKED_ABOUT)


def test_nodes_are_classified_with_their_quantized_types() -> None:
    model = graph("g (float[2, 4] x) => (float[2, 4] y) { n = Softmax(x) y = Relu(n) }")
    softmax, relu = cases_of(model)
    quant = QuantizedTo("uint16", "uint8")
    integers = [(as_quantized(case, "uint16", "uint8"), TAKEN) for case in (softmax, relu)]
    both = table([(softmax, LEFT), (relu, LEFT), *integers])
    assert analyze(model, QNN, both).metrics["nodes"]["partial"] == 2
    assert analyze(model, replace(QNN, quant=quant), both).metrics["nodes"]["supported"] == 2
    some = replace(QNN, quant=replace(quant, op_types=("Relu",)))
    assert [each["operator"] for each in analyze(model, some, both).metrics["partial"]] == ["OP/ai.onnx/Softmax"]
    named = replace(QNN, quant=replace(quant, excluded=("*elu",)))
    onnx_model = onnx.ModelProto.FromString(model.SerializeToString())
    onnx_model.graph.node[1].name = "my_relu"
    assert [each["nodes"] for each in analyze(onnx_model, named, both).metrics["partial"]] == [["my_relu"]]


def test_missing_shapes_are_inferred() -> None:
    model = graph("g (float[2, 4] x) => (float[8] y) <int64[1] all = {-1}> { n = Neg(x) y = Reshape(n, all) }")
    found = analyze(model, QNN, table((case, TAKEN) for case in cases_of(model)))
    assert found.metrics["nodes"]["supported"] == 2
    assert [each["check"] for each in found.result["lint"]["warnings"]] == ["shape_inference"]


def test_installed_provider_fills_gaps_of_user_table() -> None:
    model = graph("g (float[2, 4] x) => (float[2, 4] y) { n = Neg(x) y = Relu(n) }")
    neg, _ = cases_of(model)
    config = replace(ON_CPU, analyze=AnalyzeFields(lists_cases=True))
    found = analyze(model, config, table([(neg, LEFT)]))
    assert found.metrics["nodes"] == {"supported": 1, "partial": 1, "unsupported": 0, "unknown": 0}
    (left,) = found.metrics["cases"]
    assert (left["operator"], left["verdict"], left["nodes"]) == ("Neg", "partial", ["n"])


def test_every_refused_node_is_unsupported_with_provider_error() -> None:
    """Wherever it is, and whatever the others are: onnxruntime names one node, and loads nothing."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.custom": 1]>
        g (float[2] x, int32[2] i, bool c) => (float[2] y, int32[2] z, float[2] w)
        { a = Relu(x) y = ai.custom.Foo(a) z = Erf(i) w = If(c) <then_branch = t () => (float[2] p)
        { p = ai.custom.Bar(a) }, else_branch = e () => (float[2] q) { q = Neg(a) }> }"""
    )
    found = analyze(model, ON_CPU)
    classes = found.result["results"][0]["classification"]
    assert classes["supported"] == ["OP/ai.onnx/Relu", "OP/ai.onnx/Neg"]
    assert classes["unsupported"] == ["OP/ai.custom/Foo", "OP/ai.onnx/Erf", "OP/ai.onnx/If", "OP/ai.custom/Bar"]
    reasons = {each["operator"]: each["reason"] for each in found.metrics["unsupported"]}
    assert "Foo(-1) is not a registered function/op" in reasons["OP/ai.custom/Foo"]
    assert "tensor(int32)" in reasons["OP/ai.onnx/Erf"]
    only = '<ir_version: 8, opset_import: ["": 17]> g (double[2] x) => (double[2] y) { [erf] y = Erf(x) }'
    (told,) = analyze(onnx.parser.parse_model(only), ON_CPU).metrics["unsupported"]
    assert "'erf'" in told["reason"]
    assert told["reason"].endswith(". Use a 32-bit type instead of float64")


def asking_qnn(quant: QuantizedTo | None = None) -> AnalyzeConfig:
    target = resolve_target("qnn", "npu")
    asked = analyze_target(target, complete_options(target, {}), standard_only=True)
    return AnalyzeConfig(target=asked, quant=quant)


def test_quantized_build_is_classified_with_integer_types() -> None:
    """QNN takes a GELU of floats as a whole, and an Erf between Q and DQ not at all."""
    pytest.importorskip("onnxruntime_qnn")
    model = graph(
        "g (float[2, 8] x) => (float[2, 8] y) <float root = {1.4142135}, float one = {1}, float half = {0.5}> "
        "{ m = MatMul(x, w) d = Div(m, root) e = Erf(d) a = Add(e, one) h = Mul(m, a) y = Mul(h, half) }",
        w=np.eye(8, dtype=np.float32),
    )
    floats = analyze(model, asking_qnn())
    assert floats.metrics["nodes"] == {"supported": 6, "partial": 0, "unsupported": 0, "unknown": 0}
    integers = analyze(model, asking_qnn(QuantizedTo("uint16", "uint8")))
    (left,) = integers.metrics["partial"]
    assert (left["operator"], left["count"]) == ("OP/ai.onnx/Erf", 1)
    assert left["reason"].startswith("it is left to the CPU. ")
    kept = asking_qnn(QuantizedTo("uint16", "uint8", excluded_op_types=("*",)))
    assert analyze(model, kept).metrics["nodes"]["supported"] == 6


def test_missing_device_gives_unknown_verdict_with_reason() -> None:
    model = graph("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    config = AnalyzeConfig(target=AnalyzeTarget("MIGraphXExecutionProvider", "gpu", asks=True))
    (unknown,) = analyze(model, config).metrics["unknown"]
    assert "MIGraphXExecutionProvider is not part of the installed onnxruntime" in unknown["reason"]


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("QNNExecutionProvider", "supported"),
        ("QNN", "supported"),
        ("OpenVINOExecutionProvider", "unsupported"),
        ("", "unknown"),
    ],
)
def test_compiled_model_is_supported_only_by_its_own_provider(source: str, verdict: str) -> None:
    made_by = f', source = "{source}"' if source else ""
    text = f"""g (float[1] x) => (float[1] y)
    {{ y = com.microsoft.EPContext <embed_mode = 1, ep_cache_context = "x"{made_by}> (x) }}"""
    found = analyze(graph(text, 17, imports=', "com.microsoft": 1'), QNN)
    assert found.metrics["nodes"][verdict] == 1


def test_model_with_shapes_is_analyzed_without_importing_onnx(tmp_path: Path) -> None:
    for inside in ("model", "out/result", "out/flags"):
        (tmp_path / inside).mkdir(parents=True)
    onnx.save(onnx.shape_inference.infer_shapes(GELU), tmp_path / "model" / "model.onnx")
    script = (
        "import sys; from pathlib import Path; from winml_dag.engine.stage import Workspace\n"
        "from winml_dag.stages.analyze import AnalyzeConfig; from winml_dag.stages.analyze.analysis import run\n"
        "run(AnalyzeConfig(), Workspace({'model': Path('model')}, {s: Path('out') / s for s in ('result', 'flags')}))\n"
        "print([name for name in ('onnx', 'numpy', 'onnxruntime', 'torch', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _lint(analyzed: Analyzed, severity: str) -> dict[str, int]:
    return {each["check"]: each["count"] for each in analyzed.result["lint"][severity]}


def test_lint_findings_have_message_and_advice() -> None:
    model = graph(
        "g (float[N, 4] x) => (float[N, 4] y) <float huge = {-3.4e38}, float two = {2}, float spare = {1}> "
        "{ t = Mul(two, two) n = Add(x, huge) y = Mul(n, t) }",
        17,
    )
    found = analyze(model, replace(QNN, quant=QuantizedTo("uint8", "uint8")))
    assert _lint(found, "errors").keys() == {"dynamic_inputs"}
    assert _lint(found, "warnings") == {"constant_folding": 1, "shape_inference": 2}
    assert _lint(found, "info") == {"infinite_constants": 1, "unused_initializers": 1}
    assert found.result["lint"]["passed"] is False
    assert found.metrics["lint"]["error_patterns"] == ["dynamic_inputs"]
    told = [each for severity in ("errors", "warnings", "info") for each in found.result["lint"][severity]]
    assert all(each["message"].endswith(".") and each["advice"].endswith(".") for each in told)
    on_the_cpu = analyze(model, AnalyzeConfig())
    assert on_the_cpu.result["lint"]["passed"] is True


@pytest.mark.parametrize(
    ("opset", "body", "quant", "found"),
    [
        (9, "y = Relu(x)", None, {"warnings": {"opset": 0}}),
        (12, "y = Relu(x)", QuantizedTo("uint8", "uint8", per_channel=True), {"warnings": {"opset": 0}}),
        (12, "y = Relu(x)", QuantizedTo("uint8", "uint8"), {}),
        (17, "y = Relu(x)", None, {}),
        # onnxruntime loads no model in which two nodes have one name.
        (17, "[same] a = Relu(x) [same] y = Neg(a)", None, {"errors": {"duplicate_names": 1}}),
        (17, "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", None, {"errors": {"soundness": 1}}),
    ],
)
def test_lint_reports_old_opset_and_invalid_values(
    opset: int, body: str, quant: QuantizedTo | None, found: dict[str, dict[str, int]]
) -> None:
    zeros = "<float s = {0}, uint8 z = {0}>" if "(x, s" in body else ""
    model = graph(f"g (float[2, 4] x) => (float[2, 4] y) {zeros} {{ {body} }}", opset)
    told = analyze(onnx.shape_inference.infer_shapes(model), replace(QNN, quant=quant))
    assert {name: _lint(told, name) for name in ("errors", "warnings") if _lint(told, name)} == found


def test_malformed_model_is_analyzed_without_error() -> None:
    text = """g (float[32] x) => (float[32] y) <int64[5] split = {2, 2, 2, 2, 2}, int64[1] joined = {32},
    float[2, 2, 2, 2, 2] s, float[2, 2, 2, 2, 2] t> { a = Mul (x, x) b = Squeeze ()
    s = Reshape (x, split) t = Transpose <perm = [0, 1, 2, 3, 9]> (s) y = Reshape (t, joined) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    for node in model.graph.node[:2]:
        del node.output[:]
    found = analyze(model, QNN)
    assert found.result["metadata"]["total_operators"] == 5


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    model = graph(
        "g (float[2, 64] x) => (float[2, 64] y) { m = MatMul(x, w) r = Relu(m) y = Gemm(r, w, b) }",
        w=np.ones((64, 64), np.float32),
        b=np.zeros(64, np.float32),
    )
    path = tmp_path / "large.onnx"
    onnx.save(model, path, save_as_external_data=True, location="large.onnx.data", size_threshold=1024)
    (tmp_path / "large.onnx.data").write_bytes(b"")  # reading it would fail
    assert analyze(path, QNN).metrics["nodes"]["unknown"] == 3
    assert analyze(path, ON_CPU).metrics["nodes"]["supported"] == 3
    if installed(QNN_EP):
        integers = (("uint8", True), ("uint8", False), ("int4", True))
        for quant in (None, *(QuantizedTo("uint16", weights, per_channel) for weights, per_channel in integers)):
            assert analyze(path, asking_qnn(quant)).metrics["nodes"]["supported"] == 3


@pytest.mark.skipif(not installed(QNN_EP), reason="onnxruntime-qnn is not installed")
@pytest.mark.parametrize("quant", [None, QuantizedTo("uint16", "uint8", per_channel=True)])
def test_provider_is_queried_again_for_optimized_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quant: QuantizedTo | None
) -> None:
    model = graph("g (float[4, 512] x) => (float[4, 512] y) { m = Mul(x, c) y = Relu(m) }", c=np.eye(4, 512, dtype="f"))
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert [verdict.level for verdict in ask(Path("model.onnx"), asking_qnn(quant), ())] == [Level.SUPPORTED] * 2
