"""Models whose outputs come from a table, a tokenizer of a few words, and a run of the evaluate stage.

Token number *i* gets row *i* of the table, so a test can predict the model's outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from winml_dag.engine.stage import Workspace
from winml_dag.stages.evaluate import EvaluateConfig, EvaluateFields
from winml_dag.stages.evaluate.evaluation import run
from winml_dag.stages.target import RunTarget

WORDS = tuple(f"w{number}" for number in range(24))
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS)
LENGTH = 12

Table = NDArray[np.float32]


def table(columns: int, seed: int = 0) -> Table:
    return np.random.default_rng(seed).normal(size=(len(VOCABULARY), columns)).astype(np.float32)


def row_of(word: str) -> int:
    return VOCABULARY.index(word)


def text_model(
    path: Path,
    rows: Table,
    outputs: Sequence[str],
    *,
    pooled: bool = False,
    batch: int | str = 1,
    length: int | str = LENGTH,
) -> Path:
    """Save a model of ``input_ids`` and ``attention_mask``.

    With one name in *outputs* it returns the table's rows of all tokens, or if *pooled* their sum without padding; with
    several names, one column each.
    """
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
    ]
    constants = [numpy_helper.from_array(rows, "table"), numpy_helper.from_array(np.array([2], np.int64), "last")]
    width = rows.shape[1]
    shape: list[int | str]
    if pooled:
        nodes += [
            helper.make_node("Mul", ["rows", "mask3"], ["read"]),
            helper.make_node("ReduceSum", ["read", "axis"], [outputs[0]], keepdims=0),
        ]
        constants.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
        shape = [batch, width]
    elif len(outputs) == 1:
        nodes.append(helper.make_node("Identity", ["rows"], [outputs[0]]))
        shape = [batch, length, width]
    else:
        nodes.append(helper.make_node("Split", ["rows"], ["a", "b"], axis=2, num_outputs=2))
        nodes += [helper.make_node("Squeeze", [part, "last"], [name]) for part, name in zip("ab", outputs, strict=True)]
        shape = [batch, length]
    graph = helper.make_graph(
        nodes,
        "text",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, [batch, length])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        constants,
    )
    return save(graph, path)


def linear_model(path: Path, weights: NDArray[np.floating[Any]], *, batch: int | str = 1) -> Path:
    """Save ``logits = x W``, in the type of *weights*."""
    dtype = helper.np_dtype_to_tensor_dtype(weights.dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["logits"])],
        "linear",
        [helper.make_tensor_value_info("x", dtype, [batch, weights.shape[0]])],
        [helper.make_tensor_value_info("logits", dtype, [batch, weights.shape[1]])],
        [numpy_helper.from_array(weights, "weights")],
    )
    return save(graph, path)


def save(graph: onnx.GraphProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def write_processor(folder: Path, names: Sequence[str] = ()) -> Path:
    """Save a tokenizer as transformers does, and a config with the *names* of the classes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", row_of("[CLS]")), ("[SEP]", row_of("[SEP]"))],
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    config = {"id2label": {str(number): name for number, name in enumerate(names)}} if names else {}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def evaluate(
    folder: Path,
    model: Path,
    data: Path | None,
    fields: EvaluateFields,
    *,
    reference: Path | None = None,
    processor: Path | None = None,
) -> Any:
    """Return the outputs of the stage, with copies of the inputs in *folder*, as in the engine."""
    inputs = {}
    for slot, path in {"model": model, "reference": reference, "data": data, "processor": processor}.items():
        if path is not None:
            into = folder / "inputs" / slot
            shutil.rmtree(into, ignore_errors=True)
            if path.is_dir():
                shutil.copytree(path, into)
            else:
                into.mkdir(parents=True)
                shutil.copy(path, into)
            inputs[slot] = into
    out = folder / "out"
    out.mkdir(exist_ok=True)
    target = RunTarget("CPUExecutionProvider", "cpu")
    report = run(EvaluateConfig(fields, target), Workspace(inputs, {"report": out}))
    assert json.loads((out / "evaluation.json").read_text()) == json.loads(json.dumps(report))
    return report


def value(report: Any, metric: str, which: str = "candidate") -> float:
    """Return a metric of a report, after checking that it is within its interval."""
    found = report["metrics"][metric][which]
    assert found["low"] <= found["value"] <= found["high"]
    return float(found["value"])
