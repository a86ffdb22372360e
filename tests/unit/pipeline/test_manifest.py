"""The text of a manifest: a line per stage and source, so that those of a partition can be replaced separately."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from winml_dag.pipeline.manifest import manifest_text, with_part

NAMES = st.text("abc-_/0.", min_size=1, max_size=6)


def manifest(stages: dict[str, str], sources: dict[str, str], time: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "timestamp": time,
        "elapsed_seconds": 1.5,
        "notices": [],
        "sources": {name: [{"name": name, "digest": digest}] for name, digest in sources.items()},
        "stages": [{"id": name, "name": "command", "cache_key": key} for name, key in stages.items()],
        "files": [],
    }


@given(
    stages=st.dictionaries(NAMES, NAMES, max_size=5),
    sources=st.dictionaries(NAMES.map("x/{}".format), NAMES, max_size=5),
    data=st.data(),
)
def test_a_part_replaces_its_own_lines_and_nothing_else(
    stages: dict[str, str], sources: dict[str, str], data: st.DataObject
) -> None:
    part_stages = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(stages, NAMES)))
    part_sources = data.draw(st.fixed_dictionaries({}, optional=dict.fromkeys(sources, NAMES)))
    whole = manifest_text(manifest(stages, sources, "before"))
    found = with_part(whole, manifest(part_stages, part_sources, "after"))
    says_more = (stages | part_stages, sources | part_sources) != (stages, sources)
    when = "after" if says_more else "before"
    assert found == manifest_text(manifest(stages | part_stages, sources | part_sources, when))


def test_each_stage_has_a_line_of_its_own_and_all_of_it_is_json() -> None:
    value = manifest({"one": "1", "two": "2"}, {"a/b": "c"}, "now")
    text = manifest_text(value).decode()
    assert json.loads(text) == value
    assert [line for line in text.splitlines() if '"id"' in line] == [
        '{"id": "one", "name": "command", "cache_key": "1"},',
        '{"id": "two", "name": "command", "cache_key": "2"}',
    ]
