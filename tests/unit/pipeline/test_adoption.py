"""A cache that was used without a remote gets the keys and blobs that it has with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from winml_dag.engine.keys import cache_key
from winml_dag.pipeline.adoption import Adopted, adopt, adopt_at_first
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Ingredients, Record
from winml_dag.store.remote.remotes import Remotes
from winml_dag.store.remote.trust import Maker, Trust
from winml_dag.store.shared import SharedStore
from winml_dag.store.upkeep import clear


class Project:
    """A model, a library of a provider, and two stages: the second reads what the first puts out, with the library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.library = folder / "model.onnx", folder / "provider.so"
        self.model.write_bytes(b"model")
        self.library.write_bytes(b"library")

    def alone(self) -> LocalStore:
        return LocalStore(self.folder / "cache")

    def shared(self) -> SharedStore:
        def behind(store: LocalStore) -> Remotes:
            trust = Trust((), Maker("winml_dag 0.1.0"))
            return Remotes([], store.blobs, trust, scratch=store.folder / "incoming", tell=lambda _: None)

        return SharedStore(self.folder / "cache", behind)

    def ingredients(self, store: LocalStore) -> tuple[Ingredients, Artifact]:
        """What the key of the first stage is made from with the digests of *store*."""
        source = Artifact.of([store.fingerprints.entry(self.model, "source.onnx")])
        made = Ingredients("optimize", 1, {"optim": {"gelu": True}}, {"model": source.digest}, {"onnx": "1.23"})
        return made, source

    def compiled(self, store: LocalStore, model: Artifact) -> Ingredients:
        tools = {"provider library provider.so": store.fingerprints.digest(self.library)}
        return Ingredients("compile", 1, {"compile": {}}, {"model": model.digest}, tools)

    def build(self, store: LocalStore) -> list[Record]:
        made, source = self.ingredients(store)
        first = self.published(store, made, {"model": source}, b"optimized")
        output = first.outputs["model"]
        second = self.published(store, self.compiled(store, output), {"model": output}, b"compiled")
        store.remember("here\noptimize", first.cache_key)
        store.remember("here\ncompile", second.cache_key)
        return [first, second]

    def published(self, store: LocalStore, made: Ingredients, read: dict[str, Artifact], data: bytes) -> Record:
        folder, log = self.folder / "put", self.folder / "log.txt"
        folder.mkdir(exist_ok=True)
        (folder / f"{made.stage}.onnx").write_bytes(data)
        log.write_text(f"{made.stage} said this")
        record = Record(
            cache_key(made),
            made.config_hash,
            made,
            {},
            made_at=f"2026-01-01T00:00:0{len(data)}",
            input_files={slot: artifact.to_json() for slot, artifact in read.items()},
        )
        return store.publish(record, {"model": folder}, log)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    store = project.alone()
    project.build(store)
    store.close()
    return project


def test_each_record_is_found_under_the_key_that_it_would_have_been_made_with(project: Project) -> None:
    store = project.shared()
    assert adopt(store) == Adopted(
        records=2, blobs=4, bytes=len(b"optimizedcompiledoptimize said thiscompile said this")
    )
    made, _ = project.ingredients(store)
    first = store.record(cache_key(made))
    assert first is not None
    second = store.record(cache_key(project.compiled(store, first.outputs["model"])))
    assert second is not None
    for record in (first, second):
        assert store.missing(record.files()) == []
        assert record.config_hash == record.ingredients.config_hash
        assert record.input_artifact("model") is not None
        assert record.log is not None
        assert store.missing([record.log]) == []
    assert store.latest("here\ncompile") == second
    store.close()


def test_a_second_time_reads_nothing_and_takes_what_came_since(project: Project) -> None:
    store = project.shared()
    adopt(store)
    assert adopt(store) == Adopted(known=2)
    store.close()
    alone = project.alone()
    project.library.write_bytes(b"a newer library")
    made = project.build(alone)[1]
    alone.close()
    store = project.shared()
    # Of what it reads, the digests are those of the first time.
    assert adopt(store) == Adopted(records=1, known=2, blobs=0, bytes=0)
    output = Artifact.of([FileEntry("optimize.onnx", digest_bytes(b"optimized", "sha256"), 9)])
    assert store.record(cache_key(project.compiled(store, output))) is not None
    assert store.records.read(made.cache_key) == made
    store.close()


def test_all_that_was_there_is_found_as_before_without_a_remote(project: Project) -> None:
    store = project.shared()
    adopt(store)
    store.close()
    alone = project.alone()
    made, _ = project.ingredients(alone)
    latest = alone.latest("here\noptimize")
    assert latest is not None
    assert latest.cache_key == cache_key(made)
    assert alone.missing(latest.files()) == []
    alone.close()


