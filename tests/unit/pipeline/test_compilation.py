"""The compile settings that result from a recipe and command-line options together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_samples import resolved, save_model

from winml_dag.engine.stage import Skip
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.ep.providers.qnn import SOCS
from winml_dag.errors import RecipeError, UsageError
from winml_dag.pipeline.decisions import ResolveContext, provider_options
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.stageconfigs import compile_config, finalize_config
from winml_dag.recipe.schema import Recipe
from winml_dag.stages.compile import CompileConfig

NPU = resolve_target("qnn", "npu")
GPU = resolve_target("qnn", "gpu")
CPU = resolve_target("cpu", None)


def context(
    section: dict[str, Any] | None, settings: dict[str, Any] | None = None, target: Any = NPU
) -> ResolveContext:
    recipe = Recipe.model_validate({} if section is None else {"compile": section})
    overrides = Overrides(settings={"compile": settings or {}})
    return ResolveContext(recipe, None, overrides, Path()).with_compile_settings(target)


def options(section: dict[str, Any] | None, settings: dict[str, Any] | None = None) -> dict[str, str]:
    return dict(provider_options(context(section, settings), NPU))


@settings(max_examples=30)
@given(st.sampled_from(SOCS), st.booleans())
def test_all_names_of_a_chip_mean_the_same_options(soc: Any, upper: bool) -> None:
    meant = complete_options(NPU, {"soc_model": soc.model})
    for name in (soc.model, int(soc.model), soc.part, soc.chip, soc.name, f"  {soc.name} "):
        if name:
            assert options({"soc_model": name.upper() if upper and isinstance(name, str) else name}) == meant


def test_npu_fields_set_provider_options() -> None:
    assert options({"htp_arch": 75})["soc_model"] == "57"
    assert options({"htp_optimization_level": 0})["htp_graph_finalization_optimization_mode"] == "0"
    assert options({"soc_model": 60, "provider_options": {"soc_model": "60"}}) == options(None)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"soc_model": 57, "provider_options": {"soc_model": "60"}}, "compile.soc_model means soc_model '57'"),
        (
            {
                "htp_optimization_level": 1,
                "provider_options": {"htp_graph_finalization_optimization_mode": "3"},
            },
            "compile.htp_optimization_level means htp_graph_finalization_optimization_mode '1'",
        ),
        ({"soc_model": 57, "htp_arch": 73}, "whose htp_arch is 75, not 73"),
        ({"soc_model": "Snapdragon Z"}, "There is no chip 'Snapdragon Z'"),
    ],
)
def test_contradictory_compile_options_are_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        options(section)


def test_run_options_do_not_enable_null_compile_section() -> None:
    told = {"provider_options": {"vtcm_mb": "8"}}
    recipe = Recipe.model_validate({"ep": "qnn", "compile": None})
    null = ResolveContext(recipe, None, Overrides(settings={"compile": told}), Path()).with_compile_settings(NPU)
    assert isinstance(compile_config(null, NPU), Skip)
    assert provider_options(null, NPU)["vtcm_mb"] == "8"
    wanted = replace(null, overrides=replace(null.overrides, compile=True))
    assert isinstance(compile_config(wanted, NPU), CompileConfig)


@pytest.mark.parametrize("target", [GPU, CPU])
def test_npu_fields_are_refused_for_other_targets(target: Any) -> None:
    with pytest.raises(UsageError, match=r"compile\.soc_model is for QNNExecutionProvider on the npu"):
        provider_options(context({"soc_model": 60}, target=target), target)


def test_run_options_are_merged_and_take_precedence() -> None:
    recipe = {"provider_options": {"vtcm_mb": "4", "soc_model": "60"}, "embed_context": True}
    found = options(recipe, {"provider_options": {"vtcm_mb": "8", "extended_udma": "1"}})
    assert (found["vtcm_mb"], found["extended_udma"], found["soc_model"]) == ("8", "1", "60")
    # However the recipe specifies the chip, the command line takes precedence, including its architecture.
    for written in (recipe, {"soc_model": 60, "htp_arch": 73}, {"htp_arch": 73}):
        for said in ({"soc_model": 57}, {"provider_options": {"soc_model": "57"}}, {"htp_arch": 75}):
            now = options(written, said)
            assert (now["soc_model"], now["htp_arch"]) == ("57", "75")


def test_run_option_paths_are_relative_to_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = context({}, {"provider_options": {"op_affinity": "a.json"}, "qnn_sdk_root": "sdk"}).recipe.compile
    assert section is not None
    assert section.provider_options["op_affinity"] == str(tmp_path / "a.json")
    assert section.qnn_sdk_root == str(tmp_path / "sdk")


def test_unknown_compile_field_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"The compile section is wrong:\n  compile.soc_modle: unknown key"):
        context({}, {"soc_modle": 60})
    with pytest.raises(RecipeError, match=r"  compile.htp_arch: 7 is not one of 68, 69, 73, 75, 79, 81$"):
        context({}, {"htp_arch": 7})


def test_full_offload_without_compile_is_refused_unless_disabled_by_option() -> None:
    required = context({"require_full_offload": True})
    skipped = Skip("there is nothing to compile")
    with pytest.raises(UsageError, match=r"require_full_offload is set, but there is nothing to compile"):
        finalize_config(required, skipped)
    left_out = replace(required, overrides=Overrides(compile=False))
    assert finalize_config(left_out, skipped).compile.require_full_offload is False


@pytest.mark.parametrize(
    ("recipe", "overrides", "words"),
    [
        ({"compile": {"quantize": True}}, Overrides(), "compile.quantize is true, but nothing would be quantized"),
        ({"precision": "fp32", "compile": {"quantize": True}}, Overrides(), "quant section, or compile.quant_config"),
        ({"compile": {"quantize": False, "quant_config": {}}}, Overrides(), "quantize is false, but there is"),
        ({"compile": {"quantize": True, "quant_config": {}}}, Overrides(), None),
        ({"quant": {}, "compile": {"quantize": True}}, Overrides(), None),
        ({"precision": "w8a8", "compile": {"quantize": True}}, Overrides(), None),
        ({"compile": {"quantize": True}}, Overrides(quant=False), None),
        ({"quant": {}, "compile": {"quantize": False}}, Overrides(), None),
        ({"compile": {"quantize": None}}, Overrides(), None),
    ],
)
def test_legacy_compile_quantize_field_is_accepted_if_consistent(
    tmp_path: Path, recipe: dict[str, Any], overrides: Overrides, words: str | None
) -> None:
    save_model(tmp_path / "model.onnx")
    whole = {"model": "model.onnx", "ep": "cpu", **recipe}
    if words is not None:
        with pytest.raises(RecipeError, match=words):
            resolved(tmp_path, whole, overrides)
        return
    without = {name: value for name, value in recipe["compile"].items() if name != "quantize"}
    ours, plain = resolved(tmp_path, whole, overrides), resolved(tmp_path, {**whole, "compile": without}, overrides)
    assert (ours.configs["quantize"], ours.configs["compile"]) == (plain.configs["quantize"], plain.configs["compile"])
    assert ours.summary.settings == plain.summary.settings


def test_missing_compile_section_depends_on_target() -> None:
    for recipe in (context(None), context(None, {"embed_context": True})):
        assert isinstance(compile_config(recipe, NPU), CompileConfig)
        assert isinstance(compile_config(recipe, CPU), Skip)
