"""Find the one model file that a path names: the file itself, or the model of a folder."""

from __future__ import annotations

from pathlib import Path

from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.layout import MANIFEST, MODEL, prefixed

GIVE = "Give an .onnx file or the output folder of a build."


def model_file(path: Path, *, advice: str = GIVE, submodel: bool = False) -> Path:
    """Return the file that *path* names: itself, ``model.onnx`` in a folder, or the only .onnx file there.

    *submodel*: whether the caller can name one of several components.

    Raises:
        InputError: when there is none, or more than one.
        UsageError: for the folder of a build without a model.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist.", advice=f"{advice} A model on the hub is built first, with `winml-dag build -m`."
        )
    if path.is_dir():
        return _model_in(path, advice, submodel=submodel)
    if not path.is_file():  # reading a pipe would block
        raise InputError(f"{path} is neither a file nor a folder.", advice=advice)
    return path


def _model_in(folder: Path, advice: str, *, submodel: bool) -> Path:
    if (folder / MODEL).is_file():
        return folder / MODEL
    found = sorted(file for file in folder.glob("*.onnx") if file.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found)
        if finals := _components(folder):
            otherwise = ", or name a component with --submodel" if submodel else ""
            advice = f"Give one of them, such as {folder / finals[0]}{otherwise}."
            raise InputError(f"{folder} has a model for each component: {', '.join(finals)}.", advice=advice)
        raise InputError(f"{folder} has no {MODEL}, but several models: {names}.", advice="Give one of them.")
    if (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is of a build that makes no model.", advice=advice)
    if (folder / "config.json").is_file():
        raise InputError(
            f"{folder} is a PyTorch model, and has no ONNX model.",
            advice=f"Build it first: winml-dag build -m {folder} -o OUT.",
        )
    raise InputError(f"{folder} has no ONNX model.", advice=advice)


def component_file(folder: Path, component: str) -> Path:
    """Return the model of *component* in the output *folder* of a build.

    Raises:
        InputError: when there is none.
    """
    file = folder / prefixed(MODEL, component)
    if file.name in _components(folder):
        return file
    finals = ", ".join(_components(folder))
    raise InputError(
        f"{folder} has no model of a component {component!r}.",
        advice=f"It has: {finals}." if finals else "Give the output folder of a build of several components.",
    )


def _components(folder: Path) -> tuple[str, ...]:
    """Return the models to ship in *folder*, if a build wrote several."""
    # Imported here: a folder with one model does not need it.
    from winml_dag.pipeline.manifest import read_manifest

    manifest = read_manifest(folder)
    return () if manifest is None else manifest.told.final_artifacts