def test_what_is_not_what_it_was_leaves_its_records_and_says_so(project: Project) -> None:
    alone = project.alone()
    project.model.write_bytes(b"MODEL")
    compiled = alone.latest("here\ncompile")
    assert compiled is not None
    alone.blobs.path(compiled.files()[0].digest).unlink()
    alone.close()
    store = project.shared()
    done = adopt(store)
    assert (done.records, sorted(done.left_out.values())) == (0, [1, 1])
    assert str(done).startswith("Adopted 0 records of this cache, ")
    assert "1, because a file that it put out is not in the cache any more, or is damaged" in str(done)
    assert "1, because a file that it read is not what it was, or not there any more" in str(done)
    store.close()


def test_a_library_that_was_replaced_leaves_what_it_made(project: Project) -> None:
    project.library.write_bytes(b"LIBRARY")
    store = project.shared()
    done = adopt(store)
    assert done.records == 1
    assert list(done.left_out) == ["a program or library that it ran with is not what it was"]
    store.close()


def test_a_file_whose_times_were_put_back_is_read(project: Project) -> None:
    """It would have its old digest by its size and time, and get a key that its bytes do not have."""
    status = project.model.stat()
    project.model.write_bytes(b"MODEL")
    os.utime(project.model, ns=(status.st_atime_ns, status.st_mtime_ns))
    store = project.shared()
    assert adopt(store).records == 1
    made, _ = project.ingredients(store)
    assert store.record(cache_key(made)) is None
    store.close()


def test_it_happens_by_itself_once_and_is_said_in_one_line(project: Project) -> None:
    said: list[str] = []
    store = project.shared()
    adopt_at_first(store, said.append)
    adopt_at_first(store, said.append)
    assert len(said) == 1
    assert said[0].startswith("Adopted 2 records of this cache, which had no remote when they were made: ")
    store.close()


def test_a_stage_that_reads_no_file_has_one_key_and_digests_of_whoever_asks(project: Project) -> None:
    """Random weights, for one. What reads it must find what it found, with a remote and without."""
    made = Ingredients("export", 1, {"random_weights": {}}, {}, {"torch": "2.13"})
    key, data = cache_key(made), b"random"
    alone = project.alone()
    project.published(alone, made, {}, data)
    alone.close()
    for _ in range(2):
        store = project.shared()
        for record in (store.record(key), store.look_up([key])[key]):
            assert record is not None
            assert [file.digest for file in record.files()] == [digest_bytes(data, "sha256")]
            assert store.missing(record.files()) == []
        store.close()
        alone = project.alone()
        found = alone.record(key)
        assert found is not None
        assert [file.digest for file in found.files()] == [digest_bytes(data)]
        assert alone.missing(found.files()) == []
        alone.close()
        # Once before an adoption, and once after it.
        store = project.shared()
        adopt(store)
        store.close()


def test_what_reads_such_a_stage_is_adopted_whenever_it_was_made(project: Project) -> None:
    random = Ingredients("export", 1, {"random_weights": {}}, {}, {"torch": "2.13"})
    alone = project.alone()
    project.published(alone, random, {}, b"random")
    alone.close()
    store = project.shared()
    adopt(store)
    store.close()
    alone = project.alone()
    read = alone.record(cache_key(random))
    assert read is not None
    output = read.outputs["model"]
    project.published(alone, project.compiled(alone, output), {"model": output}, b"compiled")
    alone.close()
    store = project.shared()
    assert adopt(store).left_out == {}
    exported = store.record(cache_key(random))
    assert exported is not None
    assert store.record(cache_key(project.compiled(store, exported.outputs["model"]))) is not None
    store.close()


def test_what_is_made_alone_after_a_clear_is_adopted_by_itself_again(project: Project) -> None:
    said: list[str] = []
    store = project.shared()
    adopt_at_first(store, said.append)
    clear(store)
    store.close()
    alone = project.alone()
    project.build(alone)
    alone.close()
    store = project.shared()
    adopt_at_first(store, said.append)
    assert len(said) == 2
    store.close()


def test_a_cache_that_began_with_a_remote_has_nothing_to_adopt(tmp_path: Path) -> None:
    project, said = Project(tmp_path), list[str]()
    store = project.shared()
    project.build(store)
    adopt_at_first(store, said.append)
    assert said == []
    assert adopt(store) == Adopted()
    store.close()


def test_a_key_is_made_of_the_bytes_that_were_read_whatever_a_remote_has_under_the_key_of_their_maker(
    project: Project,
) -> None:
    """The same work gives other bytes on another machine now and then, of the same size as a rule."""
    store = project.shared()
    adopt(store)
    made, source = project.ingredients(store)
    theirs = project.published(store, made, {"model": source}, b"OPTIMIZED")
    store.close()
    alone = project.alone()
    project.library.write_bytes(b"a newer library")
    project.build(alone)
    alone.close()
    store = project.shared()
    adopt(store)
    assert store.record(cache_key(project.compiled(store, theirs.outputs["model"]))) is None
    ours = Artifact.of([FileEntry("optimize.onnx", digest_bytes(b"optimized", "sha256"), 9)])
    assert store.record(cache_key(project.compiled(store, ours))) is not None
    store.close()
