"""Which stages an edit reaches: for every field of a recipe, every package, and all that surrounds a build.

A field that a stage reads and that is not in its key gives a wrong hit, one that is in its key and not read a needless
run. Compared is what the key of each stage is made from, inputs by what they are connected to: so only the stages that
an edit reaches *directly* differ, and none has to run.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from winml_dag.engine import toolchain
from winml_dag.errors import RecipeError
from winml_dag.pipeline import plan
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.resolve import build_of
from winml_dag.recipe.optim import OPTIM_FLAGS
from winml_dag.recipe.schema import Recipe
from winml_dag.store.local import LocalStore

Stages = Mapping[str, Any]
Edit = tuple[str, str, Any, str]

_LOADER = {
    "task": "text-classification",
    "model_type": "bert",
    "random_weights": {"seed": 0, "config": {"hidden_size": 32}},
}
_INPUT = {"name": "input_ids", "dtype": "int32", "shape": [1, 8], "value_range": [0, 9]}

BASES: Mapping[str, Mapping[str, Any]] = {
    "static": {"loader": _LOADER, "ep": "qnn", "quant": {}, "compile": {}},
    "fp16": {"loader": _LOADER, "ep": "qnn", "quant": {"mode": "fp16"}, "compile": {}},
    "rtn": {"loader": _LOADER, "ep": "cpu", "quant": {"mode": "rtn"}},
    "dynamic": {"loader": _LOADER, "ep": "cpu", "quant": {"mode": "dynamic"}},
    "cpu": {"loader": _LOADER, "ep": "cpu", "quant": {}},
    "float": {"loader": _LOADER, "ep": "qnn", "compile": {}},
    "folder": {"model": "model", "loader": {"task": "text-classification"}, "ep": "qnn", "quant": {}, "compile": {}},
    "text": {"model": "model", "ep": "qnn", "quant": {"calibration_data": "data.txt"}, "compile": {}},
    "inputs": {"loader": _LOADER, "export": {"input_tensors": [_INPUT], "output_tensors": [{"name": "logits"}]}},
    "no tags": {"loader": _LOADER, "export": {"enable_hierarchy_tags": False}},
    "ep in compile": {"loader": _LOADER, "compile": {"execution_provider": "qnn"}},
    "ep_device": {"loader": _LOADER, "compile": {"ep_device": {"ep": "qnn"}}},
    "option file": {
        "loader": _LOADER,
        "ep": "qnn",
        "compile": {"provider_options": {"op_affinity": "affinity.json"}},
    },
}

NOTHING = ""
REFUSED = "refused"

# Field, base recipe, its new value, and the stages that it reaches directly.
EDITS: tuple[Edit, ...] = (
    ("model", "static", "another name", NOTHING),
    ("model", "folder", "same", NOTHING),
    ("model", "folder", "other", "export"),
    ("model", "text", "other", "export"),
    ("ep", "static", "cpu", "quantize compile validate finalize"),
    ("ep", "cpu", "qnn", "quantize compile validate finalize"),
    ("device", "static", "npu", NOTHING),
    ("device", "static", "gpu", "compile validate"),
    ("precision", "static", "w8a8", NOTHING),
    ("precision", "static", "int8", NOTHING),
    ("precision", "static", "w8a16", "quantize validate"),
    ("precision", "static", "fp16", "calibrate quantize validate"),
    ("output_dir", "static", "elsewhere", NOTHING),
    ("auto", "static", False, NOTHING),
    ("skip_optimize", "static", True, "optimize calibrate quantize"),
    #
    ("loader.task", "static", "feature-extraction", "export"),
    ("loader.model_class", "static", "BertForMaskedLM", "export"),
    ("loader.model_type", "static", "roberta", "export"),
    ("loader.module_path", "static", "encoder", REFUSED),
    ("loader.user_script", "static", "script.py", REFUSED),
    ("loader.trust_remote_code", "static", True, NOTHING),
    ("loader.trust_remote_code", "folder", True, "export"),
    ("loader.path", "static", "model", NOTHING),
    ("loader.path", "folder", "other", "export"),
    ("loader.revision", "static", "v2", NOTHING),
    ("loader.revision", "folder", "v2", NOTHING),
    ("loader.random_weights.seed", "static", 1, "export"),
    ("loader.random_weights.config", "static", {"hidden_size": 64}, "export"),
    #
    ("export.opset_version", "static", 17, "export"),
    ("export.opset_version", "static", 21, NOTHING),
    ("export.batch_size", "static", 2, "export"),
    ("export.input_tensors.name", "inputs", "token_type_ids", "export"),
    ("export.input_tensors.dtype", "inputs", "int64", "export"),
    ("export.input_tensors.shape", "inputs", [1, "length"], "export"),
    ("export.input_tensors.value_range", "inputs", [0, 5], "export"),
    ("export.output_tensors.name", "inputs", "scores", "export"),
    ("export.input_tensors", "static", [], NOTHING),
    ("export.dynamic_axes", "static", {"input_ids": {"0": "batch"}}, "export"),
    ("export.dynamic_axes", "static", {}, NOTHING),
    ("export.export_params", "static", False, "export"),
    ("export.do_constant_folding", "static", False, "export"),
    ("export.verbose", "static", True, NOTHING),
    ("export.dynamo", "static", True, "export"),
    ("export.clean_onnx", "static", True, NOTHING),
    ("export.enable_hierarchy_tags", "static", False, "export"),
    ("export.hierarchy_tag_format", "static", "module_only", "export"),
    ("export.hierarchy_tag_format", "no tags", "module_only", NOTHING),
    ("export.compatibility.transformers_attention", "static", "eager", NOTHING),
    #
    *((f"optim.{flag}", "static", False, NOTHING) for flag in OPTIM_FLAGS),
    *((f"optim.{flag}", "static", True, "optimize") for flag in OPTIM_FLAGS if flag != "constant_folding"),
    ("optim.constant_folding", "static", True, NOTHING),
    #
    ("quant.mode", "static", "dynamic", "calibrate quantize validate"),
    ("quant.samples", "static", 20, "calibrate"),
    ("quant.samples", "text", 20, "calibrate"),
    ("quant.calibration_method", "static", "entropy", "calibrate"),
    ("quant.calibration_data", "static", "data.npz", "calibrate validate"),
    ("quant.calibration_data", "text", "same.txt", NOTHING),
    ("quant.calibration_data", "fp16", "data.npz", NOTHING),
    ("quant.task", "static", "fill-mask", NOTHING),
    ("quant.model_id", "static", "org/name", NOTHING),
    ("quant.dataset_name", "static", "glue", REFUSED),
    ("quant.model_type", "static", "roberta", NOTHING),
    ("quant.weight_type", "static", "int8", "quantize"),
    ("quant.weight_type", "dynamic", "int8", "quantize"),
    ("quant.weight_type", "fp16", "int8", NOTHING),
    ("quant.activation_type", "static", "int8", "quantize"),
    ("quant.activation_type", "dynamic", "int8", NOTHING),
    ("quant.per_channel", "static", False, "quantize"),
    ("quant.per_channel", "dynamic", True, "quantize"),
    ("quant.per_channel", "rtn", True, NOTHING),
    ("quant.symmetric", "static", True, "quantize"),
    ("quant.symmetric", "fp16", True, NOTHING),
    ("quant.weight_symmetric", "static", True, "quantize"),
    ("quant.weight_symmetric", "dynamic", True, "quantize"),
    ("quant.weight_symmetric", "rtn", True, NOTHING),
    ("quant.activation_symmetric", "static", True, "quantize"),
    ("quant.activation_symmetric", "static", False, NOTHING),
    ("quant.activation_symmetric", "dynamic", True, NOTHING),
    ("quant.op_types_to_quantize", "static", ["MatMul"], "quantize"),
    ("quant.op_types_to_quantize", "static", [], NOTHING),
    ("quant.op_types_to_quantize", "rtn", ["MatMul"], NOTHING),
    *(("quant.nodes_to_exclude", base, ["/head/*"], "quantize") for base in ("static", "fp16", "rtn", "dynamic")),
    ("quant.nodes_to_exclude", "static", [], NOTHING),
    ("quant.rtn_bits", "rtn", 8, "quantize validate"),
    ("quant.rtn_block_size", "rtn", 32, "quantize"),
    ("quant.rtn_symmetric", "rtn", False, "quantize"),
    ("quant.rtn_accuracy_level", "rtn", 4, "quantize"),
    ("quant.rtn_bits", "static", 8, NOTHING),
    ("quant.reduce_range", "static", True, "quantize"),
    ("quant.reduce_range", "rtn", True, NOTHING),
    ("quant.fp16_keep_io_types", "fp16", False, "quantize"),
    ("quant.fp16_op_block_list", "fp16", ["Softmax"], "quantize"),
    ("quant.fp16_op_block_list", "static", ["Softmax"], NOTHING),
    ("quant.save_calibration", "static", True, REFUSED),
    ("quant.distribution", "static", "normal", "calibrate"),
    ("quant.distribution", "text", "normal", NOTHING),
    ("quant.seed", "static", 1, "calibrate"),
    ("quant.seed", "static", 0, NOTHING),
    ("quant.seed", "text", 1, NOTHING),
    ("quant.calibration_load_path", "static", "ranges.json", REFUSED),
    ("quant.calibration_save_path", "static", "ranges.json", REFUSED),
    #
    ("compile.provider_options", "static", {"soc_model": "57"}, "compile validate"),
    ("compile.provider_options", "static", {"htp_performance_mode": "balanced"}, "validate"),
    ("compile.provider_options", "static", {"soc_model": "60"}, NOTHING),
    ("compile.provider_options", "option file", {"op_affinity": "renamed.json"}, NOTHING),
    ("compile.provider_options", "option file", {"op_affinity": "other.json"}, "compile"),
    ("compile.provider_option_file_keys", "option file", ["op_affinity"], NOTHING),
    ("compile.enable_ep_context", "static", False, "compile validate finalize"),
    ("compile.embed_context", "static", True, "compile"),
    ("compile.compiler", "static", "ort_session", "compile"),
    ("compile.compiler", "static", "qairt", REFUSED),
    ("compile.qnn_sdk_root", "static", "/opt/qairt", NOTHING),
    ("compile.device", "static", "gpu", "compile validate"),
    ("compile.execution_provider", "ep in compile", "cpu", "compile validate finalize"),
    ("compile.ep_device.ep", "ep_device", "cpu", "compile validate finalize"),
    ("compile.ep_device.device", "ep_device", "gpu", "compile validate"),
    ("compile.ep_device.source", "ep_device", "catalog", NOTHING),
    ("compile.validate", "static", False, "validate finalize"),
    ("compile.verbose", "static", True, NOTHING),
    ("compile.quant_config", "float", {"weight_type": "int8"}, "calibrate quantize compile validate"),
    ("compile.ep_config", "static", {"embed_context": True}, "compile"),
    #
    ("validate.enabled", "static", False, "validate finalize"),
    ("validate.min_cosine", "static", 0.5, "validate"),
    ("validate.samples", "static", 5, "validate"),
    ("validate.seed", "static", 1, "validate"),
    ("validate.seed", "text", 1, NOTHING),
)

# Whose version reaches which stages, in "static" and, where that differs, in "text". All others reach none.
PACKAGES = {
    "torch": "export",
    "transformers": "export",
    "onnxscript": "export optimize",
    "onnx-ir": "export optimize quantize",
    "onnx": "export optimize calibrate quantize validate finalize",
    "numpy": "optimize calibrate quantize validate",
    "onnxruntime": "optimize calibrate quantize compile validate",
    "onnxruntime-qnn": "compile validate",
}
PACKAGES_WITH_TEXT = {"transformers": "export calibrate validate", "tokenizers": "calibrate validate"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with whatever the recipes name. The provider's library is a small file, to be changed by tests."""
    folder = tmp_path / "project"
    make_project(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(plan, "library_files", lambda ep: (folder / "libProvider.so",) if ep.plugin_module else ())
    return folder


def make_project(folder: Path) -> None:
    for name, weights in (("model", b"weights"), ("same", b"weights"), ("other", b"other weights")):
        (folder / name).mkdir(parents=True)
        config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / name / "model.safetensors").write_bytes(weights)
        (folder / name / "tokenizer.json").write_bytes(b"{}")
    for name in ("data.npz", "data.txt", "same.txt", "affinity.json", "renamed.json", "libProvider.so"):
        (folder / name).write_bytes(b"content")
    (folder / "other.json").write_bytes(b"other content")


