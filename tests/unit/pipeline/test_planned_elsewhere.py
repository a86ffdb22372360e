"""Requirements that this machine lacks: reported by commands that only inspect a build, rejected by those that
run it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from winml_dag.ep.availability import installed
from winml_dag.ep.providers.vitisai import VITISAI
from winml_dag.errors import UsageError
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

RECIPE = {
    "loader": {"task": "image-classification", "model_type": "resnet"},
    "compile": {"execution_provider": "vitisai", "provider_options": {}},
}

pytestmark = pytest.mark.skipif(installed(VITISAI), reason="this machine has VitisAI")


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE), encoding="utf-8")
    return Request(recipe, Overrides(random_weights=True))


def test_a_provider_that_only_another_machine_has_is_planned(request_: Request, tmp_path: Path) -> None:
    planned = plan_request(request_, Store(tmp_path / "cache"), download=False, needs_folder=False)
    assert [node.id for node in planned.graph.nodes if node.stage.name == "compile"] == ["compile"]
    assert planned.summary.execution_provider == VITISAI.name
    told = [notice for notice in planned.summary.notices if "but not run" in notice]
    assert len(told) == 1
    assert "not installed here" in told[0]


def test_and_who_builds_is_refused_also_after_it_was_looked_at(request_: Request, tmp_path: Path) -> None:
    store, asked = Store(tmp_path / "cache"), replace(request_, output_dir=tmp_path / "out")
    for _ in range(2):
        plan_request(asked, store, download=False, needs_folder=False)
    with pytest.raises(UsageError, match="VitisAIExecutionProvider is not installed here"):
        plan_request(asked, store, download=True)


def test_a_task_is_taken_from_the_class(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    loader = {"model_type": "bert", "model_class": "AutoModelForMaskedLM"}
    recipe.write_text(json.dumps({"loader": loader}), encoding="utf-8")
    asked = Request(recipe, Overrides(random_weights=True))
    planned = plan_request(asked, Store(tmp_path / "cache"), download=False, needs_folder=False)
    assert planned.summary.task == "fill-mask"
