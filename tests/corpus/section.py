"""The section of the benchmark page on models from other tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from verdicts import MAY_LOSE_DB, Judged, broken, mean

_HEAD = (
    *("models", "for", "precision", "cells", "built", "refused", "failed", "plain runs", "wrong", "plain wrong"),
    *("SQNR, dB", "plain", "plain, a scale for each tensor"),
)


def section(found: Sequence[Judged], wrong_node_cases: int | None) -> str:
    """Return the measured part of the section on *found*."""
    from page import where

    promises = list(broken(found))
    lines = [
        f"{len({one.model for one in found})} models. {where()}",
        "",
        totals(found),
        "",
        f"Promises that are not kept (every cell that plain onnxruntime runs is built, no more than {MAY_LOSE_DB:g} dB"
        f" below it; nothing is wrong; no message but sentences): {len(promises)}.",
    ]
    if wrong_node_cases is not None:
        some = "some" if wrong_node_cases else "none"
        lines.append(f"Of onnx's own cases of operators, {some} come out of optimize differently.")
    refusals = [one for one in found if one.verdict == "refused" and one.plain_runs]
    if refusals:
        lines += ["", "Cells that plain onnxruntime runs and winml_dag refuses:", ""]
        lines += [f"- {cells}: {told}" for told, cells in _grouped(refusals)]
    return "\n".join(lines)


def _grouped(refusals: Iterable[Judged]) -> Iterable[tuple[str, str]]:
    """Yield each message, with the cells that have it."""
    by_words: dict[str, dict[str, list[str]]] = {}
    for one in refusals:
        cells = by_words.setdefault(one.may_refuse or one.told.split(". ")[0], {})
        cells.setdefault(one.model, []).append(f"{one.ep}/{one.precision}")
    for told, models in by_words.items():
        yield told, ", ".join(f"{model} ({', '.join(cells)})" for model, cells in models.items())


def totals(found: Sequence[Judged]) -> str:
    """Return the table, a row per family, target and precision."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for one in found:
        family = one.family if one.family.startswith(("real", "layers")) else "hostile graphs"
        groups.setdefault((family, one.ep, one.precision), []).append(one)
    lines = [_HEAD, ("---", "---", "---", *("---:",) * (len(_HEAD) - 3))]
    lines += [(*key, *_counts(those)) for key, those in groups.items()]
    lines.append(("all", "", "", *_counts(found)))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _counts(those: Sequence[Judged]) -> Sequence[object]:
    verdicts = [one.verdict for one in those]
    both = [one for one in those if one.sqnr_db is not None and one.beside is not None and not one.wrong]
    return (
        len(those),
        *(verdicts.count(name) for name in ("built", "refused", "failed")),
        sum(one.plain_runs for one in those),
        sum(bool(one.wrong) for one in those),
        sum(bool(one.plain_wrong) for one in those),
        _mean([one.sqnr_db for one in both]),
        _mean([one.beside for one in both]),
        _mean([one.plain.get("tensor") for one in both]),
    )


def _mean(values: Sequence[float | None]) -> str:
    return f"{found:.1f}" if (found := mean(values)) == found else ""
