"""What a run on another machine reads is put where that machine finds it, before it is asked to run.

What stages have made is in the store already. The user's files are put there as if a stage had made them, under a key
of their content: so they are collected like anything else, and go to a remote in the way that results do.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from winml_dag.engine.graph import Graph
from winml_dag.engine.inputs import place_source
from winml_dag.engine.keys import cache_key
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

_STAGE = "source"
_SLOT = "files"


class Inputs:
    """Shares the inputs of nodes of one graph, each once; used by several threads."""

    def __init__(self, graph: Graph, store: Store, scratch: Path, made_by: str) -> None:
        self._graph = graph
        self._store = store
        self._scratch = scratch
        self._made_by = made_by
        self._lock = threading.Lock()
        # Digests of artifacts that are in the store, and of those that are in the remote.
        self._here: set[str] = set()
        self._far: set[str] = set()

    def share(self, node: Node, inputs: Mapping[str, Artifact], *, near: bool, far: bool) -> None:
        """Have the artifacts that *node* reads in the store: with *near* all of their bytes, for workers that use it
        too; with *far* also in the remote, for workers that have a store of their own.

        Raises:
            InputError: for a source that is not what it was when the key was made.
            StoreError: when there is no room for it.
        """
        # One at a time: all of them go to one disk, or to one remote, and who waits mostly waits for the same.
        with self._lock:
            for slot, artifact in inputs.items():
                if artifact.digest not in self._here:
                    self._store_source(node.inputs[slot], artifact)
                    self._here.add(artifact.digest)
            if near:
                # What was found in the remote may be there alone: of a hit the record comes without its bytes.
                self._store.fetch_ahead([file for artifact in inputs.values() for file in artifact.files])
            new = [artifact for artifact in inputs.values() if far and artifact.digest not in self._far]
            for artifact in new:
                if not self._store.remote_only(artifact.files):
                    self._store.offer(_record(artifact, self._made_by))
            if new:
                self._store.settle()
            self._far.update(artifact.digest for artifact in new)

    def are_far(self, record: Record) -> None:
        """What *record* says was put out is in the remote: a worker has put it there."""
        with self._lock:
            self._far.update(artifact.digest for artifact in record.outputs.values())

    def _store_source(self, name: str, artifact: Artifact) -> None:
        source = self._graph.sources.get(name)
        if source is None:
            return
        record = _record(artifact, self._made_by)
        known = self._store.record(record.cache_key)
        if known is None or self._store.missing(known.files()):
            folder = self._scratch / f"source-{uuid4().hex}"
            try:
                place_source(source, artifact, folder)
                self._store.publish(record, {_SLOT: folder})
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _record(artifact: Artifact, made_by: str) -> Record:
    key_inputs = KeyInputs(_STAGE, 1, {}, {_SLOT: artifact.digest}, {})
    return Record(
        cache_key=cache_key(key_inputs),
        config_hash=key_inputs.config_hash,
        key_inputs=key_inputs,
        outputs={_SLOT: artifact},
        made_by=made_by,
    )
