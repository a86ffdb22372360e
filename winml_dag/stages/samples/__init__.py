"""Calibration data in the forms that a model takes: arrays, texts, images and table rows, by file suffix.

This module imports nothing heavy, because planning reads it. The work is in the modules next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TEXT_COLUMNS = ("text", "text_pair")
IMAGE_COLUMN = "image"

# The suffixes of each kind. The data of a build has files of one kind only.
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "npz": (".npz",),
    "npy": (".npy",),
    "text": (".txt",),
    "images": (".png", ".jpg", ".jpeg", ".bmp", ".webp"),
    "parquet": (".parquet",),
    "arrow": (".arrow",),
    "json": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv", ".tsv"),
}
TABLES = ("parquet", "arrow", "json", "csv")

_KINDS = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes}


@dataclass(frozen=True)
class Columns:
    """``columns_mapping``: for data with rows, maps roles to columns.

    A role is the name of a model input, whose values the column has; or ``text``, ``text_pair`` and ``image`` for what
    goes through the model's tokenizer and image processor. Empty: columns have these names themselves.
    """

    columns_mapping: Mapping[str, str]


def kind_of(name: str) -> str | None:
    """Return the kind of the file *name*: a key of :data:`SUFFIXES`, or None if it is not data."""
    dot = name.rfind(".")
    return _KINDS.get(name[dot:].lower()) if dot >= 0 else None
