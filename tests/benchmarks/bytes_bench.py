"""What bytes cost: hashing, storing, restoring and linking a big file, and the same for thousands of small ones.

    python tests/benchmarks/bytes_bench.py --size-mib 2048 --folder DIR

Prints one JSON object. Everything is measured beside what it has to be compared with, in turns, and medians are given,
so the ratios hold on a machine that does other things too, unless these need all its processors. The page cache is
hot. The folder is left as it was.
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
from typing import TypeAlias

import xxhash

from winml_dag.pipeline.publish import OutputFolder
from winml_dag.store.artifact import Artifact
from winml_dag.store.blobs import Blobs
from winml_dag.store.digest import digest_file
from winml_dag.store.records import KeyInputs, Record
from winml_dag.store.store import Store

Taken: TypeAlias = dict[str, list[float]]

MIB = 1 << 20
SMALL_BYTES = 4096

# Stores and restores the given file, and prints by how many bytes its peak memory grew. Where the system reports it,
# this is the peak of the program itself: that of ``getrusage`` starts with the parent's usage at the start.
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
entry = blobs.ingest(file, "xxh3-128")
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
            # Otherwise the disk stays busy writing it.
            file.flush()
            os.fsync(file.fileno())
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
    """Return GB/s of this implementation, and its ratio to two simple loops as xxhash's users write them; above 1 is
    faster.
    """
    taken = in_turns({"ours": lambda: digest_file(big), "read": lambda: read(big), "map": lambda: mapped(big)}, rounds)
    speeds = {name: round(big.stat().st_size / statistics.median(each) / 1e9, 2) for name, each in taken.items()}
    return {
        "gb_per_second": speeds["ours"],
        "plain_read_gb_per_second": speeds["read"],
        "plain_mmap_gb_per_second": speeds["map"],
        "speed_to_plain_read": ratio(taken, "read", "ours"),
        "speed_to_plain_mmap": ratio(taken, "map", "ours"),
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
    """Return seconds to store and to restore, the ratio of restoring to ``cp`` (below 1 is faster), milliseconds to
    link.
    """
    output = folder / "output"
    output.mkdir()
    big.replace(output / "big")
    with opened_store(folder / "cache") as store:
        started = time.perf_counter()
        made = KeyInputs("bench", 1, {}, {}, {})
        artifact = store.publish(Record("0" * 64, "", made, {}), {"big": output}).outputs["big"]
        stored = time.perf_counter() - started
        blob = store.blobs.path(artifact.files[0].digest)
        ways: dict[str, Callable[[Path], object]] = {
            "restore": lambda to: store.fetch(artifact, to),
            "cp": lambda to: copy(blob, to / "big"),
            "link": lambda to: link(store, artifact, to),
        }
        if hasattr(os, "copy_file_range"):
            ways["copy_file_range"] = lambda to: copy_range(blob, to / "big")
        taken: Taken = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                seconds = into_new_folder(way, folder / "target")
                if number:  # the first round gets memory that was never used before
                    taken[name].append(seconds)
        blob.replace(big)
    medians = {name: round(statistics.median(each), 4) for name, each in taken.items()}
    return {
        "store_seconds": round(stored, 3),
        **{f"{name}_seconds": seconds for name, seconds in medians.items() if name != "link"},
        "restore_to_cp": ratio(taken, "restore", "cp"),
        "link_ms": round(medians["link"] * 1e3, 2),
    }


@contextmanager
def opened_store(folder: Path) -> Iterator[Store]:
    store = Store(folder)
    try:
        yield store
    finally:
        store.close()


def link(store: Store, artifact: Artifact, target: Path) -> None:
    """Make the complete change of an output folder, as a build does."""
    done = OutputFolder(target, (), store).publish(artifact.files, {}, link=True)
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
    """Return by how much storing and restoring the big file raises a process's peak memory; None if unavailable."""
    if sys.platform == "win32":
        return None
    command = [sys.executable, "-c", MEMORY_OF, str(big), str(folder / "memory")]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(int(told.stdout) / MIB, 1)


def small_files(folder: Path, number: int, rounds: int) -> dict[str, float]:
    """Return microseconds per file: written and renamed manually, stored, restored."""
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
            timed(lambda: entries.extend(Artifact((blobs.ingest(path, "xxh3-128"),)) for path in made))  # noqa: B023
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


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> Taken:
    """Return the seconds of each way in each round, after a warm-up round."""
    taken: Taken = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = timed(way)
            if number:
                taken[name].append(seconds)
    return taken


def into_new_folder(way: Callable[[Path], object], target: Path) -> float:
    """Return the seconds of *way* alone, and remove its output."""
    target.mkdir()
    seconds = timed(lambda: way(target))
    shutil.rmtree(target)
    return seconds


def ratio(taken: Taken, name: str, other: str) -> float:
    """Return the median ratio of *name* to *other*, computed per round, in which both run under similar conditions."""
    return round(statistics.median(one / two for one, two in zip(taken[name], taken[other], strict=True)), 2)


def timed(way: Callable[[], object]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
