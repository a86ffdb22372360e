from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimize_samples import graph

from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.analyze.patterns import Match, find_all


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("patterns") / "model.onnx"


def _find(scratch: Path, model: onnx.ModelProto) -> list[Match]:
    onnx.save(model, scratch)
    return find_all(Dataflow(read_model(scratch, values=True)))


def _count(scratch: Path, model: onnx.ModelProto) -> dict[str, int]:
    return dict(Counter(match.pattern for match in _find(scratch, model)))


_GELU_CONSTANTS = (
    "<float half = {0.5}, float one = {1}, float root = {1.4142135}, float inverse = {0.70710678}, float three = {3}, "
    "float bend = {0.044715}, float steep = {0.7978846}>"
)
_INNER = {
    "Div": "e = Div(x, root) f = Erf(e)",
    "Mul": "e = Mul(x, inverse) f = Erf(e)",
    "Pow": "p = Pow(x, three) q = Mul(p, bend) s = Add(x, q) t = Mul(steep, s) f = Tanh(t)",
    "squares": "a = Mul(x, x) p = Mul(a, x) q = Mul(bend, p) s = Add(q, x) t = Mul(s, steep) f = Tanh(t)",
    "drawn out": "a = Mul(x, steep) b = Mul(bend, x) c = Mul(b, x) d = Add(one, c) t = Mul(a, d) f = Tanh(t)",
}