def stages_of(recipe: Mapping[str, Any], folder: Path, overrides: Overrides = Overrides()) -> dict[str, Any]:  # noqa: B008
    """What the key of each stage is made from."""
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    store = LocalStore(folder / "cache")
    try:
        build = build_of(Request(path, overrides, folder / "out"), store.folder, download=False)
        planned = plan.plan_build(build, store.fingerprints)
    finally:
        store.close()
    digests = {name: artifact.digest for name, artifact in planned.sources.items()}
    return {
        node.stage.name: {
            "version": node.stage.version,
            "config": node.config,
            "inputs": {slot: digests.get(name, name) for slot, name in node.inputs.items()},
            "toolchain": dict(node.toolchain),
        }
        for node in planned.graph.nodes
    }


def reached(before: Stages, after: Stages) -> set[str]:
    """Stages whose key differs, or that only one of the two has. That a model comes from the stage before the one that
    is gone counts as well: it is another input."""
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def edited(base: str, field: str, value: Any) -> dict[str, Any]:
    recipe: dict[str, Any] = copy.deepcopy(dict(BASES[base]))
    *sections, name = field.split(".")
    place: Any = recipe
    for section in sections:
        place = place.setdefault(section, {})
        place = place[0] if isinstance(place, list) else place
    place[name] = value
    return recipe


