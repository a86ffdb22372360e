"""Make the inputs of a run on another machine available to that machine before the run is requested.

Outputs of stages are in the store already. The user's files are stored as if a stage had made them, under a key of
their content. So they are garbage-collected like anything else, and are uploaded to a remote like results.
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
        """Store the artifacts that *node* reads.

        With *near*, fetch all of their bytes for workers that use the same store. With *far*, also upload them to the
        remote, for workers with another store.

        Raises:
            InputError: for a source that has changed since the key was made.
            StoreError: when there is no room for it.
        """
        # One at a time: all of them go to one disk or one remote, and callers mostly wait for the same artifacts.
        with self._lock:
            for slot, artifact in inputs.items():
                if artifact.digest not in self._here:
                    self._store_source(node.inputs[slot], artifact)
                    self._here.add(artifact.digest)
            if near:
                # An artifact found in the remote may be only there: the record of a hit comes without its bytes.
                self._store.fetch_ahead([file for artifact in inputs.values() for file in artifact.files])
            new = [artifact for artifact in inputs.values() if far and artifact.digest not in self._far]
            for artifact in new:
                if not self._store.remote_only(artifact.files):
                    self._store.offer(_record(artifact, self._made_by))
            if new:
                self._store.settle()
            self._far.update(artifact.digest for artifact in new)

    def are_far(self, record: Record) -> None:
        """Record that the outputs of *record* are in the remote, because a worker has uploaded them."""
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
