"""The names of files in an output folder: which artifact lies there under which name.

The names are winml-cli's, so that whatever picks up its results finds ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.rounds import round_of
from winml_dag.stages.calibrate import RANGES_FILE
from winml_dag.stages.sensitivity import PICTURE_FILE, REPORT_FILE

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node

MODEL = "model.onnx"
EXPORTED = "export.onnx"
NORMALIZED = "normalized.onnx"
OPTIMIZED = "optimized.onnx"
QUANTIZED = "quantized.onnx"
COMPILED = "compiled.onnx"
HIERARCHY = "export_htp_metadata.json"
ANALYSIS = "analyze_result.json"
MANIFEST = "build_manifest.json"
BUILD_CONFIG = "winml_build_config.json"
RANGES = RANGES_FILE
# Beside a single quantized model, after its name.
REPORTS = (REPORT_FILE, PICTURE_FILE)

# What each stage leaves in the output folder, by output slot. A stage that is not here leaves nothing there.
VISIBLE_OUTPUTS: dict[str, tuple[str, ...]] = {
    "export": ("model", "hierarchy"),
    "normalize": ("model",),
    "optimize": ("model",),
    "analyze": ("result",),
    "quantize": ("model",),
    "compile": ("model",),
    "finalize": ("model",),
    "sensitivity": ("report",),
}

STAGE_FILE: dict[str, str] = {
    "export": EXPORTED,
    "normalize": NORMALIZED,
    "optimize": OPTIMIZED,
    "analyze": ANALYSIS,
    "quantize": QUANTIZED,
    "compile": COMPILED,
    "finalize": MODEL,
}


def prefixed(name: str, component: str) -> str:
    """What the file *name* of *component* is called, in a folder with those of others; without one, *name*."""
    return f"{component}_{name}" if component else name


def is_ours(node: Node) -> bool:
    """Whether *node* is one of the stages of every build, and not a recipe's own; both may put files into the recipe's
    folder.
    """
    return node.folder is None or node.stage.work.startswith("winml_dag.stages.")


def beside_output(output_file: str, name: str) -> str:
    """What the file *name* of a report is called beside the one file that a build is for."""
    return f"{output_file[: -len('.onnx')]}_{name.removeprefix('export_')}"


def component_of(node: Node, components: Collection[str]) -> str:
    """Which of the *components* of a build *node* is about; empty where it is about all, or there are none."""
    first = node.id.partition(".")[0]
    return first if first in components else ""


def reports(node: Node) -> tuple[str, ...]:
    """What *node* gives that lies beside the one file that a build is for, under names made of that file's."""
    if node.stage.name == "sensitivity":
        return REPORTS
    return (HIERARCHY,) if node.stage.name == "export" and _wants_hierarchy(node.config) else ()


def _wants_hierarchy(config: JsonObject) -> bool:
    """Of several components, all have one when one has."""
    components = config.get("components")
    if isinstance(components, Mapping):
        return any(_wants_hierarchy(each) for each in components.values() if isinstance(each, Mapping))
    export = config["export"]
    return isinstance(export, Mapping) and bool(export["enable_hierarchy_tags"])


def visible_outputs(node: Node, settings: JsonObject, components: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """The output slots of *node*, one of ours, whose files lie in the output folder of a build with *settings*, each
    with the component whose name is put before those of its files.
    """
    stage, component = node.stage.name, component_of(node, components)
    if stage == "calibrate":
        if _shows_ranges(settings, component):
            yield "ranges", component
    elif stage == "export" and components:
        yield from ((prefixed(slot, each), each) for each in components for slot in VISIBLE_OUTPUTS[stage])
    else:
        # finalize knows the final name itself.
        yield from ((slot, "" if stage == "finalize" else component) for slot in VISIBLE_OUTPUTS.get(stage, ()))


def _shows_ranges(settings: JsonObject, component: str = "") -> bool:
    if component:
        components = settings.get("components")
        own = components.get(component) if isinstance(components, Mapping) else None
        settings = own if isinstance(own, Mapping) else {}
    quant = settings.get("quant")
    return isinstance(quant, Mapping) and bool(quant.get("save_calibration"))


def is_carried_on(node: Node, other: Node) -> bool:
    """Whether *other* does more of the same with what *node* puts out: then only the end of it is visible."""
    mine, its = round_of(node), round_of(other)
    if mine is not None and its is not None:
        return mine[0] == its[0] and mine[1] < its[1]
    read = other.inputs.values()
    return other.stage.name == node.stage.name and any(node.output(slot) in read for slot in node.stage.outputs)


# Names that a build may write, whatever its recipe: none of them may be a file of somebody else's.
RESERVED = (MODEL, EXPORTED, NORMALIZED, OPTIMIZED, QUANTIZED, COMPILED, HIERARCHY, ANALYSIS, MANIFEST, BUILD_CONFIG)


def reserved(settings: JsonObject, components: Collection[str] = ()) -> tuple[str, ...]:
    """The same, of a build with *settings*."""
    if not components:
        return (*RESERVED, RANGES) if _shows_ranges(settings) else RESERVED
    shown = {each: (RANGES,) if _shows_ranges(settings, each) else () for each in components}
    whole = (MANIFEST, BUILD_CONFIG)
    of_each = [name for name in RESERVED if name not in whole]
    return (*(prefixed(name, each) for each in components for name in (*of_each, *shown[each])), *whole)
