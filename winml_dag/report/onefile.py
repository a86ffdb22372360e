"""Shared by all single-file pages: a head that names the program, a strict policy, and text passed as data.

Names, reasons and logs are untrusted. They go into a JSON block that no browser runs, and the page's script inserts
them as text. The policy allows one style and one script by their digests, and no connections.
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
# The head up to the program's name is shorter.
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class PageKind:
    """A kind of page.

    ``maker``: the program name in its pages. ``folder``: has the body template ``page.html``, the ``styles`` and the
    ``scripts``, ordered by dependency. All files are ASCII.
    """

    maker: str
    folder: Path
    styles: Sequence[str]
    scripts: Sequence[str]

    @property
    def mark(self) -> str:
        return f'<meta name="generator" content="{self.maker}">'

    def made(self, path: Path) -> bool:
        """Return whether the file *path* is such a page. Raises OSError when it cannot be read."""
        with path.open("rb") as file:
            return self.mark.encode("ascii") in file.read(_HEAD_BYTES)


def page_of(kind: PageKind, *, about: tuple[str, str], **fields: str) -> str:
    """Return a page of *kind*. *about*: name and content of an additional meta element.

    *fields* are HTML; every page has ``title`` and ``content``.
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


def link_beside(page: Path | None, name: str, text: str) -> str:
    """Return a link to the page *name* in the folder of *page*; empty if there is none."""
    return f'<a href="{name}">{text}</a>' if page is not None and (page.parent / name).is_file() else ""


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy for one *style* and one *script*, both ASCII, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def escaped(text: str) -> str:
    """Escape *text* for an element or attribute, in ASCII, which is valid in any encoding."""
    well_formed = text.encode("utf-8", "replace").decode("utf-8")
    return html.escape(well_formed).encode("ascii", "xmlcharrefreplace").decode("ascii")


def as_data(content: JsonValue) -> str:
    """Encode JSON that cannot end its HTML element: the first character of ``</script`` and ``<!--`` is escaped."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("ascii")).digest()).decode("ascii")


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii")
