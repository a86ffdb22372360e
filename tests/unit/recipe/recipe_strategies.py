"""Hypothesis strategies for recipes and JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Printable, and without the separators that only JSON allows unescaped.
TEXT = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x24F, exclude_characters="\x7f", exclude_categories=["Cc"])
)
WORDS = TEXT.filter(str.strip)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(10**30), 10**30)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(TEXT, json_values, max_size=3)

_counts = st.integers(1, 1000)
_seeds = st.integers(0, 2**32 - 1)
_devices = st.sampled_from(["auto", "cpu", "gpu", "npu"])
_integer_types = st.sampled_from(["uint8", "int8", "uint16", "int16"])
_words_or_null = st.none() | WORDS
_booleans = st.booleans()


def _section(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_random_weights = st.none() | st.booleans() | _section(seed=_seeds, config=json_objects)
_loader = _section(
    task=_words_or_null,
    model_class=_words_or_null,
    trust_remote_code=_booleans,
    path=_words_or_null,
    random_weights=_random_weights,
)
_input_tensors = st.lists(
    st.fixed_dictionaries(
        {"name": WORDS},
        optional={
            "dtype": st.sampled_from(["int32", "float32"]),
            "shape": st.lists(_counts | WORDS, max_size=3),
            "value_range": st.tuples(FLOATS, FLOATS).map(list),
        },
    ),
    max_size=2,
)
_export = st.none() | _section(
    opset_version=st.none() | st.integers(9, 2**31 - 1),
    batch_size=_counts,
    dynamo=st.none() | _booleans,
    input_tensors=st.none() | _input_tensors,
    output_tensors=st.lists(st.fixed_dictionaries({"name": WORDS}), max_size=2),
    dynamic_axes=st.dictionaries(TEXT, st.dictionaries(st.integers(0, 5).map(str), WORDS), max_size=2),
    compatibility=st.none() | _section(transformers_attention=st.sampled_from([None, "eager"])),
    hierarchy_tag_format=st.sampled_from(["full", "module_only"]),
)
_quant = st.none() | _section(
    mode=st.sampled_from(["static", "dynamic", "rtn", "fp16", "qdq"]),
    calibration_samples=_counts,
    weight_type=_integer_types,
    activation_type=_integer_types,
    seed=st.none() | _seeds,
    weight_symmetric=st.none() | _booleans,
    op_types_to_quantize=st.none() | st.lists(WORDS, max_size=3),
    calibration_data=_words_or_null,
)
_options = st.dictionaries(TEXT, TEXT, max_size=2)
_compile = st.none() | (
    _section(
        execution_provider=_words_or_null,
        provider_options=_options,
        device=_devices,
        validate=_booleans,
        ep_device=st.none() | _section(ep=WORDS, device=_devices),
    )
    | st.fixed_dictionaries({"ep_config": _section(provider=WORDS, embed_context=_booleans, provider_options=_options)})
)
_dataset = _section(
    path=WORDS,
    samples=_counts,
    columns_mapping=_options,
    label_mapping=st.dictionaries(TEXT, st.integers(0, 9), max_size=2),
)
_eval = st.none() | _section(
    task=WORDS,
    model_path=WORDS | st.dictionaries(TEXT, WORDS, max_size=2),
    dataset=_dataset,
    shape_config=json_objects,
    batch_size=_counts,
    pooling=st.none() | st.sampled_from(["mean", "cls"]),
)

recipes = _section(
    model=_words_or_null,
    ep=_words_or_null,
    device=_devices,
    precision=st.sampled_from(["auto", "fp32", "int8", "w8a16", "w4a16"]),
    loader=st.none() | _loader,
    export=_export,
    optim=st.none() | st.dictionaries(st.sampled_from(["gelu_fusion", "constant_folding"]), _booleans),
    quant=_quant,
    compile=_compile,
    eval=_eval,
    validate=_section(
        enabled=_booleans,
        min_cosine=st.none() | st.floats(-1, 1) | st.integers(-1, 1),
        min_sqnr_db=st.none() | st.floats(-9, 9),
        max_abs_error=st.none() | st.floats(0, 9),
        min_top1_agreement=st.none() | st.floats(0, 1),
        input_data=WORDS,
        samples=_counts,
        seed=_seeds,
    ),
    perf=_section(
        warmup=_counts,
        iterations=_counts,
        threads=_counts,
        sizes=st.dictionaries(WORDS, _counts, max_size=2),
        seed=_seeds,
        input_data=WORDS,
    ),
    auto=_booleans,
    skip_optimize=_booleans,
)
