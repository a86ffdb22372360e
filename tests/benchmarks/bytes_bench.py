"""What bytes cost: hashing, storing, restoring and linking a big file, and the same for thousands of small ones.

    python tests/benchmarks/bytes_bench.py --size-mib 2048 --folder DIR

Prints one JSON object. Everything is measured beside what it has to be compared with, in turns, and medians are given,
so the ratios hold on a machine that does other things too. The page cache is hot. The folder is left as it was.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

from winml_dag.pipeline.outputs import OutputFolder
from winml_dag.store.artifact import Artifact
from winml_dag.store.blobs import Blobs
from winml_dag.store.digest import digest_file
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Ingredients, Record

MIB = 1 << 20
SMALL_BYTES = 4096

# Stores and restores the file that it is given, and prints by how many bytes its peak memory grew. Where the system
# tells it, the peak of this very program: that of ``getrusage`` starts with what the parent had when it started us.
MEMORY_OF = """
import sys
from pathlib import Path
from winml_dag.store.blobs import Blobs

def peak():
    if sys.platform == "linux":
        lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

file, folder = map(Path, sys.argv[1:])
blobs = Blobs(folder / "blobs", folder / "quarantine")
before = peak()
entry = blobs.adopt(file, "xxh3-128")
blobs.fetch(entry, file)
print(peak() - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=2048, help="size of the big file [2048]")
    parser.add_argument("--folder", type=Path, help="where to work: on the file system to measure [the current one]")
    parser.add_argument("--rounds", type=int, default=5, help="how often each thing is measured [5]")
    parser.add_argument("--small-files", type=int, default=4000, help="number of small files [4000]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bytes-bench-", dir=arguments.folder or Path.cwd()) as name:
        folder = Path(name)
        big = folder / "big"
        with open(big, "wb") as file:
            for _ in range(arguments.size_mib):
                file.write(os.urandom(MIB))
        figures = {
            "size_mib": arguments.size_mib,
            "rounds": arguments.rounds,
            "hash": hashing(big, arguments.rounds),
            "store": storing(big, folder, arguments.rounds),
            "peak_memory_mib": peak_memory_mib(big, folder),
            "small_files": small_files(folder, arguments.small_files, arguments.rounds),
        }
    print(json.dumps(figures, indent=2))


def hashing(big: Path, rounds: int) -> dict[str, float]:
    """GB/s of ours, and its ratio to the two simple loops that xxhash's users write; above 1 is faster."""
    seconds = medians({"ours": lambda: digest_file(big), "read": lambda: read(big), "map": lambda: mapped(big)}, rounds)
    size = big.stat().st_size
    return {
        "gb_per_second": round(size / seconds["ours"] / 1e9, 2),
        "plain_read_gb_per_second": round(size / seconds["read"] / 1e9, 2),
        "plain_mmap_gb_per_second": round(size / seconds["map"] / 1e9, 2),
        "speed_to_plain_read": round(seconds["read"] / seconds["ours"], 2),
        "speed_to_plain_mmap": round(seconds["map"] / seconds["ours"], 2),
    }


def read(big: Path) -> None:
    hasher, buffer = xxhash.xxh3_128(), memoryview(bytearray(MIB))
    with open(big, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])


