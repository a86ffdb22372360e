"""Real models from packages: the onnx wheel, PaddleOCR's in ``rapidocr-onnxruntime`` and the detector of ``nudenet``.

Some are converted to other opsets, or to an open batch. Packages are installed into a separate folder, without
dependencies: only the files are needed.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from cells import CELLS, Cell, cell_of
from google.protobuf.message import DecodeError
from netgraphs import Array, Graph, Sampler, write_samples
from onnx import ModelProto, helper, numpy_helper, version_converter
from PIL import Image, ImageDraw, ImageFont

OPSETS = (9, 11, 13, 17, 21)
_FEW = tuple(map(cell_of, ("cpu/fp16", "cpu/w8a8", "qnn/w8a8")))
_SMALL = tuple(map(cell_of, ("cpu/fp32", "cpu/fp16", "cpu/w8a8", "cpu/dynamic", "qnn/w8a8")))
# Too slow for every cell: the fully connected layers of these have up to 100 million weights.
_HEAVY = tuple(map(cell_of, ("cpu/fp32", "cpu/w8a8")))
_ON_QNN_ONCE = tuple(cell for cell in CELLS if cell.ep == "cpu" or cell.precision == "w8a8")
# Factors by which a layer of random weights scales values, and their maximum.
_GAINS, _LARGEST = (2.0, 1.4, 1.0, 0.7, 0.5), 1000.0
Edit = Callable[[ModelProto], ModelProto]


class NoSuchVersion(Exception):
    """onnx cannot convert to the requested opset."""


@dataclass(frozen=True)
class Real:
    """A model in a file; ``edit`` changes it. ``shapes``: of its samples, by input; others are inferred.

    It has the interface of :class:`~netgraphs.Case`.
    """

    name: str
    family: str
    file: Path
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    edit: Edit = lambda model: model
    open_batch: bool = False

    def write(self, folder: Path) -> Graph:
        """Write model.onnx and samples to *folder*. See :meth:`netgraphs.Case.write`.

        Raises:
            NoSuchVersion: when onnx cannot convert the model.
        """
        folder.mkdir(parents=True, exist_ok=True)
        model = self.edit(onnx.load(self.file))
        onnx.save(model, folder / "model.onnx")
        graph = Graph(np.random.default_rng(0))
        initializers = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in initializers:
                graph.samplers[value.name] = self._given(len(graph.samplers)) or _sampler(
                    value, self.shapes.get(value.name)
                )
        if self.shapes:
            graph.export = {"input_tensors": [{"name": name, "shape": [*shape]} for name, shape in self.shapes.items()]}
        graph.calibration = 4
        write_samples(folder, graph.samplers, 7, 2, batched=self.open_batch)
        return graph

    def _given(self, number: int) -> Sampler | None:
        """Return the sample of one of onnx's test models, its only meaningful inputs."""
        file = self.file.parent / "test_data_set_0" / f"input_{number}.pb"
        if not file.exists():
            return None
        try:
            array = numpy_helper.to_array(onnx.load_tensor(file))
        except (ValueError, TypeError, DecodeError):  # a sequence
            return None
        return lambda *_: array.astype("U") if array.dtype == object else array


def _sampler(value: onnx.ValueInfoProto, shape: Sequence[int] | None) -> Sampler:
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    sizes = [max(1, dim.dim_value) for dim in value.type.tensor_type.shape.dim] if shape is None else list(shape)

    def sample(random: np.random.Generator, batch: int) -> Array:
        now = [batch, *sizes[1:]] if batch > 1 else sizes
        if np.dtype(dtype).kind != "f":
            return random.integers(0, 2, now).astype(dtype)
        if len(now) != 4 or now[1] != 3 or min(now[2:]) < 32:
            return np.asarray(random.uniform(-1, 1, now), dtype)
        return np.stack([_picture(random, now[2], now[3]) for _ in range(now[0])]).astype(dtype)

    return sample