@pytest.mark.parametrize("edit", EDITS, ids=[f"{field}-{base}-{value}" for field, base, value, _ in EDITS])
def test_an_edit_reaches_exactly_the_stages_that_read_the_field(project: Path, edit: Edit) -> None:
    field, base, value, expected = edit
    recipe = edited(base, field, value)
    assert recipe != BASES[base]
    if expected == REFUSED:
        with pytest.raises(RecipeError, match=r"cannot do"):
            stages_of(recipe, project)
        return
    assert reached(stages_of(BASES[base], project), stages_of(recipe, project)) == set(expected.split())


def test_every_field_of_a_recipe_is_in_the_table() -> None:
    known = {*fields_of(Recipe), *(f"optim.{flag}" for flag in OPTIM_FLAGS)}
    assert known - {field for field, *_ in EDITS} == set()
    assert {field for field, *_ in EDITS} - known == {"export.input_tensors"}  # as a whole, besides its fields


# Not built yet; other sections once more, under another name; open by what the flags are.
_NOT_ENTERED = ("eval", "compile.quant_config", "compile.ep_config", "optim")


def fields_of(section: type[BaseModel], path: str = "") -> Iterator[str]:
    for attribute, info in section.model_fields.items():
        name = f"{path}{info.alias or attribute}"
        inner = next(sections_in(info.annotation), None)
        if name in _NOT_ENTERED:
            yield from [name] if name.startswith("compile.") else []
        elif inner is None:
            yield name
        else:
            yield from fields_of(inner, f"{name}.")


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from sections_in(argument)


