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
from oneprocess import OneProcess
from scenario import Project, Result, with_status

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
    project.save("recipe.yaml", RECIPE)
    return project, project.build()


@pytest.fixture
def project(built: tuple[Project, Result], tmp_path: Path, commands: OneProcess | None) -> Project:
    folder = tmp_path / "project"
    shutil.copytree(built[0].folder, folder)
    return Project(folder, commands)


def ran(result: Result) -> set[str]:
    return set(with_status(result.value, "ran", by="id"))


def test_composite_build_exports_once_into_one_folder(built: tuple[Project, Result]) -> None:
    project, first = built
    assert first.code == 0, first.messages
    assert ran(first) == {
        *("export", "encoder.optimize.0", "encoder.finalize"),
        *("decoder.optimize.0", "decoder.quantize", "decoder.finalize"),
    }
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
    assert project.says("verify", "out").startswith("Intact: ")

    # Others are told of each component as a model of its own.
    bom, slsa = (documents_of(project.out, kind)[0].text for kind in ("cyclonedx", "slsa"))
    models = [each for each in json.loads(bom)["components"] if each["type"] == "machine-learning-model"]
    assert {(each["name"], *(file["name"] for file in each["components"])) for each in models} >= {
        (f"marian with random weights {name}", f"{name}_model.onnx") for name in ("encoder", "decoder")
    }
    precisions = {
        (model["name"].rpartition(" ")[2], each["value"])
        for model in models
        for each in model["properties"]
        if each["name"] == "winml_dag:precision"
    }
    assert precisions == {("encoder", "fp32"), ("decoder", "fp16")}
    subjects = {each["name"]: each["annotations"]["component"] for each in json.loads(slsa)["subject"]}
    assert subjects == {"encoder_model.onnx": "encoder", "decoder_model.onnx": "decoder"}


def test_component_edit_leaves_other_component_unchanged(project: Project) -> None:
    project.edit(components__decoder__quant__fp16_keep_io_types=False)
    before = project.contents()
    assert ran(project.build()) == {"decoder.quantize", "decoder.finalize"}
    after = project.contents()
    assert {name for name in before if before[name] != after[name]} == {
        *("decoder_quantized.onnx", "decoder_model.onnx", "build_manifest.json", "winml_build_config.json")
    }
    again = project.build(recipe="out/winml_build_config.json", out="again")
    assert (again.code, ran(again)) == (0, set())
    assert project.models("again") == project.models()


def test_failed_component_leaves_folder_unchanged(project: Project) -> None:
    before = project.contents()
    project.edit(
        components__decoder__quant__nodes_to_exclude=["no such node"], components__encoder={"quant": {"mode": "fp16"}}
    )
    failed = project.build("--keep-going")
    assert failed.code == 1
    assert with_status(failed.value, "failed", by="id") == ["decoder.quantize"]
    assert project.contents() == before
    project.edit(components__decoder__quant__nodes_to_exclude=[])
    assert ran(project.build()) == set()
    assert project.manifest()["precision"] == "fp16"


def test_killed_composite_build_resumes(project: Project) -> None:
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
    assert project.says("verify", "out").startswith("Intact: ")


def test_components_are_exported_beside_each_other(project: Project) -> None:
    told = project.told("export", "-c", "recipe.yaml", "-o", "single/model.onnx")
    models = [Path(path).name for path in (told["output_path"], *told["also_paths"])]
    assert models == ["model_encoder.onnx", "model_decoder.onnx"]
    assert "export" in with_status(told, "reused", by="id")
    assert set(project.contents("single")) == {
        *(*models, "model_encoder_htp_metadata.json", "model_decoder_htp_metadata.json")
    }


def test_multi_model_folder_requires_submodel(project: Project) -> None:
    assert "encoder_model.onnx, decoder_model.onnx" in project.says("validate", "out", code=3)
    told = project.says("inspect", "out/decoder_model.onnx")
    assert "decoder.finalize, as it was built" in told
    assert "in fp16 for CPUExecutionProvider" in told
    one = ("validate", "out", "--submodel", "decoder")
    assert "against out/decoder_export.onnx" in project.says(*one).replace("\\", "/")
    (project.out / "decoder_export.onnx").unlink()
    again = project.says(*one).replace("\\", "/")
    assert "against out/decoder_export.onnx" in again
    assert "reused" in again
    assert "missing, an intermediate: " in project.says("verify", "out")
    project.says("clean", "-o", "out")
    assert not project.out.exists()
