"""The page on trust lists exactly the attacks that are tested here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "trust.md"


def test_trust_page_lists_exactly_the_tested_attacks() -> None:
    tree = ast.parse((Path(__file__).parent / "test_attacks.py").read_text(encoding="utf-8"))
    replayed = [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    told = re.findall(r"^\|.*\| `(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(told) == sorted(set(replayed) - {"test_record_of_other_machine_is_used_without_attack"})