def _picture(random: np.random.Generator, height: int, width: int) -> Array:
    """Draw words on patches of light colours, from -1 to 1, which text detectors find and recognizers can read."""
    size = 48
    coarse = random.uniform(180, 255, (-(-height // size), -(-width // size), 3))
    patches = coarse.repeat(size, 0).repeat(size, 1)[:height, :width]
    picture = Image.fromarray(patches.astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for top in range(6, height - 24, 40):
        word = "".join(random.choice([*"abcdefghijkmnoprstuvwxyz0123456789"], int(random.integers(4, 9))))
        font = ImageFont.load_default(size=float(random.integers(20, 32)))
        draw.text((int(random.integers(4, 12)), top), word, fill=(20, 20, 60), font=font)
    return (np.asarray(picture, np.float32) / 127.5 - 1).transpose(2, 0, 1)


def cases(wheels: Path) -> Iterator[tuple[Real, Sequence[Cell]]]:
    """Yield all real models with their cells; *wheels*: the folder of the installed packages that contain some."""
    yield from _zoo()
    yield from _small()
    for name, shape in (("ch_PP-OCRv4_det_infer", (1, 3, 160, 160)), ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 160))):
        yield from _versions(wheels / "rapidocr_onnxruntime" / "models" / f"{name}.onnx", shape, CELLS)
    cls = wheels / "rapidocr_onnxruntime" / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    yield from _versions(cls, (1, 3, 48, 192), CELLS)
    yield from _versions(wheels / "nudenet" / "320n.onnx", (1, 3, 320, 320), CELLS)


def _versions(file: Path, shape: Sequence[int], cells: Sequence[Cell]) -> Iterator[tuple[Real, Sequence[Cell]]]:
    """Yield a model with open dimensions unchanged, and in other opsets."""
    model = onnx.load(file)
    name = model.graph.input[0].name
    family = f"real, {file.parts[-3] if file.parent.name == 'models' else file.parent.name}"
    yield Real(f"real-{file.stem}", family, file, {name: shape}, open_batch=True), cells
    own = next(opset.version for opset in model.opset_import if opset.domain == "")
    for opset in OPSETS:
        if opset != own:
            case = f"real-{file.stem}-opset-{opset}"
            yield Real(case, f"{family}, converted", file, {name: shape}, _to(opset)), _FEW


def _zoo() -> Iterator[tuple[Real, Sequence[Cell]]]:
    """Yield models of 2017 without weights, which use ConstantOfShape; most get random ones here."""
    found = _data() / "light"
    light = {file.stem.removeprefix("light_"): file for file in sorted(found.glob("*.onnx"))}
    for name in ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50"):
        cells = CELLS if name in ("squeezenet", "shufflenet", "resnet50") else _ON_QNN_ONCE
        yield Real(f"real-{name}", "real, onnx zoo", light[name], edit=_with_weights), cells
    for name in ("squeezenet", "bvlc_alexnet", "zfnet512", "vgg19"):
        yield Real(f"real-{name}-constant", "real, onnx zoo", light[name]), CELLS if name == "squeezenet" else _HEAVY
    for name in ("squeezenet", "shufflenet"):
        for opset in OPSETS[1:]:
            made = Real(f"real-{name}-opset-{opset}", "real, onnx zoo, converted", light[name], edit=_converted(opset))
            yield made, _FEW
        made = Real(f"real-{name}-batch", "real, onnx zoo, open batch", light[name], edit=_batched, open_batch=True)
        yield made, _FEW


def _small() -> Iterator[tuple[Real, Sequence[Cell]]]:
    """Yield the layers that PyTorch's exporter wrote in 2017, a model each, and some of onnx's test models."""
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for file in sorted((_data() / kind).glob("*/model.onnx")):
            if file.parent.name == "test_operator_sqrt":
                continue  # its inputs are negative, and no integer represents NaN
            yield Real(f"{kind}-{file.parent.name.removeprefix('test_')}", f"layers, {kind}", file), _SMALL


def _data() -> Path:
    found = importlib.util.find_spec("onnx.backend.test")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def _with_weights(model: ModelProto) -> ModelProto:
    """Replace nodes that make constant weights by random weights, also listed as inputs, as usual then.

    They are as large as possible without values growing beyond half precision from layer to layer.
    """
    for gain in _GAINS:
        made = _weighted(model, gain)
        if _largest_value(made) < _LARGEST:
            break
    _temper(made)
    return made


def _weighted(model: ModelProto, gain: float) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    random = np.random.default_rng(zlib.crc32(graph.name.encode()))
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    reads = {value: (node.op_type, at) for node in graph.node for at, value in enumerate(node.input)}
    makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    others = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    for node in makers:
        name, shape = node.output[0], tuple(int(size) for size in given[node.input[0]])
        array = _weights(random, gain, shape, *reads.get(name, ("", 0)))
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    del graph.node[:]
    graph.node.extend(others)
    # Biases and norms in the file are as constant as the rest.
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.ndim == 1 and array.dtype == np.float32 and array.size > 1 and np.ptp(array) == 0:
            fresh = _weights(random, gain, array.shape, *reads.get(tensor.name, ("", 0)))
            tensor.CopyFrom(numpy_helper.from_array(fresh.astype(np.float32), tensor.name))
    return made


def _weights(random: np.random.Generator, gain: float, shape: tuple[int, ...], op: str, at: int) -> Array:
    if len(shape) > 1:
        return random.standard_normal(shape) * np.sqrt(gain / np.prod(shape[1:]))
    # For BatchNormalization: scale, shift, mean, variance. For others, a bias; for Unsqueeze, a channel scale.
    if op == "Unsqueeze" or (op == "BatchNormalization" and at in (1, 4)):
        return random.uniform(0.5, 1.5, shape)
    return random.standard_normal(shape) * 0.1


def _largest_value(model: ModelProto) -> float:
    found = _values(model, [node.output[0] for node in model.graph.node if node.op_type in ("Conv", "Sum", "Gemm")])
    return max(float(np.max(np.abs(value))) for value in found)


def _values(model: ModelProto, names: Sequence[str]) -> list[Array]:
    """Return the values *names* inside *model* for a picture."""
    open_model = ModelProto()
    open_model.CopyFrom(model)
    del open_model.graph.output[:]
    open_model.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = onnxruntime.InferenceSession(open_model.SerializeToString(), providers=["CPUExecutionProvider"])
    [value] = session.get_inputs()
    picture = _picture(np.random.default_rng(0), *value.shape[2:])
    found: list[Array] = session.run(None, {value.name: picture[None]})
    return found


def _temper(model: ModelProto) -> None:
    """Scale the last weights so that a final Softmax neither ties nor saturates."""
    last = model.graph.node[-1]
    if last.op_type != "Softmax":
        return
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    layer = next(node for node in reversed(model.graph.node) if node.op_type in ("Gemm", "Conv"))
    [logits] = _values(model, [last.input[0]])
    makers = {value: node for node in model.graph.node for value in node.output}
    for name in layer.input[1:]:
        while name not in weights:  # there may be a Reshape in between
            name = makers[name].input[0]
        array = numpy_helper.to_array(weights[name])
        weights[name].CopyFrom(numpy_helper.from_array(array * np.float32(2 / np.std(logits)), name))


def _to(opset: int) -> Edit:
    def edit(model: ModelProto) -> ModelProto:
        try:
            return version_converter.convert_version(model, opset)
        except RuntimeError as error:
            raise NoSuchVersion(str(error)) from error

    return edit


def _converted(opset: int) -> Edit:
    def edit(model: ModelProto) -> ModelProto:
        model = _with_weights(model)
        names = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in names]
        del model.graph.input[:]  # a converter treats initializers that are inputs as variable
        model.graph.input.extend(inputs)
        model.ir_version = 8
        return _to(opset)(model)

    return edit


def _batched(model: ModelProto) -> ModelProto:
    """Return the model with an open batch, and Reshapes that preserve it."""
    model = _with_weights(model)
    names = {tensor.name: tensor for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in names:
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    for node in model.graph.node:
        if node.op_type == "Reshape":
            shape = numpy_helper.to_array(names[node.input[1]]).copy()
            shape[0] = 0
            names[node.input[1]].CopyFrom(numpy_helper.from_array(shape, node.input[1]))
    del model.graph.value_info[:]
    return model
