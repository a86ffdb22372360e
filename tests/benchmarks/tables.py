"""The tables of the benchmark page, from the measurements of the programs in this folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_OURS = "winml-dag"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. The first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def peers_table(found: Mapping[str, Any]) -> str:
    """Format *found* by tool. Ratios are relative to winml-dag: 2 means twice as long as winml-dag."""
    head = ["tool", "full", "again", "null (min-max)", "edit (min-max)", "full, ratio", "null, ratio", "edit, ratio"]
    ours = found[_OURS]
    rows = [
        (
            tool,
            one["full"],
            one["again"],
            _spread(one["null"]),
            _spread(one["edit"]),
            _ratio(one["full"], ours["full"]),
            _ratio(one["null"]["median"], ours["null"]["median"]),
            _ratio(one["edit"]["median"], ours["edit"]["median"]),
        )
        for tool, one in found.items()
    ]
    wrong = [tool for tool, one in found.items() if one["wrong"]]
    return table(head, rows) + (f"\n\nWrong outputs after an edit: {', '.join(wrong)}." if wrong else "")


def bytes_table(found: Mapping[str, Any]) -> str:
    hashing, store, small = found["hash"], found["store"], found["small_files"]
    rows = [
        (f"hash {found['size_mib']} MiB, GB/s", hashing["gb_per_second"]),
        ("... speed to xxhash over 1 MiB reads of the same file", hashing["speed_to_plain_read"]),
        ("... speed to xxhash over the same file mapped", hashing["speed_to_plain_mmap"]),
        (f"restore {found['size_mib']} MiB, checked, seconds", store["restore_seconds"]),
        ("... `cp` of the same file, seconds", store["cp_seconds"]),
        ("... time to `cp`", store["restore_to_cp"]),
        ("restore as a hard link (`--link`), milliseconds", store["link_ms"]),
        ("peak memory of storing and restoring it, MiB more than before", found["peak_memory_mib"]),
        ("store a file of 4 KiB, microseconds", small["adopt_us"]),
        ("restore a file of 4 KiB, microseconds", small["fetch_us"]),
        ("... write and rename such a file by hand, microseconds", small["plain_write_rename_us"]),
    ]
    return table(["what", "figure"], rows)


def miss_table(found: Mapping[str, Any]) -> str:
    rows = [
        ("script", ", ".join(map(str, found["script_seconds"]))),
        ("winml-dag build", ", ".join(map(str, found["build_seconds"]))),
        ("ratio of medians", found["ratio"]),
        *((f"... {stage}", seconds) for stage, seconds in found["stage_seconds"].items()),
    ]
    return table(["what", "seconds, run by run"], rows)


def memory_table(found: Mapping[str, Any]) -> str:
    rows = [
        (stage, round(one["peak"] / 2**20), _ratio(one["peak"], found["weights"]), round(one["seconds"], 1))
        for stage, one in found["stages"].items()
    ]
    return table(["stage", "peak, MiB", "... to the weights", "seconds"], rows)


def machine_table(named: Mapping[str, str]) -> str:
    return table(["what", "which"], ((name, value) for name, value in named.items() if value))


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}"


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['median']:.3f} ({found['min']:.3f}-{found['max']:.3f})"


def precisions_table(found: Mapping[str, Any]) -> str:
    """Format one model in every precision on every provider, a row each."""
    head = ["built for", "MB", "cosine", "SQNR dB", "pooled mean", "pooled min", "partitions", "nodes left", "seconds"]
    return table(head, [_precision_row(name, one) for name, one in found.items()])


def _precision_row(name: str, one: Mapping[str, Any]) -> Sequence[object]:
    if "error" in one:
        return (name, "", "", "", "", "", "", "", _sentence(one["error"]))
    quality, pooled = one["quality"] or {}, one.get("pooled") or {}
    return (
        name,
        round(one["model_bytes"] / 1e6, 1),
        _shown(quality.get("cosine")),
        _shown(quality.get("sqnr_db")),
        _shown(pooled.get("mean")),
        _shown(pooled.get("min")),
        _shown(one["partitions"]),
        _shown(one["nodes_skipped"]),
        round(sum(one["seconds"].values()), 1),
    )


def compile_table(found: Mapping[str, Any]) -> str:
    """Format the compile results by model."""
    head = ["model", "partitions", "nodes on the CPU", "compile, s", "binary, MB", "load raw, s", "load compiled, s"]
    head += ["ratio", "cosine", "processes", "different outputs"]
    rows = [
        (
            name,
            one["partitions"],
            sum(one["nodes_on_cpu"].values()),
            one["compile_seconds"],
            round(one["binary_bytes"] / 1e6, 1),
            one["loading"]["quantized"],
            one["loading"]["compiled"],
            one["loading"]["ratio"],
            _shown((one["quality"] or {}).get("cosine")),
            one["processes"],
            one["distinct_outputs"],
        )
        for name, one in found.items()
    ]
    return table(head, rows)


def levels_table(found: Mapping[str, Any]) -> str:
    """Format the cost of each optimization level by model."""
    head = ["model", "level", "compile, s", "to level 3", "binary, MB"]
    rows = [
        (name, level, cost["seconds"], _ratio(cost["seconds"], last["seconds"]), round(cost["bytes"] / 1e6, 2))
        for name, one in found.items()
        for last in [list(one["levels"].values())[-1]]
        for level, cost in one["levels"].items()
    ]
    return table(head, rows)


def shared_table(found: Mapping[str, Any]) -> str:
    alone = ", ".join(f"{size / 1e6:.1f}" for size in found["alone_bytes"])
    head = ["compiled", "binary, MB", "to the sum of both"]
    rows = [("one by one", alone, 1), ("into one binary", round(found["together_bytes"] / 1e6, 1), found["ratio"])]
    return table(head, rows)


def _sentence(text: str) -> str:
    return text.partition(". ")[0].replace("|", "/")


def _shown(value: object) -> object:
    return "" if value is None else value


def five_table(found: Mapping[str, Any]) -> str:
    """Format five precisions at once and separately, by model."""
    head = ["model", "one graph, s", "one by one, s", "ratio", "stages in one graph", "stages one by one"]
    rows = [
        (
            name,
            one["one_graph_seconds"],
            one["separate_seconds"],
            one["ratio"],
            one["stages_in_one_graph"],
            one["stages_one_by_one"],
        )
        for name, one in ((name, model["five"]) for name, model in found.items())
    ]
    return table(head, rows)
