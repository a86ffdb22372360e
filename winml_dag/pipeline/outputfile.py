"""The one file that a command puts where its user says, with what belongs to a model beside it: weights, and the
binaries of a compiled one.

No manifest lies there to tell whose a file is. Ours is what the cache knows as a result, byte for byte: nothing is lost
when that is overwritten. All else is somebody's, and is only overwritten when that was asked for; the model that is
read never is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from winml_dag.errors import InputError, UsageError
from winml_dag.pipeline.commit import change_folder, finish_change, folder_key, is_changing
from winml_dag.pipeline.knownfiles import KnownFiles
from winml_dag.pipeline.outputs import Materialised
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.below import Below
from winml_dag.store.local import LocalStore


class OutputFile:
    """*name* in *folder*; *read*: files that the build reads. With *overwrite*, what is in the way makes way."""

    def __init__(self, folder: Path, name: str, read: Iterable[Path], store: LocalStore, *, overwrite: bool) -> None:
        self._folder = folder
        self._name = name
        self._read = {path.resolve() for path in read}
        self._store = store
        self._known = KnownFiles(store, store.fingerprints)
        self._overwrite = overwrite

    def refuse_foreign(self, names: Iterable[str] = ()) -> None:
        """Raise UsageError when the file, or one of *names* beside it, is there and not to be overwritten."""
        for name in dict.fromkeys((self._name, *names)):
            path = self._folder / name
            if path.resolve() in self._read:
                raise UsageError(f"{path} is the model that is read.", advice="Choose another file with -o.")
            if path.is_dir() and not path.is_symlink():
                raise UsageError(f"{path} is a folder.", advice="Choose another file with -o.")
            if not (self._overwrite or self._known.may_replace(path)):
                raise UsageError(
                    f"{path} is in the way: the cache knows of no stage that made it, so it is not overwritten.",
                    advice="Give --overwrite, or choose another file with -o.",
                )

    def materialise(self, wanted: Sequence[FileEntry], outdated: Sequence[str] = ()) -> Materialised:
        """Make the file be as in *wanted*, and what belongs to it; what belonged to the one that it takes the place of
        goes, and so does what is *outdated* by it, where these are ours.

        Raises:
            BlobDamaged: when a file cannot be fetched; its stage has to run again.
            UsageError: when a file of somebody else's is in the way.
            StoreError: when the folder cannot be written; it is as it was.
        """
        if not is_changing(self._folder) and not self._stale(wanted) and not self._ours(outdated):
            return Materialised()
        with self._store.claim(folder_key(self._folder)):
            finish_change(self._folder, self._store.changes)
            stale, gone = self._stale(wanted), self._ours(outdated)
            if not (stale or gone):
                return Materialised()
            self.refuse_foreign(entry.name for entry in stale)

            def prepare(folder: Path) -> list[str]:
                self._store.fetch(Artifact.of(stale), folder)
                # The model last: whoever reads it finds its weights.
                return sorted((entry.name for entry in stale), key=lambda name: (name == self._name, name))

            removed = sorted((self._left_over() | gone) - {entry.name for entry in wanted})
            # Before it is a matter of this folder, as OutputFolder does.
            self._store.bring(stale)
            change = change_folder(self._folder, self._store.changes, prepare, removed)
        return Materialised(written=change.put, removed=change.remove)

    def _stale(self, wanted: Sequence[FileEntry]) -> list[FileEntry]:
        return [entry for entry in wanted if not self._is(entry)]

    def _is(self, entry: FileEntry) -> bool:
        path = self._folder / entry.name
        try:
            if path.stat().st_size != entry.size:
                return False
            return self._store.fingerprints.digest(path, entry.digest) == entry.digest
        except FileNotFoundError:
            return False

    def _left_over(self) -> set[str]:
        """The weights or binaries of the model of ours that is there now, as far as they are ours too."""
        # Imported here: only a model that takes the place of another needs it.
        from winml_dag.onnxmodel.inspect import inspect_model
        from winml_dag.onnxmodel.sidecar import SHARED

        path = self._folder / self._name
        if path.suffix != ".onnx" or not path.exists() or not self._known.may_replace(path):
            return set()
        try:
            names = inspect_model(path).files[1:]
        except InputError:
            return set()
        # Only what has its name, and is not shared: any other file may be another model's as well.
        return self._ours(
            name for name in names if name.startswith(path.stem) and not name.removeprefix(path.stem).startswith(SHARED)
        )

    def _ours(self, names: Iterable[str]) -> set[str]:
        below = Below(self._folder)
        return {name for name in names if below.is_file(name) and self._known.may_replace(self._folder / name)}