def mapped(big: Path) -> None:
    with open(big, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        xxhash.xxh3_128(view)


def storing(big: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds to store and to restore, the ratio of restoring to ``cp`` (below 1 is faster), milliseconds to link."""
    source = folder / "source"
    source.mkdir()
    shutil.copyfile(big, source / "big")
    with opened_store(folder / "cache") as store:
        started = time.perf_counter()
        made = Ingredients("bench", 1, {}, {}, {})
        artifact = store.publish(Record("0" * 64, "", made, {}), {"big": source}).outputs["big"]
        stored = time.perf_counter() - started
        ways: dict[str, Callable[[Path], object]] = {
            "restore": lambda to: store.fetch(artifact, to),
            "cp": lambda to: copy(big, to / "big"),
            "link": lambda to: link(store, artifact, to),
        }
        if hasattr(os, "copy_file_range"):
            ways["copy_file_range"] = lambda to: copy_range(big, to / "big")
        seconds = medians_of_copies(ways, folder / "target", rounds)
    return {
        "store_seconds": round(stored, 3),
        "restore_seconds": round(seconds["restore"], 3),
        "cp_seconds": round(seconds["cp"], 3),
        **({"copy_file_range_seconds": round(seconds[name], 3)} if (name := "copy_file_range") in seconds else {}),
        "restore_to_cp": round(seconds["restore"] / seconds["cp"], 2),
        "link_ms": round(seconds["link"] * 1e3, 2),
    }


@contextmanager
def opened_store(folder: Path) -> Iterator[LocalStore]:
    store = LocalStore(folder)
    try:
        yield store
    finally:
        store.close()


def link(store: LocalStore, artifact: Artifact, target: Path) -> None:
    """The whole change of an output folder, as a build makes it."""
    done = OutputFolder(target, (), store, store.fingerprints).materialise(artifact.files, {}, link=True)
    assert not done.not_linked


def copy(source: Path, target: Path) -> None:
    if sys.platform == "win32":
        shutil.copyfile(source, target)
    else:
        subprocess.run(["cp", source, target], check=True)


def copy_range(source: Path, target: Path) -> None:
    with open(source, "rb") as reads, open(target, "wb") as writes:
        while os.copy_file_range(reads.fileno(), writes.fileno(), 1 << 30):
            pass


def peak_memory_mib(big: Path, folder: Path) -> float | None:
    """By how much storing and restoring the big file raises the peak memory of a process; None where none tells."""
    if sys.platform == "win32":
        return None
    command = [sys.executable, "-c", MEMORY_OF, str(big), str(folder / "memory")]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(int(told.stdout) / MIB, 1)


def small_files(folder: Path, number: int, rounds: int) -> dict[str, float]:
    """Microseconds a file: written and renamed by hand, stored, restored."""
    taken: dict[str, list[float]] = {"plain_write_rename": [], "adopt": [], "fetch": []}
    for index in range(rounds):
        work = folder / f"small{index}"
        for name in ("plain", "renamed", "made", "fetched"):
            (work / name).mkdir(parents=True)
        datas = [os.urandom(SMALL_BYTES) for _ in range(number)]
        made = [work / "made" / str(place) for place in range(number)]
        for path, data in zip(made, datas, strict=True):
            path.write_bytes(data)
        blobs = Blobs(work / "blobs", work / "quarantine")
        taken["plain_write_rename"].append(timed(lambda work=work, datas=datas: write_and_rename(work, datas)))
        entries: list[Artifact] = []
        taken["adopt"].append(
            timed(lambda: entries.extend(Artifact((blobs.adopt(path, "xxh3-128"),)) for path in made))  # noqa: B023
        )
        taken["fetch"].append(
            timed(lambda: [blobs.fetch(one.files[0], work / "fetched" / one.files[0].name) for one in entries])  # noqa: B023
        )
        shutil.rmtree(work)
    return {f"{name}_us": round(statistics.median(each) / number * 1e6, 1) for name, each in taken.items()}


def write_and_rename(work: Path, datas: Sequence[bytes]) -> None:
    for place, data in enumerate(datas):
        with open(f"{work}/plain/{place}", "xb", buffering=0) as file:
            file.write(data)
        os.rename(f"{work}/plain/{place}", f"{work}/renamed/{place}")  # noqa: PTH104


def medians(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each way; they take turns, so that whatever else the machine does hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(timed(way))
    return {name: statistics.median(each) for name, each in taken.items()}


def medians_of_copies(ways: Mapping[str, Callable[[Path], object]], target: Path, rounds: int) -> dict[str, float]:
    """Like :func:`medians`, each time into a new folder, and with nothing left to be written to the disk before."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            target.mkdir()
            settle()
            taken[name].append(timed(lambda way=way: way(target)))
            shutil.rmtree(target)
    return {name: statistics.median(each) for name, each in taken.items()}


def timed(way: Callable[[], object]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def settle() -> None:
    if hasattr(os, "sync"):
        os.sync()


if __name__ == "__main__":
    main()
