"""A composite model, edited and built: which stages of which component run, and the contents of the folder.

The model is real (Marian with one small layer on each side), and so is every stage. It is exported only once.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from oneprocess import OneProcess
from scenario import Project, Result

from winml_dag.report.provenance.document import documents_of

_CONFIG = {
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings"), 16),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size"), 32),
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), 1),
}
RECIPE: dict[str, Any] = {
    "loader": {"model_type": "marian", "task": "translation", "random_weights": {"config": _CONFIG}},
    "ep": "cpu",
    "precision": "fp32",
    "export": {"dynamo": False},
    "auto": False,
    "validate": {"enabled": False},
    "components": {"decoder": {"quant": {"mode": "fp16"}}},
}
_FILES = ("export.onnx", "export_htp_metadata.json", "optimized.onnx", "model.onnx")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> tuple[Project, Result]:
    """The project after its first build, with its output. Do not change it; see ``project``."""
    project = Project(tmp_path_factory.mktemp("composite"), commands)
    project.recipe_file.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    return project, project.build()


@pytest.fixture
def project(built: tuple[Project, Result], tmp_path: Path, commands: OneProcess | None) -> Project:
    folder = tmp_path / "project"
    shutil.copytree(built[0].folder, folder)
    return Project(folder, commands)


def ran(result: Result) -> set[str]:
    return {stage["id"] for stage in result.stages if stage["status"] == "ran"}


def test_one_build_exports_once_and_puts_every_component_into_one_folder(built: tuple[Project, Result]) -> None:
    project, first = built
    assert first.code == 0, first.messages
    lines = {
        *("encoder.optimize.0", "encoder.finalize"),
        *("decoder.optimize.0", "decoder.quantize", "decoder.finalize"),
    }
    assert ran(first) == {"export", *lines}
    assert set(project.contents()) == {
        *(f"{name}_{file}" for name in ("encoder", "decoder") for file in _FILES),
        *("decoder_quantized.onnx", "build_manifest.json", "winml_build_config.json"),
    }
    components = first.value["builds"][0]["components"]
    assert {name: Path(told["final_artifact"]).name for name, told in components.items()} == {
        "encoder": "encoder_model.onnx",
        "decoder": "decoder_model.onnx",
    }
    assert components["encoder"]["quantization"] is None
    assert [step["id"] for step in components["decoder"]["quantization"]["steps"]] == ["decoder.quantize"]
    manifest = project.manifest()
    assert (manifest["precision"], manifest["final_artifact"]) == ("fp32 encoder, fp16 decoder", None)
    told = {name: (own["task"], own["precision"]) for name, own in manifest["components"].items()}
    assert told == {"encoder": ("feature-extraction", "fp32"), "decoder": ("text2text-generation", "fp16")}
    assert project.run("verify", "out").stdout.startswith("Intact: ")


def test_others_are_told_of_each_component_as_a_model_of_its_own(built: tuple[Project, Result]) -> None:
    (document,) = documents_of(built[0].out, "cyclonedx")
    components = json.loads(document.text)["components"]
    models = {each["name"]: each for each in components if each["type"] == "machine-learning-model"}
    encoder, decoder = (models[f"marian with random weights {name}"] for name in ("encoder", "decoder"))
    assert [file["name"] for file in encoder["components"]] == ["encoder_model.onnx"]
    precisions = [
        next(each["value"] for each in model["properties"] if each["name"] == "winml_dag:precision")
        for model in (encoder, decoder)
    ]
    assert precisions == ["fp32", "fp16"]
    (statement,) = documents_of(built[0].out, "slsa")
    subjects = {each["name"]: each["annotations"]["component"] for each in json.loads(statement.text)["subject"]}
    assert subjects == {"encoder_model.onnx": "encoder", "decoder_model.onnx": "decoder"}


def test_an_edit_of_one_component_leaves_the_stages_of_the_other(project: Project) -> None:
    project.edit(components__decoder__quant__fp16_keep_io_types=False)
    before = project.contents()
    assert ran(project.build()) == {"decoder.quantize", "decoder.finalize"}
    after = project.contents()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        *("decoder_quantized.onnx", "decoder_model.onnx", "build_manifest.json", "winml_build_config.json")
    }


def test_the_settings_of_a_build_give_it_again(project: Project) -> None:
    again = project.build(recipe="out/winml_build_config.json", out="again")
    assert (again.code, ran(again)) == (0, set())
    models = {name: data for name, data in project.contents("again").items() if name.endswith(".onnx")}
    assert models == {name: data for name, data in project.contents().items() if name.endswith(".onnx")}


def test_a_component_that_fails_spoils_nothing_of_the_other(project: Project) -> None:
    before = project.contents()
    project.edit(
        components__decoder__quant__nodes_to_exclude=["no such node"], components__encoder={"quant": {"mode": "fp16"}}
    )
    failed = project.build("--keep-going")
    assert failed.code == 1
    assert [stage["id"] for stage in failed.stages if stage["status"] == "failed"] == ["decoder.quantize"]
    assert project.contents() == before
    project.edit(components__decoder__quant__nodes_to_exclude=[])
    assert ran(project.build()) == set()
    assert project.manifest()["precision"] == "fp16"


def test_a_build_killed_in_one_component_goes_on_there(project: Project) -> None:
    before = project.contents()
    project.edit(components__encoder={"quant": {"mode": "fp16"}}, components__decoder__quant__fp16_keep_io_types=False)
    process = project.start("build", "-c", "recipe.yaml", "-o", "out", "--jobs", "1", "-v")
    assert process.stdout is not None
    started: list[str] = []
    for line in process.stdout:
        name, _, rest = line.partition(" ")
        if rest.lstrip().startswith("running"):
            started.append(name)
        if len(started) == 3:
            process.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
            break
    process.communicate()
    assert project.contents() == before
    rest = ran(project.build())
    assert rest < {f"{name}.{stage}" for name in ("encoder", "decoder") for stage in ("quantize", "finalize")}
    assert {started[0], started[1]}.isdisjoint(rest)
    assert project.run("verify", "out").stdout.startswith("Intact: ")


def test_components_are_exported_into_files_beside_each_other(project: Project) -> None:
    done = project.run("export", "-c", "recipe.yaml", "-o", "single/model.onnx", "--format", "json")
    value = json.loads(done.stdout)
    assert [Path(value["output_path"]).name, *(Path(path).name for path in value["also_paths"])] == [
        *("model_encoder.onnx", "model_decoder.onnx")
    ]
    assert next(stage["status"] for stage in value["stages"] if stage["id"] == "export") == "reused"
    assert set(project.contents("single")) == {
        *("model_encoder.onnx", "model_decoder.onnx", "model_encoder_htp_metadata.json"),
        "model_decoder_htp_metadata.json",
    }


def test_what_looks_at_a_folder_of_several_models_asks_which(project: Project) -> None:
    asked = project.run("validate", "out")
    assert (asked.returncode, "encoder_model.onnx, decoder_model.onnx" in asked.stderr) == (3, True)
    told = project.run("inspect", "out/decoder_model.onnx").stdout
    assert "decoder.finalize, as it was built" in told
    assert "in fp16 for CPUExecutionProvider" in told
    valid = project.run("validate", "out", "--submodel", "decoder")
    assert "against out/decoder_export.onnx" in valid.stdout.replace("\\", "/"), valid.stderr
    (project.out / "decoder_export.onnx").unlink()
    again = project.run("validate", "out", "--submodel", "decoder").stdout.replace("\\", "/")
    assert "against out/decoder_export.onnx" in again
    assert "reused" in again
    verified = project.run("verify", "out")
    assert (verified.returncode, "missing, an intermediate: " in verified.stdout) == (0, True), verified.stdout
    cleaned = project.run("clean", "-o", "out")
    assert (cleaned.returncode, (project.folder / "out").exists()) == (0, False), cleaned.stderr
