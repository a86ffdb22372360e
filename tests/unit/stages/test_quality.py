"""The thresholds of a model's quality: one pair per named precision."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

from winml_dag.recipe.fields import IntegerType, WeightType
from winml_dag.recipe.precision import PRECISIONS, precision_name
from winml_dag.recipe.schema import Quant
from winml_dag.stages.quality import MINIMUM_COSINE, USUAL_COSINE, what_to_try

STATIC: list[dict[str, Any]] = [
    {"weight_type": weight, "activation_type": activation}
    for weight, activation in product(get_args(WeightType), get_args(IntegerType))
]
OTHERS: list[dict[str, Any]] = [
    {"mode": "fp16"},
    {"mode": "dynamic"},
    *(
        {"mode": "rtn", "rtn_bits": bits, "rtn_float_type": floats}
        for bits in (4, 8)
        for floats in ("float32", "float16")
    ),
]


def test_every_precision_has_its_bounds_and_no_other_has() -> None:
    names = {precision_name(Quant(**fields)) for fields in (*STATIC, *OTHERS)}
    assert MINIMUM_COSINE.keys() == names | {"fp32"}
    assert USUAL_COSINE.keys() == names


def test_what_is_usual_is_not_below_what_is_broken() -> None:
    for name, usual in USUAL_COSINE.items():
        assert MINIMUM_COSINE[name] < usual < 1 or (name == "fp16" and MINIMUM_COSINE[name] == usual)


def test_what_to_try_instead_is_a_precision_with_a_higher_bound() -> None:
    for name in USUAL_COSINE:
        advice = what_to_try(name, calibrated_on=None, measured_on="npz")
        if advice:
            higher = advice.removeprefix("To try: use the precision ").removesuffix(".")
            assert higher in PRECISIONS
            assert USUAL_COSINE[higher] >= USUAL_COSINE[name]
