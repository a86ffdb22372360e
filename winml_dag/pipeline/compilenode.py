"""The nodes of compile and finalize for special cases: several models, or the QAIRT SDK."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from winml_dag.engine.keys import versions
from winml_dag.engine.stage import Node, Source
from winml_dag.ep.qairt import QairtSdk
from winml_dag.stages.qairt import COMPILE_QAIRT
from winml_dag.stages.shared import FINALIZE_SHARED, shared_compile_stage
from winml_dag.store.digest import Fingerprints


def of_models(node: Node, also: Sequence[Source]) -> Node:
    """Extend *node*, which compiles one model, to also compile the models *also*."""
    inputs = dict(node.inputs)
    names = (inputs.pop("model"), *(source.name for source in also))
    inputs |= {f"model_{number}": name for number, name in enumerate(names)}
    return replace(node, stage=shared_compile_stage(len(names)), inputs=inputs)


def final_of_models(node: Node) -> Node:
    """Extend *node*, which gives one model its final name, to all models that compile outputs."""
    return replace(node, stage=FINALIZE_SHARED, kinds={})


def of_sdk(node: Node, sdk: QairtSdk, fingerprints: Fingerprints) -> Node:
    """Return *node* with the tools of *sdk* instead of onnxruntime. The key has the tools' contents, not the paths."""
    python = versions(("numpy", "onnx"), sdk.site_packages or None)
    tools = {f"QAIRT SDK {path.name}": path for path in sdk.files}
    entries = fingerprints.entries([(path, name) for name, path in tools.items()])
    return replace(
        node,
        stage=COMPILE_QAIRT,
        toolchain={
            **versions(COMPILE_QAIRT.packages),
            "QAIRT SDK": sdk.version,
            **{f"QAIRT SDK's {name}": version for name, version in python.items()},
            **{entry.name: entry.digest for entry in entries},
        },
        tools=tools,
        interpreter=None,
        pools=(),  # they compile without the device
        environment="",
        surroundings={
            "root": str(sdk.root.absolute()),
            "host": sdk.host,
            "version": sdk.version,
            "python": str(sdk.python or sys.executable),
        },
    )


def looked_at(sdk: QairtSdk) -> tuple[Path, ...]:
    """Return the paths of *sdk* that influence a plan."""
    folders = dict.fromkeys(path.parent for path in sdk.files)
    return (*sdk.files, *folders, *sdk.site_packages, *sdk.said_in, sdk.root)
