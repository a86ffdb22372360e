"""What every page of ours that is one file has in common: its head, which says what has made it, a policy that lets
nothing else in, and texts as data.

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
from dataclasses import dataclass
from pathlib import Path
from string import Template

from winml_dag.canonical import JsonValue

PAGES = Path(__file__).parent / "pages"
_SHARED_SCRIPTS = ("elements.js", "format.js", "theme.js")
# The head is shorter up to where it says what has made the page.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class PageKind:
    """``maker``: what its pages say that has made them. ``folder``: of the template ``page.html``, the body, its
    ``styles`` and its ``scripts``; what is used stands before what uses it. All files are ASCII.
    """

    maker: str
    folder: Path
    styles: Sequence[str]
    scripts: Sequence[str]

    @property
    def mark(self) -> str:
        return f'<meta name="generator" content="{self.maker}">'

    def made(self, path: Path) -> bool:
        """Whether the file *path* is such a page. Raises OSError when it cannot be read."""
        with path.open("rb") as file:
            return self.mark.encode("ascii") in file.read(_HEAD_BYTES)


def page_of(kind: PageKind, *, about: tuple[str, str], **fields: str) -> str:
    """A page of *kind* with what all pages share. *about*: name and content of one more meta element; *fields*, of
    which ``title`` and ``content`` are in every page, are HTML already.
    """
    folder, styles, scripts = kind.folder, kind.styles, kind.scripts
    style = "\n".join(_text(folder / name) for name in styles)
    shared = PAGES / "shared"
    parts = [*(shared / name for name in _SHARED_SCRIPTS), *(folder / name for name in scripts)]
    script = '"use strict";\n(() => {\n' + "\n".join(map(_text, parts)) + "})();\n"
    template = Template("".join(map(_text, (shared / "head.html", folder / "page.html", shared / "foot.html"))))
    return template.substitute(
        policy=policy(style, script),
        mark=kind.mark,
        about=f'<meta name="{about[0]}" content="{about[1]}">',
        style=style,
        script=script,
        **fields,
    )


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