@given(
    inner=st.sampled_from(sorted(_INNER)),
    factors=st.permutations(["x", "half", "shifted"]),
    left=st.booleans(),
    swapped=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_gelu_is_found_in_any_factor_order(
    scratch: Path, inner: str, factors: list[str], left: bool, swapped: bool
) -> None:
    add = "Add(one, f)" if swapped else "Add(f, one)"
    last = "Mul(m, {2})" if left else "Mul({2}, m)"
    body = f"{_INNER[inner]} shifted = {add} m = Mul({{0}}, {{1}}) y = {last}".format(*factors)
    # No exporter precomputes products of constants and x, so every order may occur.
    found = _find(scratch, graph(f"g (float[2, 4] x) => (float[2, 4] y) {_GELU_CONSTANTS} {{ {body} }}"))
    (match,) = [each for each in found if each.pattern == "GeluPattern"]
    assert match.values["x"] == "x"
    assert match.nodes[-1].outputs == ("y",)
    assert {node.op_type for node in match.nodes} >= {"Mul", "Add"}


@pytest.mark.parametrize(
    "body",
    [
        # not the square root of two
        "e = Div(x, three) f = Erf(e) s = Add(f, one) m = Mul(x, s) y = Mul(m, half)",
        # not one half
        "e = Div(x, root) f = Erf(e) s = Add(f, one) m = Mul(x, s) y = Mul(m, three)",
        # the factor is another value
        "e = Div(x, root) f = Erf(e) s = Add(f, one) n = Neg(x) m = Mul(n, s) y = Mul(m, half)",
    ],
)
def test_near_gelu_is_not_matched(scratch: Path, body: str) -> None:
    model = graph(f"g (float[2, 4] x) => (float[2, 4] y) {_GELU_CONSTANTS} {{ {body} }}")
    assert _count(scratch, model) == {}


def test_pattern_with_externally_read_results_is_not_matched(scratch: Path) -> None:
    body = "e = Div(x, root) f = Erf(e) s = Add(f, one) m = Mul(x, s) y = Mul(m, half) z = Neg(f)"
    model = graph(f"g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {_GELU_CONSTANTS} {{ {body} }}")
    assert _count(scratch, model) == {}
    given_out = graph(
        f"g (float[2, 4] x) => (float[2, 4] y, float[2, 4] f) {_GELU_CONSTANTS} {{ {body.removesuffix('z = Neg(f)')} }}"
    )
    assert _count(scratch, given_out) == {}


@pytest.mark.parametrize("root", ["d = Div(c, s)", "r = Reciprocal(s) d = Mul(c, r)"])
@pytest.mark.parametrize(
    ("affine", "nodes"), [("", 0), ("y = Mul(w, d)", 1), ("n = Mul(d, w) y = Add(n, b)", 2)], ids=["bare", "w", "wb"]
)
def test_layer_norm_is_found_with_scale_and_bias(scratch: Path, root: str, affine: str, nodes: int) -> None:
    body = (
        "m = ReduceMean <axes = [-1]> (x) c = Sub(x, m) p = Pow(c, two) v = ReduceMean <axes = [-1]> (p) "
        f"a = Add(v, epsilon) s = Sqrt(a) {root} {affine or 'y = Neg(d)'}"
    )
    model = graph(
        f"g (float[2, 4] x) => (float[2, 4] y) <float two = {{2}}, float epsilon = {{0.00001}}> {{ {body} }}",
        16,
        w=np.ones(4, np.float32),
        b=np.zeros(4, np.float32),
    )
    (match,) = _find(scratch, model)
    assert match.pattern == "LayerNormPattern"
    assert len(match.nodes) == (8 if "Reciprocal" in root else 7) + nodes
    assert match.values.keys() == {"x", *["weight", "bias"][:nodes]}


@pytest.mark.parametrize("norm", ["r = Reciprocal(s) n = Mul(x, r)", "n = Div(x, s)", "r = Div(one, s) n = Mul(r, x)"])
def test_rms_norm_is_found(scratch: Path, norm: str) -> None:
    body = f"p = Pow(x, two) v = ReduceMean <axes = [-1]> (p) a = Add(v, one) s = Sqrt(a) {norm} y = Mul(w, n)"
    text = f"g (float[2, 4] x) => (float[2, 4] y) <float two = {{2}}, float one = {{1}}> {{ {body} }}"
    assert _count(scratch, graph(text, 16, w=np.ones(4, np.float32))) == {"RMSNormPattern": 1}


@pytest.mark.parametrize("scale", ["t = Mul(s, small)", "t = Div(s, small)", "t = Identity(s)"])
@pytest.mark.parametrize("mask", ["u = Add(t, mask)", "u = Where(keep, t, small)", None])
@pytest.mark.parametrize("guard", [True, False])
def test_attention_is_found_with_optional_scale_mask_and_guard(
    scratch: Path, scale: str, mask: str | None, guard: bool
) -> None:
    if "Identity" in scale:
        scale, body_of_mask = "", (mask or "").replace("t,", "s,").replace("(t", "(s")
    else:
        body_of_mask = mask or ""
    last = "u" if mask else ("t" if scale else "s")
    softmax = f"p = Softmax({last})"
    guarded = "n = IsNaN(p) w = Where(n, small, p) y = MatMul(w, v)" if guard else "y = MatMul(p, v)"
    model = graph(
        "g (float[1, 2, 8, 4] q, float[1, 2, 4, 8] k, float[1, 2, 8, 4] v, float[1, 1, 1, 8] mask, bool[1, 1, 8, 8] "
        f"keep) => (float[1, 2, 8, 4] y) <float small = {{0.5}}> {{ s = MatMul(q, k) {scale} {body_of_mask} {softmax} "
        f"{guarded} }}"
    )
    (match,) = _find(scratch, model)
    assert match.pattern == "AttentionPattern"
    assert {role: match.values[role] for role in "qkv"} == {"q": "q", "k": "k", "v": "v"}
    assert ("mask" in match.values) == bool(mask)


def test_matmul_add_requires_constants_of_matching_rank(scratch: Path) -> None:
    text = "g (float[2, 3, 4] x, float[4, 4] z) => (float[2, 3, 4] y) {{ m = MatMul(x, {0}) y = Add(m, {1}) }}"
    w, b, c = (np.ones(dims, np.float32) for dims in ((4, 4), (4,), (3, 4)))
    assert _count(scratch, graph(text.format("w", "b"), w=w, b=b)) == {"MatMulAddPattern": 1}
    assert _count(scratch, graph(text.format("z", "b"), b=b)) == {}
    assert _count(scratch, graph(text.format("z", "b"), z=w, b=b)) == {}  # an input with a default value
    assert _count(scratch, graph(text.format("w", "c"), w=w, c=c)) == {}


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_transpose_chain_of_any_length_is_one_match(scratch: Path, lengths: list[int]) -> None:
    body, last = [], "x"
    for number, length in enumerate(lengths):
        for step in range(length):
            body.append(f"t{number}_{step} = Transpose <perm = [1, 0]> ({last})")
            last = f"t{number}_{step}"
        body.append(f"n{number} = Neg({last})")
        last = f"n{number}"
    model = graph(f"g (float[2, 2] x) => (float[2, 2] {last}) {{ {' '.join(body)} }}")
    chains = [match for match in _find(scratch, model) if match.pattern == "TransposeChainPattern"]
    assert sorted(len(match.nodes) for match in chains) == sorted(length for length in lengths if length > 1)


def test_high_dimensional_reshape_transpose_reshape_is_found(scratch: Path) -> None:
    up, flat = np.array([1, 2, 4, 2, 4, 3]), np.array([4, 16, 3])
    text = (
        "g (float[1, 8, 8, 3] x) => (float[4, 16, 3] y) { r = Reshape(x, up) "
        "t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (r) y = Reshape(t, flat) }"
    )
    found = _find(scratch, onnx.shape_inference.infer_shapes(graph(text, up=up, flat=flat)))
    assert [match.pattern for match in found] == ["ReshapeTransposeReshapeOverlyHighDim"]
    assert [node.op_type for node in found[0].nodes] == ["Reshape", "Transpose", "Reshape"]