@pytest.mark.parametrize("base", ["static", "text"])
def test_a_package_reaches_the_stages_whose_bytes_it_shapes(
    project: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    installed = toolchain.installed_distributions()
    expected = PACKAGES if base == "static" else {**PACKAGES, **PACKAGES_WITH_TEXT}
    before = stages_of(BASES[base], project)
    for package, stages in expected.items():
        monkeypatch.setattr(toolchain, "installed_distributions", lambda name=package: {**installed, name: "99"})
        assert reached(before, stages_of(BASES[base], project)) == set(stages.split()), package
    others = {name: version if name in expected else "99" for name, version in installed.items()}
    assert others != installed
    monkeypatch.setattr(toolchain, "installed_distributions", lambda: others)
    assert reached(before, stages_of(BASES[base], project)) == set()


@pytest.mark.parametrize("build", ["onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-vitisai"])
def test_a_build_of_onnxruntime_under_another_name_counts_as_onnxruntime(
    project: Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    found = []
    for version in ("1.30.0", "1.31.0"):
        installed = {**toolchain._installed(tuple(sys.path)), build: version}
        del installed["onnxruntime"]
        monkeypatch.setattr(toolchain, "installed_distributions", lambda versions=installed: versions)
        found.append(stages_of(BASES["static"], project))
    assert reached(*found) == set(PACKAGES["onnxruntime"].split())


def test_the_providers_library_reaches_compile_and_validate(project: Path) -> None:
    bases = ("static", "cpu")
    before = [stages_of(BASES[base], project) for base in bases]
    (project / "libProvider.so").write_bytes(b"a fix from the driver's makers")
    compiled, plain = (reached(one, stages_of(BASES[base], project)) for one, base in zip(before, bases, strict=True))
    assert compiled == {"compile", "validate"}
    assert plain == set()


@pytest.mark.parametrize("stage", ["export", "optimize", "calibrate", "quantize", "compile", "validate", "finalize"])
def test_a_stages_version_reaches_the_stage(project: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    before = stages_of(BASES["static"], project)
    declared = getattr(plan, stage.upper())
    monkeypatch.setattr(plan, stage.upper(), dataclasses.replace(declared, version=declared.version + 1))
    assert reached(before, stages_of(BASES["static"], project)) == {stage}


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_a_tokenizer_reaches_only_what_reads_text(project: Path, file: str) -> None:
    """config.json is read by the model and by the tokenizer's class."""
    before = [stages_of(BASES[base], project) for base in ("folder", "text")]
    path = project / "model" / file
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    found = [
        reached(one, stages_of(BASES[base], project)) for one, base in zip(before, ("folder", "text"), strict=True)
    ]
    model = {"export"} if file == "config.json" else set()
    assert found == [model, {*model, "calibrate", "validate"}]


def test_an_adapter_in_the_folder_reaches_export_which_refuses_it(project: Path) -> None:
    before = stages_of(BASES["folder"], project)
    (project / "model" / "adapter_config.json").write_bytes(b"{}")
    assert reached(before, stages_of(BASES["folder"], project)) == {"export"}


@pytest.mark.parametrize("name", ["README.md", "flax_model.msgpack", "pytorch_model.bin", "picture.png"])
def test_what_nobody_reads_of_a_model_folder_reaches_nothing(project: Path, name: str) -> None:
    before = stages_of(BASES["text"], project)
    (project / "model" / name).write_bytes(b"new")
    assert reached(before, stages_of(BASES["text"], project)) == set()


def test_the_order_in_a_list_of_names_reaches_nothing(project: Path) -> None:
    for base, field in (
        ("static", "op_types_to_quantize"),
        ("fp16", "fp16_op_block_list"),
        ("rtn", "nodes_to_exclude"),
    ):
        one, other = (edited(base, f"quant.{field}", names) for names in (["MatMul", "Add"], ["Add", "MatMul", "Add"]))
        assert reached(stages_of(one, project), stages_of(other, project)) == set()


@pytest.mark.parametrize("base", BASES)
def test_where_and_by_whom_a_build_is_planned_reaches_nothing(project: Path, tmp_path: Path, base: str) -> None:
    """Another folder for recipe, model and data; another current folder, user, locale, time zone and hash order."""
    before = stages_of(BASES[base], project)
    elsewhere = tmp_path / "somebody else's" / "folder"
    shutil.copytree(project, elsewhere, ignore=shutil.ignore_patterns("cache"))
    surroundings = {
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "LANG": "C",
        "USER": "somebody",
        "LOGNAME": "somebody",
        "HOME": str(elsewhere),
        "HOSTNAME": "elsewhere",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
    }
    program = f"""
import json
from pathlib import Path
from test_keys_of_fields import BASES, plan, stages_of
folder = Path({str(elsewhere)!r})
plan.library_files = lambda ep: (folder / "libProvider.so",) if ep.plugin_module else ()
print(json.dumps(stages_of(BASES[{base!r}], folder)))
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == json.loads(json.dumps(before))
