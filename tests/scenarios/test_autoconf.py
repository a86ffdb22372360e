"""The capability search in whole builds: discoveries of analyze are applied, analyzed again, reported and recorded.

A table of the test describes the target: a CPU on which Gelu runs but Erf does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from oneprocess import OneProcess
from onnx_samples import perceptron
from scenario import Folder
from support_samples import with_gelu, write_table
from user_project import UserResult


class Tables(Folder):
    """A folder with models, a cache and support tables, and the command line in it."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "WINML_DAG_SUPPORT_DIR": str(self.folder / "tables")}

    def result(self, *arguments: str) -> UserResult:
        done = self.run(*arguments, "--format", "json")
        return UserResult(done.returncode, json.loads(done.stdout), done.stderr)

    def operators(self, *parts: str) -> set[str]:
        return {node.op_type for node in onnx.load(self.folder.joinpath(*parts)).graph.node}


GELU = ("build", "-m", "gelu.onnx", "--ep", "cpu", "-p", "fp32", "-o", "gelu")
PLAIN = ("build", "-m", "plain.onnx", "--ep", "cpu", "-p", "fp32", "-o", "plain")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, commands: OneProcess | None) -> Tables:
    """Two models, one with a GELU, and a table of all their operators: only Erf fails."""
    folder = Tables(tmp_path_factory.mktemp("autoconf"), commands)
    (folder.folder / "tables").mkdir()
    with_gelu(folder.folder / "gelu.onnx")
    perceptron(folder.folder / "plain.onnx")
    # A separate cache, so that these results are not found later.
    fusing = ("optimize", "-m", "gelu.onnx", "--no-validate", "--cache-dir", "measured", "--enable-gelu-fusion")
    folder.run(*fusing, "-o", "fused.onnx")
    assert "Gelu" in folder.operators("fused.onnx")
    write_table(
        folder.folder / "tables" / "cpu_cpu.support", [folder.folder / "gelu.onnx", folder.folder / "fused.onnx"], "Erf"
    )
    return folder


@dataclass(frozen=True)
class Built:
    """The folder with both models built, and the output of the builds."""

    folder: Tables
    gelu: UserResult
    plain: UserResult


@pytest.fixture(scope="module")
def built(made: Tables) -> Built:
    return Built(made, made.result(*GELU), made.result(*PLAIN))


def test_discovered_optimization_is_applied_and_reanalyzed(built: Built) -> None:
    said, folder = built.gelu, built.folder
    assert said.with_status("ran") == ["optimize.0", "analyze.0", "optimize.1", "analyze.1", "validate", "finalize"]
    assert not any("2" in name for name in said.stages), "what follows adds nothing, and is no round to tell of"
    assert "Gelu" in folder.operators("gelu", "model.onnx")
    result = folder.json("gelu", "analyze_result.json")
    assert result["results"][0]["classification"]["unsupported"] == []
    assert result["analysis_timestamp"] is None

    manifest = folder.json("gelu", "build_manifest.json")
    assert manifest["analyze_iterations"] == 2
    assert manifest["analyze_unsupported_node_count"] == 0
    assert manifest["analyze_details"]["autoconf"] == {"gelu_fusion": True}
    assert manifest["analyze_details"]["autoconf_not_converged"] is False
    makers = {stage["id"]: stage.get("inputs", {}) for stage in manifest["stages"] if "id" in stage}
    assert makers["finalize"]["model"]["from"] == "optimize.1", "a stage that the manifest has"
    settings = folder.json("gelu", "winml_build_config.json")
    assert (settings["auto"], settings["optim"]) == (False, {"gelu_fusion": True})


@pytest.mark.parametrize("name", ["gelu", "plain"])
def test_written_settings_reproduce_bytes_without_search(built: Built, name: str) -> None:
    said = built.folder.result("build", "-c", f"{name}/winml_build_config.json", "-o", f"{name} again")
    assert said.code == 0
    assert said.stages["analyze"]["status"] == "skipped"
    models = [(built.folder.folder / folder / "model.onnx").read_bytes() for folder in (name, f"{name} again")]
    assert models[0] == models[1]
    assert said.with_status("ran") == (["optimize.0"] if name == "gelu" else []), "what follows reads the same bytes"


def test_search_without_discovery_runs_no_extra_round(built: Built) -> None:
    """Even if every stage has to run: a completed round does not run again."""
    line = ["optimize.0", "analyze.0", "validate", "finalize"]
    assert built.plain.with_status("ran") == line
    assert built.folder.result(*PLAIN, "--rebuild").with_status("ran") == line
    assert built.folder.json("plain", "build_manifest.json")["analyze_iterations"] == 1
    assert "analyze.3" in built.folder.run(*PLAIN, "--verbose").stdout
    assert '"optimize.3"' in built.folder.run("graph", *PLAIN[1:]).stdout
    reproduced = built.folder.result("reproduce", "analyze", *PLAIN[1:]).value
    assert [stage["id"] for stage in reproduced["stages"]] == ["analyze.0"]


def test_disabling_search_reuses_all_stages(built: Built) -> None:
    said = built.folder.result(*PLAIN[:-1], "without", "--no-analyze")
    assert said.with_status("ran") == []
    assert said.stages["analyze"]["reason"] == "--no-analyze was given"
    assert not (built.folder.folder / "without" / "analyze_result.json").exists()


def test_unsupported_operator_fails_build_until_allowed(built: Built) -> None:
    """Repeated builds run nothing, and the analysis is kept for inspection, until the operator is allowed."""
    recipe = {"model": "gelu.onnx", "ep": "cpu", "precision": "fp32", "optim": {"gelu_fusion": False}}
    (built.folder.folder / "refused.json").write_text(json.dumps(recipe))
    build = ("build", "-c", "refused.json", "-o", "refused")
    said = built.folder.result(*build)
    assert (said.code, said.with_status("failed")) == (1, ["analyze.3"])
    failed = said.stages["analyze.3"]
    assert "CPUExecutionProvider (cpu) cannot run 1 node of the model: Erf (1 node: erf; " in failed["error"]
    assert json.loads(Path(failed["result"]).read_text())["results"][0]["has_errors"] is True
    assert {"validate", "finalize"} <= {*said.with_status("skipped")}
    assert not (built.folder.folder / "refused" / "model.onnx").exists()

    again = built.folder.run(*build)
    assert (again.returncode, "ran in" in again.stdout) == (1, False)
    assert "error: CPUExecutionProvider (cpu) cannot run" in again.stderr
    assert f"full result of analyze: {failed['result']}" in again.stderr
    assert built.folder.result("plan", *build[1:]).stages["analyze.3"]["error"] == failed["error"]

    allowed = built.folder.result(*build, "--allow-unsupported-nodes")
    assert (allowed.code, allowed.with_status("ran")) == (0, ["validate", "finalize"])
    manifest = built.folder.json("refused", "build_manifest.json")
    assert manifest["analyze_unsupported_node_count"] == 1
    assert any("cannot run 1 node: Erf (1)" in notice for notice in manifest["notices"])


def test_plan_shows_only_certain_rounds(made: Tables) -> None:
    planned = made.result("plan", *GELU[1:], "--cache-dir", "new")
    assert planned.with_status("ran") == ["optimize.0", "analyze.0", "validate", "finalize"]
    assert planned.stages["validate"]["reason"] == "depends on the output of optimize.0"
