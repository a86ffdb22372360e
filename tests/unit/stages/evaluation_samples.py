"""Models whose outputs come from a table, a tokenizer of a few words, and a run of the evaluate stage.

Token number *i* gets row *i* of the table, so a test can predict the model's outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from optimize_samples import graph

from winml_dag.engine.stage import Workspace
from winml_dag.ep.availability import RunTarget
from winml_dag.stages.evaluate import EvaluateConfig, EvaluateFields
from winml_dag.stages.evaluate.evaluation import run

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
    if pooled:
        nodes = f"read = Mul (rows, mask3) {outputs[0]} = ReduceSum <keepdims = 0> (read, middle)"
        shape = f"{batch}, {rows.shape[1]}"
    elif len(outputs) == 1:
        nodes, shape = f"{outputs[0]} = Identity (rows)", f"{batch}, {length}, {rows.shape[1]}"
    else:
        nodes = "a, b = Split <axis = 2, num_outputs = 2> (rows)"
        nodes += "".join(f" {name} = Squeeze ({part}, last)" for part, name in zip("ab", outputs, strict=True))
        shape = f"{batch}, {length}"
    made = ", ".join(f"float[{shape}] {name}" for name in outputs)
    model = graph(
        f"""g (int64[{batch}, {length}] input_ids, int64[{batch}, {length}] attention_mask) => ({made})
        <int64[1] middle = {{1}}, int64[1] last = {{2}}> {{ rows = Gather (table, input_ids)
        mask = Cast <to = 1> (attention_mask) mask3 = Unsqueeze (mask, last) {nodes} }}""",
        table=rows,
    )
    onnx.save(model, path)
    return path


def linear_model(path: Path, weights: NDArray[np.floating[Any]], *, batch: int | str = 1) -> Path:
    """Save ``logits = x W``, in the type of *weights*."""
    kind = {"float32": "float", "float16": "float16"}[weights.dtype.name]
    rows, columns = weights.shape
    text = f"g ({kind}[{batch}, {rows}] x) => ({kind}[{batch}, {columns}] logits) {{ logits = MatMul (x, w) }}"
    onnx.save(graph(text, w=weights), path)
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


def evaluate(
    folder: Path,
    model: Path,
    data: Path | Sequence[Mapping[str, Any]] | None,
    task: str | None = None,
    *,
    reference: Path | None = None,
    processor: Path | None = None,
    **fields: Any,
) -> Any:
    """Return the outputs of the stage, with copies of the inputs in *folder*, as in the engine.

    Args:
        data: a file or folder, or rows.
        task: None to compare outputs.
    """
    if isinstance(data, Sequence):
        rows, data = data, folder / "data.jsonl"
        folder.mkdir(exist_ok=True)
        data.write_text("\n".join(map(json.dumps, rows)))
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
    given = EvaluateFields("compare" if task is None else "onnx", task, **fields)
    report = run(EvaluateConfig(given, RunTarget("CPUExecutionProvider", "cpu")), Workspace(inputs, {"report": out}))
    assert json.loads((out / "evaluation.json").read_text()) == json.loads(json.dumps(report))
    return report


def value(report: Any, metric: str, which: str = "candidate") -> float:
    """Return a metric of a report, after checking that it is within its interval."""
    found = report["metrics"][metric][which]
    assert found["low"] <= found["value"] <= found["high"]
    return float(found["value"])
