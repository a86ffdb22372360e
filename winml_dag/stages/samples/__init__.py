"""Calibration data as a model takes it: arrays, texts, images and rows of tables, by the suffix of their files.

Light on purpose: what is declared here is read when a build is planned. The work is in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TEXT_COLUMNS = ("text", "text_pair")
IMAGE_COLUMN = "image"

# What goes by the name of each kind. Files of one kind only make up the data of a build.
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
    """``columns_mapping``: of data that are rows, which column goes where.

    By the name of an input of the model, whose values the column has; or by ``text``, ``text_pair`` and ``image`` for
    what goes through the model's tokenizer and image processor. Empty: columns of these very names.
    """

    columns_mapping: Mapping[str, str]


def kind_of(name: str) -> str | None:
    """What the file *name* holds: a key of :data:`SUFFIXES`, or None for what is no data."""
    dot = name.rfind(".")
    return _KINDS.get(name[dot:].lower()) if dot >= 0 else None
