"""Random inputs: the same everywhere, and integers within the range that the graph allows, determined by running it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import InputError
from winml_dag.onnxmodel.feeds import Distribution, model_inputs, random_feeds, write_io_specs
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.onnxmodel.metadata import canonicalise

ModelMaker = Callable[..., onnx.ModelProto]


def _one(spec: TensorSpec, distribution: Distribution = "uniform", seed: int = 0) -> np.ndarray:
    return next(random_feeds([spec], seed, 1, distribution))[spec.name]


def test_written_ranges_are_read_from_file_and_session(linear: ModelMaker, tmp_path: Path) -> None:
    model, path = linear(), tmp_path / "m.onnx"
    model.metadata_props.add(key="other", value="kept")
    for _ in range(2):  # again replaces
        inputs = [TensorSpec("x", "float32", ("batch", 64), (-2, 3.5))]
        write_io_specs(model, inputs, [TensorSpec("y", "float32", ("batch", 64))])
    assert sorted(entry.key for entry in model.metadata_props) == ["other", "winml.io.inputs", "winml.io.outputs"]
    canonicalise(model)
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = (TensorSpec("x", "float32", ("batch", 64), (-2.0, 3.5)),)
    assert model_inputs(path) == model_inputs(session) == expected
    samples = list(random_feeds(expected, 7, 3))
    outputs = [session.run(None, sample)[0] for sample in samples]
    assert [output.shape for output in outputs] == [(1, 64)] * 3
    assert not np.array_equal(outputs[0], outputs[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '[{"name": 1}]',
        '[{"name": "x", "value_range": [1]}]',
        '[{"name": "x", "value_range": [2, 1]}]',
        '[{"name": "x", "value_range": [0, NaN]}]',
        '[{"name": "x", "value_range": [false, true]}]',
        '[{"name": "x", "value_range": ["0", "1"]}]',
    ],
)
def test_malformed_metadata_is_an_input_error(linear: ModelMaker, tmp_path: Path, text: str) -> None:
    model = linear()
    model.metadata_props.add(key="winml.io.inputs", value=text)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"winml\.io\.inputs"):
        model_inputs(tmp_path / "m.onnx")


SPECS = [
    TensorSpec("input_ids", "int64", ("batch", 5), (0, 1000)),
    TensorSpec("pixels", "float32", (1, 3, 4), (-1, 1)),
    TensorSpec("image", "float16", (2, "?")),
]


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_input_values_do_not_depend_on_other_inputs(distribution: Distribution) -> None:
    together = list(random_feeds(SPECS, 3, 4, distribution))
    reordered = list(random_feeds(SPECS[::-1], 3, 2, distribution))
    for index in range(2):
        for spec in SPECS:
            np.testing.assert_array_equal(together[index][spec.name], reordered[index][spec.name])
            assert together[index][spec.name].dtype == spec.dtype


def test_values_depend_only_on_seed_name_and_index() -> None:
    samples = [sample["pixels"].tobytes() for sample in random_feeds([SPECS[1]], 0, 2)]
    renamed = TensorSpec("other", "float32", (1, 3, 4), (-1, 1))
    assert len({*samples, _one(SPECS[1], seed=1).tobytes(), _one(renamed).tobytes()}) == 4
    # In any process, on any machine.
    assert hashlib.sha256(samples[0]).hexdigest() == "010184112960fcb280b354ca34e2af0763e2cfaac2ae0ce0e6d1ab4390bbd6e0"


@given(
    dtype=st.sampled_from(["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "uint64"]),
    low=st.integers(0, 50),
    width=st.integers(1, 60),
    distribution=st.sampled_from(["uniform", "normal"]),
    seed=st.integers(0, 2**63),
)
def test_values_stay_in_their_range(dtype: str, low: int, width: int, distribution: Distribution, seed: int) -> None:
    values = _one(TensorSpec("x", dtype, (50,), (low, low + width)), distribution, seed)
    assert values.dtype == dtype
    assert values.min() >= low
    assert values.max() < low + width


def test_range_is_fully_used_and_defaults_to_name_and_type() -> None:
    assert set(_one(TensorSpec("x", "int64", (200,), (3, 6)))) == {3, 4, 5}
    assert set(_one(TensorSpec("x", "int64", (20,), (1, 1)))) == {1}
    assert set(_one(TensorSpec("attention_mask", "int64", (40,)))) == {1}
    assert set(_one(TensorSpec("attention_mask", "int64", (40,), (0, 2)))) == {0, 1}
    assert set(_one(TensorSpec("encoder_attention_mask", "float32", (40,)))) == {1.0}
    assert set(_one(TensorSpec("token_type_ids", "int64", (40,)))) == {0, 1}
    assert set(_one(TensorSpec("flag", "bool", (40,)))) == {False, True}
    ids = _one(TensorSpec("input_ids", "int32", (400,)))
    assert (ids.min(), ids.max()) == (0, 9)
    image = _one(TensorSpec("image", "float32", (400,)))
    assert 0 <= image.min() < 0.1 < 0.9 < image.max() < 1
    assert _one(TensorSpec("image", "float32", (400,)), "normal").min() < -1


@pytest.mark.parametrize(
    ("dtype", "value_range", "words"),
    [*((name, None, "'x'") for name in ("string", "not a tensor", "bfloat16")), ("int8", (0, 1000), "int8")],
)
def test_unsupported_types_and_ranges_are_refused(
    dtype: str, value_range: tuple[float, float] | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        _one(TensorSpec("x", dtype, (1,), value_range))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["attention_mask", "decoder_attention_mask"]))
def test_random_mask_keeps_the_first_token(seed: int, name: str) -> None:
    [feed] = random_feeds([TensorSpec(name, "int32", (2, 5), (0, 2))], seed, 1)
    assert feed[name][:, 0].tolist() == [1, 1]
    assert set(feed[name].flatten().tolist()) <= {0, 1}


TABLE = "float[3, 4] table = {" + ", ".join("1" * 12) + "}"
BRANCH = "b () => (float[] b) { b = Gather (table, i) }"
WEIGHTS = "{" + ", ".join("1" * 16) + "}"

# By name: inputs, constants, and nodes.
CASES = {
    "Gather": ("int64[5] i", TABLE, "y = Gather (table, i)"),
    "Gather of an activation": ("float[2, 3] x, int64[5] i", "", "y = Gather <axis = 1> (x, i)"),
    "Gather behind Cast, Sub and Unsqueeze": (
        "int32[5] i",
        f"{TABLE}, int64 first = {{100}}, int64[1] axis = {{0}}",
        "c = Cast <to = 7> (i)  d = Sub (c, first)  e = Unsqueeze (d, axis)  y = Gather (table, e)",
    ),
    "Gather behind Mul": ("int64[5] i", f"{TABLE}, int64 k = {{2}}", "c = Mul (i, k)  y = Gather (table, c)"),
    "Gather behind Mod, of what has no shape": (
        "float[2, 3] x, int64[5] i",
        "int64 k = {2}",
        "t = Neg (x)  c = Mod (i, k)  y = Gather (t, c)",
    ),
    "GatherElements": ("float[2, 3] x, int64[2, 2] i", "", "y = GatherElements <axis = 1> (x, i)"),
    "GatherND": ("float[2, 3] x, int64[4, 2] i", "", "y = GatherND (x, i)"),
    "ScatterElements": ("float[2, 3] x, int64[2, 1] i, float[2, 1] u", "", "y = ScatterElements <axis = 1> (x, i, u)"),
    "Reshape": ("float[2, 3] x, int64[2] i", "", "y = Reshape (x, i)"),
    "Reshape to a vector": ("float[2, 3] x, int64[1] i", "", "y = Reshape (x, i)"),
    "Expand": ("float[2, 3] x, int64[2] i", "", "y = Expand (x, i)"),
    "TopK": ("float[2, 3] x, int64[1] i", "", "y, at = TopK (x, i)"),
    "Slice": ("float[2, 3] x, int64[2] a, int64[2] b", "int64[2] axes = {0, 1}", "y = Slice (x, a, b, axes)"),
    "CumSum": ("float[2, 3] x, int64 i", "", "y = CumSum (x, i)"),
    "Gather inside of a branch": (
        "int64[5] i",
        f"{TABLE}, bool yes = {{1}}",
        f"y = If (yes) <then_branch = {BRANCH}, else_branch = {BRANCH}>",
    ),
    "LSTM": (
        "float[3, 1, 2] steps, int32[1] i",
        f"float[1, 8, 2] w = {WEIGHTS}, float[1, 8, 2] r = {WEIGHTS}",
        'y = LSTM <hidden_size = 2> (steps, w, r, "", i)',
    ),
}


def saved(path: Path, inputs: str, constants: str, nodes: str) -> Path:
    text = f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float[] y) <{constants}> {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_model_runs_on_random_integers(tmp_path: Path, case: str) -> None:
    path = saved(tmp_path / "model.onnx", *CASES[case])
    session, inputs = onnxruntime.InferenceSession(path), model_inputs(path)
    for feed in (*random_feeds(inputs, 0, 8), *random_feeds(inputs, 1, 8, "normal")):
        session.run(None, feed)


def test_integer_ranges_avoid_oversized_depths_and_repeats(tmp_path: Path) -> None:
    constants = "int64 depth = {4}, float[2] values = {0, 1}"
    path = saved(tmp_path / "a.onnx", "int64[6] i", constants, "y = OneHot (i, depth, values)")
    session = onnxruntime.InferenceSession(path)
    for feed in random_feeds(model_inputs(path), 0, 8):
        assert session.run(None, feed)[0].sum() == 6
    path = saved(tmp_path / "b.onnx", "float[2, 3] x, int64[2] i", "", "y = Tile (x, i)")
    assert {feed["i"].max() for feed in random_feeds(model_inputs(path), 0, 8)} == {1}


def test_unbounded_integers_use_the_default_range(tmp_path: Path) -> None:
    constants = f"int64 low = {{0}}, int64 high = {{2}}, {TABLE}"
    clipped = "c = Clip (i, low, high)  y = Gather (table, c)"
    for number, nodes in enumerate(("y = Cast <to = 1> (i)", clipped)):
        path = saved(tmp_path / f"{number}.onnx", "int64[50] i", constants if number else "", nodes)
        assert [spec.value_range for spec in model_inputs(path)] == [None]
        (feed,) = random_feeds(model_inputs(path), 0, 1)
        assert set(feed["i"].tolist()) == set(range(10))


def test_metadata_range_takes_precedence(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.onnx", "int64[50] i", TABLE, "y = Gather (table, i)")
    model = onnx.load(path)
    model.metadata_props.add(key="winml.io.inputs", value='[{"name": "i", "value_range": [1, 2]}]')
    onnx.save(model, path)
    (feed,) = random_feeds(model_inputs(path), 0, 1)
    assert set(feed["i"].tolist()) == {1}
