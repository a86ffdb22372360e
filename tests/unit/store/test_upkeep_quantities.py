"""Sizes and durations as people write them, without ambiguity."""

from __future__ import annotations

import pytest

from winml_dag.errors import UsageError
from winml_dag.store.quantities import counted, duration_text, parse_duration, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512B", 512),
        ("2KB", 2000),
        ("2kB", 2000),
        ("1KiB", 1024),
        ("10GiB", 10 * 2**30),
        ("1.5 GB", 1_500_000_000),
        (" 3TiB ", 3 * 2**40),
    ],
)
def test_a_size_is_a_number_with_a_unit(text, size) -> None:
    assert parse_size(text, "--max-size") == size


@pytest.mark.parametrize(
    "text", ["", "10", "10G", "10gib", "-1GB", "1e3MB", "GiB", "1,5GB", "10 GiB or so", "∞GB", "1.GB"]
)
def test_anything_else_is_refused_with_what_may_be_written(text) -> None:
    with pytest.raises(UsageError, match=r"--max-size: .* is not a size\..* such as 10GiB"):
        parse_size(text, "--max-size")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("12h", 43_200), ("30d", 2_592_000), ("1w", 604_800)]
)
def test_a_duration_is_a_number_with_a_unit(text, seconds) -> None:
    assert parse_duration(text, "--older-than") == seconds


@pytest.mark.parametrize("text", ["", "30", "30x", "1 month", "-1d", "30D"])
def test_a_duration_that_is_none_is_refused(text) -> None:
    with pytest.raises(UsageError, match=r"--older-than: .* is not a duration\."):
        parse_duration(text, "--older-than")


def test_what_is_written_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
    assert [duration_text(time) for time in (1.25, 90, 3600 * 5.5, 86_400 * 3)] == [
        "1.2 s",
        "2 min",
        "5 h 30 min",
        "3 d 0 h",
    ]
    assert (counted(1, "blob"), counted(2, "blob")) == ("1 blob", "2 blobs")
