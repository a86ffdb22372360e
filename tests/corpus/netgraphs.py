"""A graph under construction, and a case: a named model with its calibration and evaluation samples.

Everything is a function of the case's name: its weights, its samples, its bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, compose, helper, numpy_helper

Array = npt.NDArray[Any]
Feed = dict[str, Any]
Dim = int | str | None
# A sampler makes one sample of an input. Only inputs with an open batch use the batch size.
Sampler = Callable[[np.random.Generator, int], Any]

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
# The oldest IR version that may carry each opset; IR 3 came with opset 7 to 9.
_IR_OF_OPSET = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}

_ITEM = "item of a sequence:"


class Graph:
    """A graph that grows node by node. *random* makes its weights."""

    def __init__(self, random: np.random.Generator, opset: int = 17) -> None:
        self.random = random
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.samplers: dict[str, Sampler] = {}
        self.domains: dict[str, int] = {}
        # Changes to the finished model, in order: metadata, IR versions, forms that no helper makes.
        self.edits: list[Callable[[ModelProto], object]] = []
        # The `export` section of a recipe for targets with fixed shapes only: what a user states on open dimensions.
        self.export: dict[str, Any] = {}
        # Targets or cells that may reject it, with a reason, for example missing sizes of its dimensions.
        self.may_refuse: dict[str, str] = {}
        # Number of samples for calibration: winml_dag keeps some of the given ones for validation.
        self.calibration = 64
        self.batched = False
        self.external = False
        self._count = 0
        self._prefix = ""

    def input(
        self,
        name: str = "x",
        shape: Sequence[Dim] | None = (4, 16),
        kind: int = FLOAT,
        *,
        real: Sequence[int] | None = None,
        low: float | None = None,
        high: float | None = None,
        sample: Sampler | None = None,
    ) -> str:
        """Add an input; *real* is the shape of its samples if *shape* is open, *low* and *high* bound their values."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        sizes = list(real) if real is not None else [n for n in shape or () if isinstance(n, int)]
        is_open = bool(shape) and not (isinstance(shape[0], int) and shape[0] > 0)
        self.batched = self.batched or is_open
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))

        def random_sample(random: np.random.Generator, batch: int) -> Array:
            now = [batch, *sizes[1:]] if is_open and sizes else sizes
            if dtype.kind == "f":
                # Bounded, so that calibrated ranges also hold for the evaluation samples, without luck.
                return np.asarray(random.uniform(-2 if low is None else low, 2 if high is None else high, now), dtype)
            if dtype.kind == "b":
                return np.asarray(random.integers(0, 2, now)).astype(dtype)
            return np.asarray(random.integers(int(low or 0), int(8 if high is None else high), now)).astype(dtype)

        self.samplers[name] = sample or random_sample
        return name

    def fresh(self, stem: str) -> str:
        self._count += 1
        return f"{self._prefix}{stem}_{self._count}"

    def const(self, value: object, dtype: object = np.float32, name: str | None = None) -> str:
        """Add an initializer with *value*."""
        name = name or self.fresh("const")
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))  # type: ignore[call-overload]
        return name

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def weight(self, *shape: int, scale: float | None = None, name: str | None = None) -> str:
        """Add random weights, scaled so that values keep their magnitude through layers."""
        fan = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        factor = 1 / np.sqrt(fan) if scale is None else scale
        return self.const(self.random.standard_normal(shape) * factor, name=name or self.fresh("weight"))

    def add(self, op: str, *inputs: str, outputs: int | Sequence[str] = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node and return its output, or a list of several."""
        names = [self.fresh(op.lower()) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        named = attributes.pop("named", self.fresh(op))
        self.nodes.append(helper.make_node(op, inputs, names, named, domain=domain, **attributes))
        if domain:
            self.domains.setdefault(domain, 1)
        return names[0] if len(names) == 1 else names

    def output(self, value: str, kind: int = FLOAT, shape: Sequence[Dim] | None = None) -> None:
        self.outputs.append(helper.make_tensor_value_info(value, kind, shape))

    def inner(self) -> Graph:
        """Return a subgraph for a control flow node; its names are unique in the whole model."""
        inner = Graph(self.random, self.opset)
        inner._prefix = self.fresh("inner") + "_"
        inner.domains = self.domains
        return inner

    def proto(self, name: str = "graph") -> GraphProto:
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)

    def model(self) -> ModelProto:
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*item) for item in self.domains.items())]
        model = helper.make_model(self.proto(), opset_imports=opsets, ir_version=_IR_OF_OPSET.get(self.opset, 10))
        _shape_outputs(model)
        for edit in self.edits:
            edit(model)
        return model

    # Layers, which most cases consist of.

    def dense(self, x: str, inner: int, outer: int) -> str:
        """Add a MatMul with weights of [inner, outer], and a bias."""
        return str(self.add("Add", self.add("MatMul", x, self.weight(inner, outer)), self.weight(outer, scale=0.1)))

    def conv(self, x: str, inner: int, outer: int, kernel: int = 3, **attributes: Any) -> str:
        """Add a 2-D convolution that keeps height and width, with a bias."""
        weight = self.weight(outer, inner // attributes.get("group", 1), kernel, kernel)
        attributes.setdefault("pads", [kernel // 2] * 4)
        return str(self.add("Conv", x, weight, self.weight(outer, scale=0.1), **attributes))


def _shape_outputs(model: ModelProto) -> None:
    """Give outputs without a shape the inferred one, where onnx can infer it."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # operators unknown to onnx: exporters omit the shape as well
        return
    for output, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if found.type.tensor_type.HasField("shape") and not output.type.tensor_type.HasField("shape"):
            output.CopyFrom(found)


@dataclass(frozen=True)
class Case:
    """A model of the corpus.

    Attributes:
        name: unique, and usable as a folder name.
        family: its row in the table.
        make: fills an empty graph.
    """

    name: str
    family: str
    make: Callable[[Graph], object]
    opset: int = 17

    def graph(self) -> Graph:
        graph = Graph(np.random.default_rng(zlib.crc32(self.name.encode())), self.opset)
        self.make(graph)
        return graph

    def is_plain(self) -> bool:
        """Return whether its form is that of its graph, of known shapes, which must be built."""
        graph = self.graph()
        return not (graph.edits or graph.external or graph.export or graph.may_refuse or graph.batched)

    def write(self, folder: Path, *, held_out: int = 8) -> Graph:
        """Write model.onnx, samples.npz, held.npz, and wide.npz with another batch size, to *folder*."""
        graph = self.graph()
        folder.mkdir(parents=True, exist_ok=True)
        save = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if graph.external else {}
        onnx.save(graph.model(), folder / "model.onnx", **save)
        write_samples(folder, graph.samplers, graph.calibration + 8, held_out, batched=graph.batched)
        return graph


def side_by_side(cases: Sequence[Case]) -> Case:
    """Return one case of all *cases*, which have one opset: their graphs have nothing in common but the model."""

    def make(graph: Graph) -> None:
        for case in cases:
            one, prefix = case.graph(), f"{case.name}/"
            part = compose.add_prefix(one.model(), prefix).graph
            graph.nodes += part.node
            graph.initializers += part.initializer
            graph.inputs += part.input
            graph.outputs += part.output
            graph.samplers |= {f"{prefix}{name}": sampler for name, sampler in one.samplers.items()}
            graph.domains |= one.domains

    return Case(f"{cases[0].name}-and-{len(cases) - 1}-more", cases[0].family, make, cases[0].opset)


def write_samples(folder: Path, samplers: Mapping[str, Sampler], count: int, held_out: int, *, batched: bool) -> None:
    """Write samples.npz and held.npz with samples of batch size 1, and wide.npz with some of 3 if the batch is open."""
    random = np.random.default_rng(7)
    files = [("samples", count, 1), ("held", held_out, 1), *([("wide", 2, 3)] if batched else [])]
    for file, count, batch in files:
        feeds = [{name: sampler(random, batch) for name, sampler in samplers.items()} for _ in range(count)]
        with ZipFile(folder / f"{file}.npz", "w") as archive:
            archive.comment = str(count).encode()
            for name in samplers:
                values = [feed[name] for feed in feeds]
                if isinstance(values[0], list):  # a sequence, which is no array: its items are stored separately
                    for at, items in enumerate(values):
                        for number, item in enumerate(items):
                            _write(archive, f"{_ITEM}{at}:{number}:{name}", item)
                else:
                    _write(archive, name, np.stack(values))


# numpy.savez takes names as keyword arguments, of which `file` is its own.
def _write(archive: ZipFile, name: str, array: Array) -> None:
    with archive.open(f"{name}.npy", "w") as stream:
        np.lib.format.write_array(stream, array, allow_pickle=False)


def read_feeds(path: Path) -> list[Feed]:
    """Read the samples in a file of :func:`write_samples`."""
    with ZipFile(path) as archive:
        feeds: list[Feed] = [{} for _ in range(int(archive.comment))]
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            with archive.open(member) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            if name.startswith(_ITEM):
                at, _, name = name.removeprefix(_ITEM).split(":", 2)
                feeds[int(at)].setdefault(name, []).append(array)
            else:
                for number, feed in enumerate(feeds):
                    feed[name] = np.asarray(array[number])
    return feeds


@dataclass
class Registry:
    """The cases of one file, in order."""

    family: str
    cases: list[Case] = field(default_factory=list)

    def case(self, name: str, opset: int = 17) -> Callable[[Callable[[Graph], object]], Callable[[Graph], object]]:
        def register(make: Callable[[Graph], object]) -> Callable[[Graph], object]:
            self.cases.append(Case(f"{self.family}-{name}", self.family, make, opset))
            return make

        return register

    def each(self, makers: Mapping[str, Callable[[Graph], object]], opset: int = 17) -> None:
        for name, make in makers.items():
            self.case(name, opset)(make)
