"""The data of a page, and the sentences at its top: nothing is lost, nothing runs, and the question is answered."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import fields, replace

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.sweep.result import CellStatus, GoalResult, StageRun
from winml_dag.report.page import answers, content_of, html_of
from winml_dag.report.row import Latency, Report, Row, Size

SMALL = samples.small_report()


def content_in(page: str):
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def report_of(*rows: Row) -> Report:
    return Report("r", ("out",), "2026-11-22T10:46:54+00:00", rows)


def measured(precision: str, milliseconds: float, size: int, **values) -> Row:
    latency = Latency(milliseconds, milliseconds, milliseconds, 100, 10, "live", "")
    row = Row(f"bert/{precision}", {}, "bert", precision, "cpu", "cpu", CellStatus.BUILT, latency=latency)
    return replace(row, size=Size(size, 0, size), **values)


def test_stages_survive_html_encoding() -> None:
    told = content_in(html_of(SMALL))
    texts = {field.name for field in fields(StageRun) if field.type == "str" or field.name == "cache_key"}
    for row, shown in zip(SMALL.rows, told["rows"], strict=True):
        assert row.name == shown["name"]
        for stage, values in zip(row.stages, shown["stages"], strict=True):
            named = dict(zip(told["stage_columns"], values, strict=True))
            unpacked = {
                name: told["texts"][value] if name in texts and value is not None else value
                for name, value in named.items()
            }
            assert StageRun(**unpacked) == stage
        assert told["versions"][shown["versions"]] == dict(row.versions)


@given(st.text(), st.floats())
def test_any_text_or_number_is_safe_in_html(text: str, value: float) -> None:
    row = measured("w8a8", value, 1, why=text, digest=text, missing={text: text})
    page = html_of(replace(report_of(row), name=text, host={text: text}))
    assert page.isascii()
    assert page.count("<script") == page.count("</script") == 2
    shown = content_in(page)["rows"][0]
    assert shown.get("why", "") == text.encode("utf-8", "replace").decode()
    if value != value:
        assert "p50" not in shown["latency"]
    else:
        assert float(shown["latency"]["p50"]) == pytest.approx(value, rel=1e-6)


def test_csp_allows_only_embedded_style_and_script() -> None:
    page = html_of(SMALL)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    style, script = (
        re.search(r"<style>(.*?)</style>", page, re.DOTALL),
        re.search(r"<script>(.*?)</script>", page, re.DOTALL),
    )
    assert policy is not None
    assert style is not None
    assert script is not None
    digests = [base64.b64encode(hashlib.sha256(part[1].encode()).digest()).decode() for part in (style, script)]
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_report_of_500_builds_is_under_2_megabytes() -> None:
    assert len(html_of(samples.large_report())) < 2_000_000


def test_unknown_values_are_omitted() -> None:
    shown = content_of(samples.bare_report(), None)["rows"]
    assert isinstance(shown, list)
    assert set(shown[0]) == {
        "name", "model", "precision", "ep", "device", "status", "stages", "versions", "missing",
        "seconds", "made_in_seconds", "saved_seconds",
    }  # fmt: skip


def test_answers_list_goal_winners() -> None:
    assert answers(SMALL) == (
        "Best for bert-base on npu: w8a16, 7.89 ms, 0.21 % worse in accuracy.",
        "Best for resnet-50 on npu: w8a16, 3.56 ms, 0.22 % worse in accuracy.",
        "Nothing to ship for clip-text on npu: no build meets cosine >=0.99; the nearest is clip-text/w4a16/npu with "
        "0.985.",
    )


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(1234.6, "1235 ms"), (999.7, "1000 ms"), (7.891, "7.89 ms"), (0.0782, "78.2 \u00b5s")]
)
def test_answer_latency_is_formatted_as_in_tables(milliseconds: float, text: str) -> None:
    row = measured("w8a8", milliseconds, 1000)
    goal = GoalResult({"model": "bert"}, "latency", {}, row.name, ())
    assert answers(replace(report_of(row), goals=(goal,))) == (f"Best for bert: {row.name}, {text}.",)
    assert row.latency is not None
    emulated = replace(row, latency=replace(row.latency, emulated=True))
    assert f", {text} on an emulator." in answers(replace(report_of(emulated), goals=(goal,)))[0]


def test_answers_distinguish_trials_and_pending_goals_and_are_limited() -> None:
    trial = GoalResult({"model": "bert-base", "target": "npu"}, "latency", {}, "bert-base/w8a8/npu/keep-6", ())
    waiting = GoalResult({"model": "bert"}, "size", {}, None, (), why="2 builds have no result", pending=True)
    told = answers(replace(SMALL, goals=(trial, waiting, *[waiting] * 7)))
    assert told[0].startswith("Best for bert-base on npu: w8a8 keep-6, ")
    assert told[1] == "Not settled yet for bert: 2 builds have no result."
    assert (len(told), told[-1]) == (5, "5 more are below.")


def test_answers_without_goals_name_fastest_and_smallest() -> None:
    good = measured("w8a16", 4.0, 3 << 20)
    smaller = measured("w4a16", 6.0, 2 << 20)
    quality = SMALL.rows[0].quality
    assert quality is not None
    bad = measured("w8a8", 1.0, 1 << 20, quality=replace(quality, passed=False))
    emulated = replace(measured("fp16", 0.5, 8 << 20), latency=Latency(0.5, 0.5, 0.5, 9, 1, "live", "", emulated=True))
    failed = replace(measured("fp32", 0.1, 1), status=CellStatus.FAILED)
    assert answers(report_of(good, smaller, bad, emulated, failed)) == (
        "bert: fastest is w8a16 on cpu (4 ms); smallest is w4a16 on cpu (2.0 MiB).",
    )


def test_answer_is_never_empty_and_regressions_come_first() -> None:
    assert answers(report_of()) == ("There are no builds.",)
    assert answers(samples.bare_report()) == ("1 of 1 builds exist.",)
    told = answers(SMALL, samples.comparison_with(SMALL))
    assert told[0] == "2 of 32 builds are worse than in out/summer: bert-base/fp32/cpu, clip-text/w8a8/npu."
