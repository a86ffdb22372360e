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
_booleans_or_null = st.none() | _booleans
_weight_types = st.sampled_from(["uint4", "int4"]) | _integer_types
_lists = st.none() | st.lists(WORDS, max_size=3)
_overrides = _section(weight_type=st.none() | _weight_types, activation_type=st.none() | _integer_types)

# Every field, with all valid values.
QUANT_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["static", "dynamic", "rtn", "fp16", "qdq"]),
    "samples": _counts,
    "calibration_method": st.sampled_from(["minmax", "entropy", "percentile"]),
    "calibration_data": _words_or_null,
    "task": _words_or_null,
    "model_id": _words_or_null,
    "dataset_name": _words_or_null,
    "dataset_subset": _words_or_null,
    "dataset_split": WORDS,
    "columns_mapping": st.none() | st.dictionaries(WORDS, WORDS, max_size=3),
    "model_type": _words_or_null,
    "weight_type": st.none() | _weight_types,
    "activation_type": st.none() | _integer_types,
    "per_channel": _booleans_or_null,
    "symmetric": _booleans_or_null,
    "weight_symmetric": _booleans_or_null,
    "activation_symmetric": _booleans_or_null,
    "op_types_to_quantize": _lists,
    "op_types_to_exclude": _lists,
    "nodes_to_exclude": _lists,
    "node_overrides": st.none() | st.dictionaries(WORDS, _overrides, max_size=3),
    "equalize": _booleans_or_null,
    "rtn_bits": st.sampled_from([4, 8]),
    "rtn_block_size": _counts,
    "rtn_symmetric": _booleans,
    "rtn_accuracy_level": st.integers(0, 4),
    "rtn_float_type": st.sampled_from(["float32", "float16"]),
    "reduce_range": _booleans,
    "fp16_keep_io_types": _booleans,
    "fp16_op_block_list": _lists,
    "save_calibration": _booleans,
    "distribution": st.sampled_from(["uniform", "normal"]),
    "seed": st.none() | _seeds,
    "calibration_load_path": _words_or_null,
    "calibration_save_path": _words_or_null,
}
quant_sections = _section(**QUANT_FIELDS)
_options = st.dictionaries(TEXT, TEXT, max_size=2)
compile_sections = _section(
    execution_provider=_words_or_null,
    provider_options=_options,
    device=_devices,
    embed_context=_booleans,
    validate=_booleans,
    quantize=_booleans_or_null,
    quant_config=st.none() | quant_sections,
    ep_device=st.none() | _section(ep=WORDS, device=_devices, source=_words_or_null),
)
_nested_compile = st.fixed_dictionaries(
    {"ep_config": _section(provider=WORDS, embed_context=_booleans, provider_options=_options)}
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

# There is one quantization: a section of its own, or one in compile.
_quantized = _section(quant=st.none() | quant_sections, compile=st.none() | _nested_compile) | _section(
    quant=st.none(), compile=compile_sections
)
_others = _section(
    model=_words_or_null,
    ep=_words_or_null,
    device=_devices,
    precision=st.sampled_from(["auto", "fp32", "int8", "w8a16", "w4a16"]),
    loader=st.none() | _loader,
    export=_export,
    optim=st.none() | st.dictionaries(st.sampled_from(["gelu_fusion", "constant_folding"]), _booleans),
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
recipes = st.builds(lambda one, other: {**one, **other}, _others, _quantized)
