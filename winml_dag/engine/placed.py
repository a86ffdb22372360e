"""Which files of a record are in the user's folder, and under which names.

A stage that works in place has written them under the names that they have there. Any other stage chooses its own file
names, and the recipe sets the paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from winml_dag.engine.stage import Node
from winml_dag.errors import UsageError
from winml_dag.store.artifact import Artifact, FileEntry

# In a recipe's folder: manifests of builds without an output folder, and files that are not yet complete.
KEPT = ".winml-dag"


def placed_files(node: Node, outputs: Mapping[str, Artifact]) -> Iterator[FileEntry]:
    """The files of *outputs*, by slot, that are in the folder of *node*, under their names there.

    Raises:
        UsageError: when a stage output several files where the recipe declares one.
    """
    for slot in node.paths:
        yield from placed_in(node, slot, outputs[slot])


def placed_in(node: Node, slot: str, output: Artifact) -> Iterator[FileEntry]:
    """The same for one slot."""
    path, files = node.paths[slot], output.files
    if node.stage.works_in_place:
        yield from files
    elif path.endswith("/"):
        yield from (replace(file, name=path + file.name) for file in files)
    elif len(files) == 1:
        yield replace(files[0], name=path)
    else:
        names = ", ".join(file.name for file in files) or "none"
        raise UsageError(
            f"{node.id} has put out other than one file in {slot!r}: {names}.",
            advice=f"Give it a folder in the recipe: {slot}: {path}/",
        )
