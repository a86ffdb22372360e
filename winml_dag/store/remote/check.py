"""Check remotes, with advice.

A check of a writable remote leaves a probe there: a blob, and a text under a key that no record has. Each probe is new,
because uploading what exists requires no permission.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from timeit import timeit
from urllib.parse import urlsplit

from winml_dag.errors import UsageError
from winml_dag.store.remote.protocol import Remote, RemoteError
from winml_dag.store.remote.settings import (
    TOKEN,
    TOKEN_HOST_VARIABLE,
    Mode,
    RemoteSettings,
    TierSettings,
    check_keys,
    folder_of,
)

_NOTHING = hashlib.sha256(b"winml_dag probe: nothing is here").hexdigest()
_OTHER_PROBE = b"winml_dag probe, put a second time\n"
_REQUESTS = 5
# Buckets refuse requests whose time is this wrong, and expiring credentials soon fail too.
_MOST_SECONDS_APART = 300

_ADVICE = {
    "unreachable": "Look at the address, and whether the server runs and a proxy or firewall is between.",
    "slow": "A remote that does not answer within two seconds is ignored: a nearer tier would help.",
    "failing": "The log of the server says more.",
    "forbidden": "Look at the credentials, at what they may do there, and at the clock of this machine.",
    "full": "Make room there; until then nothing is put.",
    "lying": "The server is not a winml_dag remote, or a proxy changes its answers.",
}


@dataclass(frozen=True)
class Finding:
    """``what`` was checked, whether it ``is_well``, and advice if not."""

    what: str
    is_well: bool
    text: str
    advice: str = ""


def check_tier(tier: TierSettings, settings: RemoteSettings, remote: Remote, scratch: Path) -> Iterator[Finding]:
    """The findings for *remote*, which has the settings *tier*; *scratch*: a folder for a file of a few bytes."""
    yield _keys(tier, settings)
    parts = urlsplit(tier.url)
    wants_token = parts.scheme in ("http", "https") and parts.username is None
    if wants_token and not tier.gets_token and os.environ.get(TOKEN, "").strip():
        yield Finding(
            "token",
            False,
            f"The token in {TOKEN} is not sent there",
            f"Set {TOKEN_HOST_VARIABLE} to its host, or name it in your own configuration, if it is meant for it.",
        )
    if tier.mode is Mode.READ and parts.scheme == "file" and not (folder := folder_of(parts)).is_dir():
        # Reading a missing folder looks like reading an empty one.
        yield Finding("reach", False, f"there is no folder {folder}", "Look at the address, or whether it is mounted.")
        return
    what = "reach"
    try:
        seconds = [timeit(lambda: remote.record(_NOTHING), number=1) for _ in range(_REQUESTS)]
        yield Finding(what, True, f"answers in {median(seconds) * 1000:.1f} ms")
        yield from _clock_apart(tier.url)
        what = "read"
        remote.has(f"sha256:{_NOTHING}")
        yield Finding(what, True, "records and blobs can be read")
        what = "write"
        if tier.mode is Mode.READ_WRITE:
            yield from _writing(remote, scratch)
    except RemoteError as error:
        yield Finding(what, False, f"it {error.message}".rstrip("."), _ADVICE[error.trouble])


def _keys(tier: TierSettings, settings: RemoteSettings) -> Finding:
    try:
        check_keys(replace(settings, tiers=(tier,)))
    except UsageError as error:
        return Finding("keys", False, error.message.rstrip("."), error.advice)
    known = [key.id for key in settings.keys if tier.trusted is None or key.id in tier.trusted]
    trusted = f"trusts {', '.join(known)}" if known else "accepts unsigned records"
    if tier.mode is not Mode.READ_WRITE or not settings.keys:
        return Finding("keys", True, trusted)
    signer = settings.keys[0].id
    if signer in known:
        return Finding("keys", True, f"{trusted}, signs with {signer}")
    return Finding(
        "keys",
        False,
        f"{trusted}, but this machine signs with {signer}, which is not trusted here",
        "Put a key that is trusted here first, or use --remote-mode read.",
    )


def _writing(remote: Remote, scratch: Path) -> Iterator[Finding]:
    content = f"winml_dag probe {os.urandom(8).hex()}\n".encode()
    digest = hashlib.sha256(content).hexdigest()
    blob, key = f"sha256:{digest}", hashlib.sha256(f"no record: {digest}".encode()).hexdigest()
    probe = scratch / "winml_dag.probe"
    probe.write_bytes(content)
    try:
        remote.put(blob, probe, lambda _: None)
        came = b"".join(remote.read(blob))
        remote.put_record(key, content)
        before = remote.record(key)
        was_put = remote.put_record(key, _OTHER_PROBE)
        after = remote.record(key)
    except KeyError:
        came, before, after, was_put = b"", None, None, False
    finally:
        probe.unlink()
    if came != content or before is None:
        text = "Uploaded content comes back changed"
        yield Finding("write", False, text, "Something there changes uploads.")
        return
    yield Finding("write", True, f"works; the probe cas/{digest[:12]}... is left there")
    if not was_put and before == after:
        yield Finding("first wins", True, "existing records are not replaced")
    else:
        advice = "The last writer decides what all others get: let only one machine write there."
        yield Finding("first wins", False, "A second record replaced the first", advice)


def _clock_apart(url: str) -> Iterator[Finding]:
    """The clock of a server that reports its time, as HTTP servers do."""
    if not url.startswith(("http://", "https://")):
        return
    from email.utils import parsedate_to_datetime

    import urllib3

    from winml_dag.store.remote.protocol import ATTEMPT_SECONDS

    try:
        with urllib3.PoolManager() as pool:
            answer = pool.request("HEAD", url, timeout=ATTEMPT_SECONDS, retries=False, redirect=False)
        date = parsedate_to_datetime(answer.headers.get("Date", ""))
    except (urllib3.exceptions.HTTPError, ValueError, TypeError):
        return
    apart = abs(time.time() - date.timestamp())
    is_well = apart <= _MOST_SECONDS_APART
    text = f"{apart:.0f} s apart" if apart >= 2 else "the same time as here"
    yield Finding("clock", is_well, text, "" if is_well else "Set the clock of this machine, or of that one.")
