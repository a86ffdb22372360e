"""compile with the QAIRT SDK's tools: ONNX to a DLC, the DLC to a context binary, and an EPContext model around it.

The converter takes the quantization from Q and DQ nodes, so nothing is calibrated here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Memory, Stage, Workspace
from winml_dag.ep.qairt import CONVERTER, GENERATOR, library, program
from winml_dag.ep.registry import QNN
from winml_dag.errors import InputError, StageError
from winml_dag.onnxmodel.graph import Value
from winml_dag.stages import artifact_types
from winml_dag.stages.compile import COMPILE, COMPILED_NAME, SINGLE_MODEL, CompileConfig

# The name of the graph in the binary, which the SDK derives from the file name.
_GRAPH = "model"
_DLC = f"{_GRAPH}.dlc"
_BINARY = "compiled_qnn.bin"
# Of the EPContext model.
_OPSET, _IR_VERSION = 21, 10

COMPILE_QAIRT = Stage(
    name="compile",
    version=2,
    work="winml_dag.stages.qairt:run",
    config="winml_dag.stages.compile:CompileConfig",
    inputs={"model": SINGLE_MODEL},
    outputs={"model": artifact_types.COMPILED_MODEL},
    published=COMPILE.published,
    packages=("onnx",),
    memory=Memory(150 << 20, 7.0),
)


def run(config: CompileConfig, workspace: Workspace) -> JsonObject:
    """Compile ``model`` with the SDK in the environment of the node.

    Raises StageError if a tool fails (with the last line of its output) or writes nothing.
    """
    from winml_dag.onnxmodel.metadata import restore_metadata
    from winml_dag.stages.compiled import read_compiled
    from winml_dag.stages.compiler import place_model

    fields, here = config.compile, workspace.machine_facts
    root, host = Path(here["root"]), here["host"]
    source = workspace.input_file("model", ".onnx")
    model = place_model(source, QNN)
    started = time.monotonic()
    environment = _environment(root, host)
    _call([here["python"], str(root / "bin" / host / CONVERTER), *_conversion(model)], environment, Path(_DLC))
    _write_settings(fields.provider_options, root / "lib" / host)
    context = Path("context", _BINARY)
    generator = root / "bin" / host / program(GENERATOR)
    _call([str(generator), *_generation(root / "lib" / host)], environment, context)
    seconds = round(time.monotonic() - started, 3)
    folder = workspace.outputs["model"]
    binary = context
    if not fields.embed_context:
        binary = folder / _BINARY
        context.replace(binary)
    content = binary.read_bytes() if fields.embed_context else binary.name.encode()
    _wrap(content, here["version"], model, folder / COMPILED_NAME, embed=fields.embed_context)
    restore_metadata(model, folder / COMPILED_NAME)
    compiled = read_compiled(folder / COMPILED_NAME, QNN, embedded=fields.embed_context)
    return {**compiled, "compile_time_seconds": seconds}


def _conversion(model: Path) -> list[str]:
    return [
        *("--input_network", model.as_posix(), "--output_path", _DLC),
        # Floats are computed in half precision, as when onnxruntime compiles.
        *("--target_backend", "HTP", "--float_bitwidth", "16"),
        # Keep the types of inputs and outputs: otherwise those with Q and DQ nodes become integers.
        "--preserve_io_datatype",
    ]


def _generation(libraries: Path) -> list[str]:
    reader = libraries / library("QnnModelDlc")
    return [
        *("--backend", str(libraries / library("QnnHtp"))),
        *(("--model", str(reader)) if reader.is_file() else ()),
        *("--dlc_path", _DLC, "--config_file", "backend.json"),
        *("--binary_file", _BINARY.removesuffix(".bin"), "--output_dir", "context"),
    ]


def _write_settings(options: Mapping[str, str], libraries: Path) -> None:
    """Write the files with the generator's settings: the chip, and how to prepare the graph for it."""
    graph: dict[str, object] = {"graph_names": [_GRAPH]}
    if level := options.get("htp_graph_finalization_optimization_mode"):
        graph["O"] = int(level)
    if size := options.get("vtcm_mb"):
        graph["vtcm_mb"] = int(size)
    if options.get("enable_htp_fp16_precision") == "1":
        graph["fp16_relaxed_precision"] = 1
    device: dict[str, object] = {}
    if soc := options.get("soc_model"):
        device["soc_model"] = int(soc)
    if arch := options.get("htp_arch"):
        device["dsp_arch"] = f"v{arch}"
    _write(Path("htp.json"), {"graphs": [graph], "devices": [device]})
    extensions = {
        "shared_library_path": str(libraries / library("QnnHtpNetRunExtensions")),
        "config_file_path": "htp.json",
    }
    _write(Path("backend.json"), {"backend_extensions": extensions})


