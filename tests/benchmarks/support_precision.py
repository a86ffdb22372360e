"""How often a support table agrees with the provider's actual behaviour, on operator uses it was not made from.

    python tests/benchmarks/support_precision.py --ep qnn --device npu --of exports

Cases are drawn with another seed and other sizes than those of the table, and compared by verdict. ``unknown`` counts
as wrong. ``--of all`` draws all operators equally often; ``exports`` draws them as often as they occur in exported
models.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from winml_dag.ep.registry import CPU, Target, find_ep
from winml_dag.ep.support import table_files
from winml_dag.ep.support.case import Case, Level, Outcome
from winml_dag.ep.support.table import read_table
from winml_dag.stages.probe.measure import Measurements, measure, read_rows

SEED = 5
# Types in exported models. The others are types that no exporter uses for floats, and integers that nothing here
# quantizes activations to.
COMMON_TYPES = {"float32", "float16", "int64", "int32", "bool", "uint8", ""}
COMMON_ACTIVATIONS = {"uint8", "uint16"}


def is_common(case: Case) -> bool:
    """Return whether *case* has types and an opset that occur in exported and quantized models."""
    types = {operand.dtype for operand in case.inputs if operand is not None}
    integers = case.quantized is None or case.quantized.activations in COMMON_ACTIVATIONS
    return types <= COMMON_TYPES and integers and (bool(case.domain) or 11 <= case.opset <= 23)


def compare(table: Path, rows: list[tuple[Case, Outcome]]) -> None:
    support = read_table(table)
    for name, chosen in (("all", rows), ("of common types", [row for row in rows if is_common(row[0])])):
        found = [(case, outcome, support.verdict(case)) for case, outcome in chosen]
        equal = sum(verdict.level is outcome.level for _, outcome, verdict in found)
        unknown = sum(verdict.level is Level.UNKNOWN for _, _, verdict in found)
        print(
            f"{name}: {len(found)} cases, {equal} as the provider does ({equal / len(found):.1%}); "
            f"{unknown} unknown, without these {equal / (len(found) - unknown):.1%}"
        )
        taken = sum((verdict.compiled, verdict.ran) == (outcome.compiled, outcome.ran) for _, outcome, verdict in found)
        print(f"  taken and run as the provider does: {taken / len(found):.1%}")
        wrong = Counter(str(case) for case, outcome, verdict in found if verdict.level is not outcome.level)
        print("  not equal:", ", ".join(f"{name} {count}" for name, count in wrong.most_common(12)) or "none")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ep", default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--of", choices=("all", "exports"), default="all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--samples", type=int, default=220, help="some are no models, and are left out")
    parser.add_argument("--rows", type=Path, help="keep what is measured in this file, and measure on from it")
    parser.add_argument("--table", type=Path, help="in place of the one that counts")
    given = parser.parse_args()
    ep = find_ep(given.ep)
    target = Target(ep, given.device or ep.devices[0])
    with tempfile.TemporaryDirectory() as folder:
        file = given.rows or Path(folder) / "rows.jsonl"
        measure(Measurements(target, given.seed, 0, given.samples - 1, held_back=True, of=given.of), file)
        rows = list(read_rows(file))
    if target.ep == CPU:
        rows = [(case, replace(outcome, agrees=True)) for case, outcome in rows]
    compare(given.table or table_files(target)[0], rows)


if __name__ == "__main__":
    main()
