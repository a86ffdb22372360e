from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.ep.availability import resolve_target
from winml_dag.ep.provider import compile_options, complete_options
from winml_dag.ep.providers.qnn import SOCS
from winml_dag.ep.registry import QNN, find_ep
from winml_dag.errors import UsageError

NPU = resolve_target("qnn", "npu")
GPU = resolve_target("qnn", "gpu")


@given(st.sampled_from(SOCS), st.booleans(), st.booleans())
def test_soc_model_is_always_there_and_fits_htp_arch(soc, say_model, say_arch):
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


def test_the_npu_is_a_snapdragon_x_elite_and_a_newer_chip_than_our_table_is_left_to_the_compiler():
    options = complete_options(NPU, {})
    assert (options["soc_model"], options["htp_arch"]) == ("60", "73")
    newer = complete_options(NPU, {"soc_model": "99999"})
    assert (newer["soc_model"], newer.get("htp_arch")) == ("99999", None)
    assert complete_options(GPU, {}) == {}


@given(st.data())
def test_completing_again_changes_nothing(data):
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
def test_what_qnn_would_silently_ignore_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        complete_options(NPU, options)


def test_another_device_takes_no_options_of_the_npu():
    with pytest.raises(UsageError, match="for the npu"):
        complete_options(GPU, {"htp_arch": "73"})
    with pytest.raises(UsageError, match="no provider options"):
        complete_options(resolve_target("cpu", None), {"a": "b"})
    assert (QNN.file_options, find_ep("cpu").file_options) == ({"op_affinity"}, frozenset())


def test_the_device_of_other_tools_configurations_is_understood():
    assert "device_type" not in complete_options(NPU, {"device_type": "NPU"})
    assert complete_options(resolve_target("openvino", "gpu"), {}) == {"device_type": "GPU"}


def test_what_only_matters_at_run_time_is_no_reason_to_compile_again():
    quiet = compile_options(NPU, complete_options(NPU, {"htp_performance_mode": "power_saver"}))
    assert quiet == compile_options(NPU, complete_options(NPU, {"rpc_control_latency": "100"}))
    assert quiet != compile_options(NPU, complete_options(NPU, {"vtcm_mb": "4"}))


def test_openvinos_plugin_gets_no_option_that_it_would_ignore(tmp_path, monkeypatch):
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
