"""Arrays in files as samples: only the requested samples are read into memory, and their time is told."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples import samples as module
from winml_dag.stages.samples.arrays import npy_samples, npz_samples
from winml_dag.stages.samples.samples import Fed, Feed, Samples

INPUT = InputSpec("x", "float32", (1, 4))


def save(path, array, form):
    if form == "npy":
        np.save(path / "x.npy", array)
    else:
        (np.savez if form == "npz" else np.savez_compressed)(path / "x.npz", x=array)


def opened(path, form, spec=INPUT):
    return npy_samples(path, [path / "x.npy"], [spec]) if form == "npy" else npz_samples([path / "x.npz"], [spec])


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
@given(data=st.data())
def test_the_samples_that_are_asked_for_are_read(tmp_path_factory, form, data):
    count = data.draw(st.integers(1, 30))
    order = data.draw(st.sampled_from(["C", "F"]))
    dtype = data.draw(st.sampled_from(["<f4", ">f4", "<f2", "<i2"]))
    folder = tmp_path_factory.mktemp("arrays")
    array = np.arange(4 * count).reshape(count, 4).astype(dtype, order=order)
    save(folder, array, form)
    samples = opened(folder, form)
    numbers = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    assert samples.count == count
    assert [feed["x"].tolist() for feed in samples.read(numbers)] == [[array[number].tolist()] for number in numbers]


@pytest.mark.parametrize("form", ["npy", "npz", "compressed"])
def test_memory_holds_samples_and_not_the_whole_file(tmp_path, form):
    array = np.zeros((400, 1, 50_000), np.float32)  # 80 MB
    spec = InputSpec("x", "float32", (1, 50_000))
    save(tmp_path, array, form)
    del array
    tracemalloc.start()
    samples = opened(tmp_path, form, spec)
    assert sum(feed["x"].size for feed in samples.held_out(2)) == 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000  # the archive is scanned in steps of 16 MiB


def test_a_file_that_ends_early_is_refused(tmp_path):
    save(tmp_path, np.zeros((5, 4), np.float32), "npy")
    samples = opened(tmp_path, "npy")
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-3])
    with pytest.raises(StageError, match=r"x\.npy cannot be read: it ends in sample 4"):
        list(samples)


def test_what_is_not_an_array_of_numbers_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3, [("a", "f4"), ("b", "f4")]))
    with pytest.raises(StageError, match="takes the shape"):
        list(opened(tmp_path, "npy"))
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    with pytest.raises(StageError, match="Python objects"):
        opened(tmp_path, "npy")


def test_the_time_of_making_samples_is_told_apart_from_that_of_using_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        return now

    def make(number: int) -> Feed:
        nonlocal now
        now += 10
        return {"x": np.array([number])}

    monkeypatch.setattr(module.time, "perf_counter", clock)
    fed = Fed(Samples.one_by_one("npz", 3, make))
    for _ in range(2):
        for _ in fed.samples:
            now += 1000
    assert fed.seconds == 2 * 3 * 10


def test_the_digest_is_that_of_the_arrays_of_one_pass() -> None:
    fed, same, other = (
        Fed(Samples.one_by_one(kind, 2, lambda number, add=add: {"x": np.array([number + add])}))
        for kind, add in (("npz", 0), ("npy", 0), ("npz", 1))
    )
    assert len([feed for one in (fed, fed, same, other) for feed in one.samples]) == 8
    assert fed.digest == same.digest != other.digest
