"""Checks that the files of a transformers model folder are complete and all inside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winml_dag.errors import StageError
from winml_dag.explanation import explanation

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def check_files(folder: Path) -> None:
    """Check the files of *folder*.

    Raises:
        StageError: the folder has no weights, or refers to files or code outside of it.
    """
    if (folder / "adapter_config.json").is_file():
        raise StageError(
            "The model folder is an adapter, whose base model is elsewhere.",
            advice="Give the folder of the merged model.",
        )
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        present = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise StageError(
            f"The model folder has no weights: there is {present}.",
            advice=f"Expected one of: {', '.join(WEIGHT_FILES)}.",
        )
    for index in sorted(folder.glob("*.index.json")):
        for shard in set(read_json(index).get("weight_map", {}).values()):
            _refuse_elsewhere(str(shard), folder, f"{index.name} names the weights file {str(shard)!r}")
    for reference in (read_json(folder / "config.json").get("auto_map") or {}).values():
        for each in reference if isinstance(reference, list) else [reference]:
            if "--" in str(each):
                raise StageError(
                    f"config.json takes its code from another repository ({each!r}), which is not part of the folder.",
                    advice="Copy that code into the model folder and name it without a repository.",
                )


def _refuse_elsewhere(name: str, folder: Path, what: str) -> None:
    if Path(name).name != name or "\\" in name or not (folder / name).is_file():
        raise StageError(f"{what}, which is not a file of the model folder.")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the model folder.

    Raises:
        StageError: there is none.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(f"The model folder has no {path.name}.") from None
    except ValueError as error:
        raise StageError(f"{path.name} of the model folder is not JSON: {explanation(error)}.") from error
    if not isinstance(value, dict):
        raise StageError(f"{path.name} of the model folder is not a JSON object.")
    return value
