"""``inspect`` and ``verify`` on the output folder of a real build for QNN."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from scenario import Project

from winml_dag.cli import run

pytestmark = pytest.mark.slow


def test_a_compiled_output_tells_what_it_is_and_what_was_done_to_it(
    built_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    out = tmp_path / "out"
    shutil.copytree(built_project.out, out)

    def says(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert run([*arguments, "--format", "json"]) == code
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        return value

    found = says("inspect", str(out))
    assert found["is_compiled"]
    assert found["cpu_nodes"] == []
    assert found["precision"]["scheme"] == "compiled"
    assert found["provenance"]["precision"] == "w8a8"
    assert found["provenance"]["matches"] is True
    assert found["provenance"]["made_by"] == "finalize"
    (context,) = found["ep_context"]
    assert (context["source"], context["embedded"]) == ("QNNExecutionProvider", False)
    assert context["sdk_version"].startswith("v2.")
    assert found["ep_compatibility"]["QNNExecutionProvider"]
    (binary,) = found["files"]
    assert (binary["name"], binary["holds"], binary["present"]) == (context["file"], "binary", True)
    assert found["warnings"] == found["errors"] == []

    quantized = says("inspect", str(out / "quantized.onnx"))
    assert (quantized["precision"]["name"], quantized["precision"]["scheme"]) == ("w8a8", "qdq")
    assert quantized["provenance"]["made_by"] == "quantize"

    assert says("verify", str(out))["sound"]
    content = bytearray((out / binary["name"]).read_bytes())
    content[len(content) // 2] ^= 1
    (out / binary["name"]).write_bytes(content)  # onnxruntime loads such a binary without an error
    (checked,) = says("verify", str(out / "model.onnx"), code=1)["folders"]
    assert {file["path"]: file["found"] for file in checked["files"]} == {
        str(out / "model.onnx"): "sound",
        str(out / binary["name"]): "changed",
    }
    (out / binary["name"]).unlink()
    assert f"{binary['name']}, which model.onnx needs, does not exist" in says("inspect", str(out), code=3)["errors"][0]