def _write(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _environment(root: Path, host: str) -> dict[str, str]:
    """Return the current environment with the variables that the SDK's shell script sets."""
    libraries, programs = str(root / "lib" / host), str(root / "bin" / host)
    where = "PATH" if sys.platform == "win32" else "LD_LIBRARY_PATH"
    set_here = {
        "PATH": [programs, *([libraries] if where == "PATH" else [])],
        **({} if where == "PATH" else {where: [libraries]}),
        "PYTHONPATH": [str(root / "lib" / "python")],
    }
    joined = {
        name: os.pathsep.join([*added, *filter(None, [os.environ.get(name)])]) for name, added in set_here.items()
    }
    return {**os.environ, **joined, "QNN_SDK_ROOT": str(root), "QAIRT_SDK_ROOT": str(root)}


def _call(arguments: Sequence[str], environment: Mapping[str, str], result: Path) -> None:
    """Run a tool of the SDK; its output goes to the log of this stage.

    Raises StageError if it fails, or succeeds without having written *result*.
    """
    name = CONVERTER if CONVERTER in Path(arguments[1]).name else GENERATOR
    print("$", *arguments, flush=True)
    try:
        done = subprocess.run(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise StageError(
            f"{name} cannot be started: {error.strerror}.", advice="Its file may have lost the right to be run."
        ) from error
    print(done.stdout, flush=True)
    if done.returncode:
        last = next((line.strip() for line in reversed(done.stdout.splitlines()) if line.strip()), "it said nothing")
        raise StageError(
            f"{name} ended with exit code {done.returncode}: {last.rstrip('.')}.",
            advice="The log of this stage has all that it said. Its Python is that of `venv` in the SDK's folder, if"
            " there is one."
            if name == CONVERTER
            else "The log of this stage has all that it said.",
        )
    if not result.is_file() or not result.stat().st_size:
        raise StageError(f"{name} ended well, but wrote no {result.name}.", advice="The log may show why.")


def _wrap(content: bytes, sdk_version: str, model: Path, output: Path, *, embed: bool) -> None:
    """Write to *output* a model with the inputs and outputs of *model*, all computed by the binary.

    *content* is the binary itself (*embed*), or the name of its file next to *output*. Raises InputError if *model* has
    an input or output that is not a tensor of a fixed shape.
    """
    from onnx import ValueInfoProto, helper

    from winml_dag.onnxmodel.graphfile import read_model

    def fixed(value: Value) -> ValueInfoProto:
        if not value.data_type or value.dims is None or not all(isinstance(dim, int) for dim in value.dims):
            raise InputError(f"{model}: {value.name!r} is not a tensor of a fixed shape, as a compiled model needs it.")
        return helper.make_tensor_value_info(value.name, value.data_type, value.dims)

    graph = read_model(model).graph
    constants = {tensor.name for tensor in graph.initializers}
    inputs = [fixed(value) for value in graph.inputs if value.name not in constants]
    outputs = [fixed(value) for value in graph.outputs]
    node = helper.make_node(
        "EPContext",
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=_GRAPH,
        domain="com.microsoft",
        embed_mode=int(embed),
        ep_cache_context=content,
        ep_sdk_version=sdk_version,
        main_context=1,
        partition_name=_GRAPH,
        source=QNN.name,
    )
    made = helper.make_model(
        helper.make_graph([node], _GRAPH, inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=_IR_VERSION,
    )
    output.write_bytes(made.SerializeToString(deterministic=True))
