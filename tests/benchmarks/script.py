"""Plain scripts: what a build with nothing cached does, with the same functions and settings, each in a process of its
own, on plain folders, without keys, digests or a store; and small ones that make models.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from winml_dag.engine.inputs import place_source
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

ONE_MODEL = """
import sys, numpy, onnx
from onnx import TensorProto, helper, numpy_helper
weights = numpy_helper.from_array(numpy.ones((512, 512), numpy.float32), "w")
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 512])
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x")], [value("y")], [weights])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
"""
# A model of 1 GiB in safetensors, for a width of 1536.
BERT = """
import sys
from transformers import BertConfig, BertModel
width = int(sys.argv[1])
config = BertConfig(hidden_size=width, num_hidden_layers=9, num_attention_heads=12, intermediate_size=4 * width,
                    vocab_size=8192)
BertModel(config).save_pretrained("model")
"""
TRUNCATED = """
import sys, torch
from transformers import AutoTokenizer, BertModel
BertModel.from_pretrained(sys.argv[1], num_hidden_layers=int(sys.argv[2]), dtype=torch.float32).save_pretrained("model")
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained("model")
"""
PLAIN_EXPORT = """
import sys, torch
from transformers import BertModel
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = BertModel.from_pretrained("model", attn_implementation="eager")
    def forward(self, ids, mask, types):
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)[0]
ids = torch.ones(1, int(sys.argv[1]), dtype=torch.int64)
torch.onnx.export(Plain().eval(), (ids, ids, ids), "plain.onnx", dynamo=False, opset_version=17)
"""
# A stage's own function, with folders where a build has copies.
_CALL = """
import json, os, sys
from pathlib import Path
from winml_dag.engine.stage import Workspace, read_config
from winml_dag.engine.worker import load
work, config_class, config, inputs, outputs = json.loads(sys.argv[1])
workspace = Workspace({slot: Path(path) for slot, path in inputs.items()}, {s: Path(p) for s, p in outputs.items()})
load(work)(read_config(load(config_class), config), workspace)
os._exit(0)
"""


def script_steps(project: Path, recipe: Path) -> list[list[Any]]:
    """Return the script's calls: function, config class, config, folder by input slot, folder by output slot."""
    with closing(Store(project / "plan-cache")) as store:
        planned = plan_request(Request(recipe, Overrides(), project / "unused"), store, download=False)
    graph = planned.graph
    folders: dict[str, str] = {}
    for number, source in enumerate(graph.sources.values()):
        folder = project / f"source{number}"
        folder.mkdir()
        place_source(source, planned.sources[source.name], folder)
        folders[source.name] = str(folder)
    steps = []
    for node in graph.nodes:
        for slot in node.stage.outputs:
            folders[node.output(slot)] = f"../{node.id}/{slot}"
        steps.append(
            [
                node.id,
                node.stage.work,
                node.stage.config,
                node.config,
                {slot: folders[name] for slot, name in node.inputs.items()},
                {slot: folders[node.output(slot)] for slot in node.stage.outputs},
            ]
        )
    return steps


def run_script(folder: Path, steps: list[list[Any]]) -> float:
    """Return the seconds that the script takes in the empty *folder*."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**inherited, "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    began = time.perf_counter()
    for name, *call in steps:
        work = folder / "work"
        work.mkdir(parents=True)
        for path in call[-1].values():
            (work / path).resolve().mkdir(parents=True)
        with (folder / f"{name}.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-P", "-c", _CALL, json.dumps(call)],
                cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True,
            )  # fmt: skip
        shutil.rmtree(work)
    return time.perf_counter() - began
