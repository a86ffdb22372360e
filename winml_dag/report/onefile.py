"""What every page of ours that is one file has in common: a policy that lets nothing else in, and texts as data.

Names, reasons and logs are what anybody may have written. They go into one block of JSON that no browser runs, and the
script of a page sets them as text. The policy allows the one style and the one script by their digests and no
connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from winml_dag.canonical import JsonValue

_SHARED = Path(__file__).parent / "shared"
_SHARED_SCRIPTS = ("elements.js", "format.js", "theme.js")


def page_of(folder: Path, styles: Sequence[str], scripts: Sequence[str], **fields: str) -> str:
    """The template ``page.html`` of *folder*, filled with its *styles*, what all pages share and its *scripts* (what is
    used stands before what uses it), and *fields*, which are HTML already. All files are ASCII.
    """
    style = "\n".join(_text(folder / name) for name in styles)
    parts = [*(_SHARED / name for name in _SHARED_SCRIPTS), *(folder / name for name in scripts)]
    script = '"use strict";\n(() => {\n' + "\n".join(map(_text, parts)) + "})();\n"
    template = Template(_text(folder / "page.html"))
    return template.substitute(policy=policy(style, script), style=style, script=script, **fields)


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy of a page with one *style* and one *script*, both ASCII, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def escaped(text: str) -> str:
    """*text* for the inside of an element or attribute, in ASCII: it is right in whatever encoding it is written."""
    well_formed = text.encode("utf-8", "replace").decode("utf-8")
    return html.escape(well_formed).encode("ascii", "xmlcharrefreplace").decode("ascii")


def as_data(content: JsonValue) -> str:
    """JSON that cannot end the element that it stands in: ``</script`` and ``<!--`` begin with what is escaped."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("ascii")).digest()).decode("ascii")


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii")
