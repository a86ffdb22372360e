"""Models of other tools in optimize: control flow, functions, unusual domains and types, onnx's own node cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from corpus.node_cases import RIGHT, SLOW, WRONG, cases, check
from onnx import numpy_helper
from optimize_samples import feeds, optimize, outputs

from winml_dag.errors import StageError
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.protos import graphs_of

# Former bugs, rejected cases, and rare ones: they are always included.
SPECIAL = {
    "test_attention_4d_fp16_expanded",
    "test_cast_FLOAT_to_INT4",
    "test_celu_float16_expanded",
    "test_if_opt",
    "test_if_seq",
    "test_loop11",
    "test_loop16_seq_none",
    "test_optional_has_element_empty_optional_input",
    "test_scan9_sum",
    "test_sequence_map_extract_shapes",
    "test_string_split_basic",
    "test_training_dropout_mask",
}
EVERY = 48

SHAPE = "float[2, 2]"
WEIGHT = f"<value: tensor = {SHAPE} {{1, 2, 3, 4}}>"


def of(text: str, imports: str = '"": 17', ir_version: int = 8) -> onnx.ModelProto:
    """Return a model from the text of its graph, and of its functions if it has some."""
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> {text}")


def test_onnx_node_cases_give_equal_results(tmp_path: Path) -> None:
    chosen = [case for index, case in enumerate(cases(without=SLOW)) if index % EVERY == 0 or case.name in SPECIAL]
    assert {case.name for case in chosen} >= SPECIAL
    verdicts = []
    for case in chosen:
        folder = tmp_path / case.name
        folder.mkdir()
        verdicts.append(check(case, folder))
    assert [verdict for verdict in verdicts if verdict.outcome == WRONG] == []
    assert {verdict.name for verdict in verdicts if verdict.outcome == RIGHT} >= SPECIAL
    assert sum(verdict.outcome == RIGHT for verdict in verdicts) > 25


LOOP = f"""agraph ({SHAPE} x, bool c, int64 n) => ({SHAPE} y) {{
    y = Loop (n, c, x) <body = body (int64 i, bool go, {SHAPE} state) => (bool on, {SHAPE} next) {{
        on = Identity (go)
        w = Constant {WEIGHT} ()
        a = MatMul (state, w)
        next = If (go) <
            then_branch = yes () => ({SHAPE} t) {{ v = Constant {WEIGHT} () t = Sub (a, v) }},
            else_branch = no () => ({SHAPE} e) {{ e = Neg (a) }}>
    }}>
}}"""
SHADOWING = f"""agraph ({SHAPE} x, bool c, int64 n) => ({SHAPE} y, {SHAPE} z) <float w = {{2}}> {{
    a = Mul (x, w)
    y = Loop (n, c, a) <body = body (int64 i, bool go, {SHAPE} x) => (bool on, {SHAPE} b) <float v = {{3}}> {{
        on = Identity (go) b0 = Mul (x, v) b = Add (b0, w)
    }}>
    z = If (c) <
        then_branch = yes () => ({SHAPE} t) <float v = {{5}}> {{ b = Add (a, v) t = Mul (b, w) }},
        else_branch = no () => ({SHAPE} e) <float v = {{7}}> {{ b = Sub (x, v) e = Mul (b, w) }}>
}}"""
MODELS = {
    "constants in graphs of graphs": of(LOOP),
    "names that scopes share": of(SHADOWING),
    "a branch that is known": of(
        f"""agraph ({SHAPE} x) => ({SHAPE} y) <bool c = {{1}}> {{ y = If (c) <
            then_branch = yes () => ({SHAPE} t) <float v = {{5}}> {{ t = Mul (x, v) }},
            else_branch = no () => ({SHAPE} e) {{ e = Neg (x) }}> }}"""
    ),
    "Scan": of(
        """agraph (float[2] first, float[3, 2] all) => (float[2] last, float[3, 2] sums) <float w = {2}> {
        last, sums = Scan (first, all) <num_scan_inputs = 1, body = body (float[2] s, float[2] x) => (float[2] n,
            float[2] o) { t = Add (s, x) n = Mul (t, w) o = Identity (n) }> }"""
    ),
    "functions": of(
        f"""agraph ({SHAPE} x, bool c) => ({SHAPE} y) {{ t = my.Outer <k = 2> (x, c) y = my.Outer <k = 3> (t, c) }}
        <domain: "my", opset_import: ["": 17, "my": 1]> Outer <k> (a, c) => (b) {{
            n = Constant <value_int: int = @k> () f = Cast <to = 1> (n)
            b = If (c) <then_branch = yes () => ({SHAPE} t) {{ t = my.Inner (a, f) }},
                        else_branch = no () => ({SHAPE} e) {{ e = Neg (a) }}> }}
        <domain: "my", opset_import: ["": 17]> Inner (a, f) => (b) {{
            w = Constant {WEIGHT} () s = Mul (a, w) b = Mul (s, f) }}""",
        '"": 17, "my": 1',
    ),
    "the standard's other name": of(f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = Relu (x) }}", '"ai.onnx": 17'),
    "nodes with the standard's other name": of(
        f"agraph ({SHAPE} x) => ({SHAPE} y) {{ z = ai.onnx.Relu (x) y = Neg (z) }}", '"ai.onnx": 17'
    ),
    "a domain that nobody knows or uses": of(
        f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = Relu (x) }}", '"": 17, "who.knows": 3'
    ),
    "onnxruntime's operators": of(
        f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = com.microsoft.QuickGelu (x) }}", '"": 17, "com.microsoft": 1'
    ),
    "operators for machine learning": of(
        "agraph (float[2, 2] x) => (float[2, 2] y) { y = ai.onnx.ml.Scaler <offset = [1., 2.], scale = [1., 2.]> (x) }",
        '"": 17, "ai.onnx.ml": 3',
    ),
    "no node": of("agraph (float[2] x) => (float[2] x) { }"),
    "constants as outputs": of(
        "agraph (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add (x, w) }"
    ),
    "nothing but a constant": of("agraph () => (float[2] w) <float[2] w = {1, 2}> { }"),
    "an input without a reader": of("agraph (float[2] x, float[3] z) => (float[2] y) { y = Relu (x) }"),
    "no element": of("agraph (float[0, 2] x) => (float[0, 2] y) <float[2] w = {1, 2}> { y = Add (x, w) }"),
    "text": of("agraph (string[2] x) => (string[2] y) { z = Identity (x) y = Identity (z) }"),
    "double": of("agraph (double[2, 2] x) => (double[2, 2] y) { z = MatMul (x, x) y = Identity (z) }"),
}


def _sparse() -> onnx.ModelProto:
    model = of("agraph (float[2, 3] x) => (float[2, 3] y) { y = Add (x, w) }")
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5]), "places")
    model.graph.sparse_initializer.add(values=values, indices=indices, dims=[2, 3])
    return model


@pytest.mark.parametrize("model", [*MODELS.values(), _sparse()], ids=[*MODELS, "a sparse constant"])
def test_foreign_models_give_equal_results(tmp_path: Path, model: onnx.ModelProto) -> None:
    for off in ((), ("ort_graph_optimization", "constant_folding")):
        result = optimize(tmp_path, model, off=off)
        for one, other in zip(outputs(model, feeds(model)), outputs(result.model, feeds(model)), strict=True):
            np.testing.assert_array_equal(one, other)
        assert inspect_model(tmp_path / "out" / "optimized.onnx").opsets.keys() >= {""}
        # With external weights, onnxruntime writes constants inside control flow twice, and cannot load that.
        for inner in graphs_of(result.model.graph):
            made = [tensor.name for tensor in inner.initializer] + [name for node in inner.node for name in node.output]
            assert len(made) == len(set(made))


def test_float16_model_cast_by_cpu_is_unchanged(tmp_path: Path) -> None:
    model = of("agraph (float16[2, 2] x) => (float16[2, 2] y) { z = Identity (x) y = MatMul (z, z) }")
    result = optimize(tmp_path, model, "clamp_constant_values")
    assert result.model == model
    assert result.metrics["left"].keys() == {"ort_graph_optimization", "clamp_constant_values"}
    assert all("float16" in why for why in result.metrics["left"].values())
    np.testing.assert_array_equal(outputs(result.model, feeds(model))[0], outputs(model, feeds(model))[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (of(f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = Relu (x) }}", ir_version=99), "ONNX IR version 99; onnxruntime"),
        (of(f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = Relu (x) }}", '"": 99'), "opset 99 of ai.onnx; onnxruntime"),
        (
            of(
                f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = com.microsoft.Gelu (x) }}",
                '"": 17, "com.microsoft": 99',
            ),
            "opset 99 of com.microsoft; onnxruntime",
        ),
        (
            onnx.ModelProto(ir_version=1, graph=of("agraph (float x) => (float y) { y = Relu (x) }").graph),
            "which opset",
        ),
    ],
    ids=["IR", "opset", "opset of another domain", "no opset"],
)
def test_unsupported_version_is_reported(tmp_path: Path, model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(StageError, match=message) as caught:
        optimize(tmp_path, model)
    assert "/onnxruntime_src" not in caught.value.message
    assert caught.value.advice
