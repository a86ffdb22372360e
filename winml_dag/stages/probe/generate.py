"""Generates a support table: ``python -m winml_dag.stages.probe.generate --ep qnn``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from winml_dag.engine.keys import installed_distributions, normalised
from winml_dag.ep.availability import package_of, require_installed
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import CPU, Target, find_ep, is_emulated
from winml_dag.ep.session import session_options
from winml_dag.ep.support import table_name
from winml_dag.ep.support.case import AttributeValue, Case, Outcome
from winml_dag.ep.support.table import ANY_OPERATOR, About, evidence_by_types, evidence_of, table_bytes
from winml_dag.errors import WinmlDagError
from winml_dag.stages.probe.measure import Measurements, measure, read_rows

_ROUND = 600
_TABLES = 3
# Options that affect only the speed of a compiled model, not what is supported.
_OF_SPEED = frozenset({"htp_graph_finalization_optimization_mode", "htp_performance_mode"})


def table_of(about: About, rows: Iterable[tuple[Case, Outcome]]) -> bytes:
    """The content of the table file for *rows*."""
    by_operator: dict[tuple[str, str], list[tuple[Case, Outcome]]] = {}
    for case, outcome in rows:
        if not case.domain and case.opset > about.opset:
            continue  # the same for all operators
        # The CPU is the reference for the others. Correct results are known only for ONNX's own tests, one case in ten,
        # and say nothing about the other cases.
        known = replace(outcome, agrees=True) if about.ep == CPU.name else outcome
        by_operator.setdefault((case.domain, case.op_type), []).append((case, known))
    evidence = {key: evidence_of(found, attribute_defaults(*key)) for key, found in by_operator.items()}
    standard = [row for (domain, _), found in by_operator.items() if not domain for row in found]
    return table_bytes(about, {**evidence, **({ANY_OPERATOR: evidence_by_types(standard)} if standard else {})})


def newest_opset(rows: Iterable[tuple[Case, Outcome]]) -> int:
    """The newest opset of the standard in which any model loaded."""
    return max((case.opset for case, outcome in rows if not case.domain and outcome.ran), default=0)


def about_target(target: Target, cases: int, opset: int) -> About:
    """What is installed on this machine for *target*."""
    import onnx
    import onnxruntime

    from winml_dag.stages.devices import sdk_version

    package = package_of(target.ep, None)
    version = "" if package is None else installed_distributions(None).get(normalised(package.distribution), "")
    return About(
        ep=target.ep.name,
        device=target.device,
        ep_version=version,
        sdk_version="" if target.ep == CPU else sdk_version(target.ep),
        onnxruntime=onnxruntime.__version__,
        onnx=onnx.__version__,
        options={name: value for name, value in complete_options(target, {}).items() if name not in _OF_SPEED},
        emulated=is_emulated(target),
        opset=opset,
        cases=cases,
    )


def attribute_defaults(domain: str, op_type: str) -> Mapping[str, AttributeValue]:
    """The defaults of an operator's attributes, where all opsets agree."""
    import onnx

    found: dict[str, set[AttributeValue]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if (schema.domain, schema.name) != (domain, op_type):
            continue
        for name, attribute in schema.attributes.items():
            default = attribute.default_value
            if default.type:
                found.setdefault(name, set()).add(_plain(onnx.helper.get_attribute_value(default)))
    return {name: values.pop() for name, values in sorted(found.items()) if len(values) == 1}


def _plain(value: Any) -> AttributeValue:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, int | float):
        return value
    return tuple(each.decode() if isinstance(each, bytes) else each for each in value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure what an execution provider does with operators, and write a table of it."
    )
    parser.add_argument("--ep", required=True, help="such as qnn")
    parser.add_argument("--device", help="by default the provider's first")
    parser.add_argument("--output", type=Path, help="the table; by default such as qnn_npu.support in this folder")
    parser.add_argument("--samples", type=int, default=7500, help="how many uses of operators are drawn and tried")
    parser.add_argument("--core", type=int, default=2400, help="how many of those that most models are made of")
    parser.add_argument("--cells", type=int, default=4500, help="how many of every operator with every type in turn")
    parser.add_argument("--doubted", type=int, default=4800, help="and how many more of which tables are in doubt")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    given = parser.parse_args()
    ep = find_ep(given.ep)
    target = Target(ep, given.device or ep.devices[0])
    try:
        require_installed(target)
        session_options(target, complete_options(target, {}))  # raises if the device is missing
    except WinmlDagError as error:
        sys.exit(str(error))
    output = given.output or Path(table_name(target))
    names = ("drawn", "core", "cells", "doubted")
    drawn, core, cells, _ = files = [output.with_suffix(f".{name}.jsonl") for name in names]
    measure(Measurements(target, given.seed, 0, given.samples - 1), drawn, _on_progress)
    measure(Measurements(target, given.seed, 0, given.core - 1, of="core"), core, _on_progress)
    measure(Measurements(target, given.seed, 0, given.cells - 1, of="cells"), cells, _on_progress)
    for done in range(0, given.doubted, _ROUND):
        last = min(done + _ROUND, given.doubted) - 1
        _measure_doubted(Measurements(target, given.seed, 0, last), files)
    found = _all_rows(files)
    output.write_bytes(table_of(about_target(target, len(found), newest_opset(found)), found))
    print(f"{output}: {len(found)} cases. What was measured stays beside it, and is not measured again.")


def _measure_doubted(wanted: Measurements, files: Sequence[Path]) -> None:
    """Extend the last of *files* with samples on which three tables disagree, each made from two thirds of the rows."""
    rows = _all_rows(files)
    about = about_target(wanted.target, len(rows), newest_opset(rows))
    with tempfile.TemporaryDirectory() as folder:
        tables = tuple(Path(folder) / f"{number}.support" for number in range(_TABLES))
        for number, path in enumerate(tables):
            path.write_bytes(table_of(about, [row for at, row in enumerate(rows) if at % _TABLES != number]))
        measure(replace(wanted, doubted_by=tables), files[-1], _on_progress)


def _all_rows(files: Sequence[Path]) -> list[tuple[Case, Outcome]]:
    """Each case once."""
    return list({case: outcome for path in files for case, outcome in read_rows(path)}.items())


def _on_progress(done: int, total: int) -> None:
    print(f"{done} of {total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
