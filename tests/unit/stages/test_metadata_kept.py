"""A model's metadata (class names, producer, descriptions) is kept in the result of every stage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from ep_stage_runs import compile_config, requires_qnn, run_stage, small_network
from metadata_samples import describe, said
from optimize_samples import optimize
from quantization_samples import calibrate, image_model, pixels, quantize

from winml_dag.onnxmodel import files
from winml_dag.onnxmodel.files import resave
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.stages.compile import COMPILE
from winml_dag.stages.finalize import FINALIZE
from winml_dag.stages.shared import shared_compile_stage

W8A8 = {"weight_type": "uint8", "activation_type": "uint8"}


@pytest.mark.parametrize("capabilities", [(), ("conv_channel_affine_folding", "clamp_constant_values")])
def test_optimize_keeps_it(tmp_path: Path, capabilities: tuple[str, ...]) -> None:
    model = describe(image_model())
    assert said(optimize(tmp_path, model, *capabilities).model) == said(model)


def test_optimize_keeps_it_where_it_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float16[2, 2] x) => (float16[2, 2] y) { y = MatMul (x, x) }'
    model = describe(onnx.parser.parse_model(text))
    assert said(optimize(tmp_path, model).model) == said(model)


@pytest.mark.parametrize("rules", ["qnn", "onnxruntime"])
def test_static_quantization_keeps_it(tmp_path: Path, rules: str) -> None:
    model = describe(image_model())
    ranges = calibrate(tmp_path, model, pixels(4), samples=4)
    assert said(quantize(tmp_path, model, "static", ranges, rules, **W8A8).model) == said(model)


@pytest.mark.parametrize("mode", ["dynamic", "rtn", "fp16"])
def test_the_other_modes_of_quantization_keep_it(tmp_path: Path, mode: str) -> None:
    model = describe(image_model())
    fields = {"rtn_block_size": 16} if mode == "rtn" else {}
    assert said(quantize(tmp_path, model, mode, **fields).model) == said(model)


@requires_qnn
@pytest.mark.parametrize(("compiler", "embed"), [("ort", False), ("ort", True), ("ort_session", False)])
def test_compile_keeps_it(tmp_path: Path, compiler: str, embed: bool) -> None:
    model = describe(small_network())
    onnx.save(model, tmp_path / "model.onnx")
    config = compile_config(compiler=compiler, embed_context=embed)
    done = run_stage(COMPILE, tmp_path / "run", config, {"model": {"model.onnx": tmp_path / "model.onnx"}})
    assert not done.error
    compiled = onnx.load(done.outputs / "model" / "compiled.onnx")
    assert said(compiled) == said(model)
    assert done.metrics["ep_compatibility_info"]


@requires_qnn
def test_compile_of_several_keeps_that_of_each(tmp_path: Path) -> None:
    models = [describe(small_network()), small_network()]
    inputs = {}
    for number, model in enumerate(models):
        onnx.save(model, tmp_path / f"{number}.onnx")
        inputs[f"model_{number}"] = {"model.onnx": tmp_path / f"{number}.onnx"}
    done = run_stage(shared_compile_stage(2), tmp_path / "run", compile_config(), inputs)
    assert not done.error
    made = [onnx.load(done.outputs / "model" / f"model_{number}.onnx") for number in range(2)]
    assert [said(model) for model in made] == [said(model) for model in models]


def test_finalize_keeps_it(tmp_path: Path) -> None:
    model = describe(image_model())
    onnx.save(model, tmp_path / "model.onnx")
    done = run_stage(FINALIZE, tmp_path / "run", {}, {"model": {"model.onnx": tmp_path / "model.onnx"}})
    assert said(onnx.load(done.outputs / "model" / "model.onnx")) == said(model)


def test_moving_large_weights_to_a_file_of_their_own_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXTERNAL_DATA_THRESHOLD", 1)
    model = describe(image_model())
    model.graph.node[0].metadata_props.add(key="of a node", value="stays too")
    model.graph.node[0].doc_string = "Of a node."
    onnx.save(model, tmp_path / "model.onnx")
    resave(tmp_path / "model.onnx", tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert said(again) == said(model)
    assert again.graph.node[0] == model.graph.node[0]


def test_bytes_with_metadata_do_not_depend_on_the_process(tmp_path: Path) -> None:
    onnx.save(describe(image_model()), tmp_path / "model.onnx")
    script = (
        "from pathlib import Path; from winml_dag.onnxmodel.files import resave;resave(Path('model.onnx'), Path('{0}'))"
    )
    for name in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": name}
        subprocess.run([sys.executable, "-c", script.format(name)], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_what_a_tool_says_of_itself_does_not_come_in() -> None:
    source, made = image_model(), describe(image_model())
    made.metadata_props.add(key="ep_compatibility_info.X", value="1")
    expected = said(source)
    carry_metadata(source, made)
    assert said(made) == expected
    assert not made.metadata_props
    made.metadata_props.add(key="ep_compatibility_info.X", value="1")
    carry_metadata(describe(source), made, kept="ep_compatibility_info.")
    assert [entry.key for entry in made.metadata_props] == ["names", "stride", "author", "ep_compatibility_info.X"]
