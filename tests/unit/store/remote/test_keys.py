"""Signing keys: read only from files that only their owner can write, rejected when weak, and never shown."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from winml_dag.errors import UsageError
from winml_dag.store.remote.settings import (
    Mode,
    RemoteSettings,
    SigningKey,
    TierSettings,
    check_keys,
    new_key,
    signing_keys,
)

SECRET, OTHER = b"0123456789abcdef" * 2, b"fedcba9876543210" * 4
CODED, OTHER_CODED = (base64.b64encode(secret).decode() for secret in (SECRET, OTHER))


@pytest.fixture
def keys_file(tmp_path: Path) -> Callable[..., Path]:
    def make(text: str, mode: int = 0o600) -> Path:
        path = tmp_path / "keys"
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    return make


def test_environment_keys_are_read_in_order_and_hidden() -> None:
    found = signing_keys({"WINML_DAG_REMOTE_KEYS": f" new:{CODED}, old:{OTHER_CODED} "})

    assert found == (SigningKey("new", SECRET), SigningKey("old", OTHER))
    assert CODED not in repr(found)
    assert repr(SECRET) not in repr(found)


def test_keys_file_has_one_key_per_line_with_comments(keys_file: Callable[..., Path]) -> None:
    path = keys_file(f"# of 2026\nnew:{CODED}\n\n  old:{OTHER_CODED}\n")

    assert [key.id for key in signing_keys({"WINML_DAG_REMOTE_KEYS_FILE": str(path)})] == ["new", "old"]
    assert signing_keys({}, path) == signing_keys({"WINML_DAG_REMOTE_KEYS_FILE": str(path)}, Path("elsewhere"))
    assert signing_keys({"WINML_DAG_REMOTE_KEYS": f"a:{CODED}"}, path) == (SigningKey("a", SECRET),)


def test_no_keys_are_allowed() -> None:
    assert signing_keys({"WINML_DAG_REMOTE_KEYS": "  "}) == ()


def test_new_keys_are_valid_and_distinct() -> None:
    first, second = new_key("ci-2026"), new_key("ci-2026")

    assert first != second
    assert signing_keys({"WINML_DAG_REMOTE_KEYS": first})[0].id == "ci-2026"
    with pytest.raises(UsageError, match="A key has a name that cannot be one"):
        new_key("two words")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CODED, "has no colon"),
        (f"a:{CODED},{CODED}", "key 2 is not a key"),
        (f"a:{CODED},a:{OTHER_CODED}", "two keys that are called 'a'"),
        (f"two words:{CODED}", "a name that cannot be one"),
        (f":{CODED}", "a name that cannot be one"),
        ("a:" + base64.b64encode(b"x" * 31).decode(), "has 31 bytes, and fewer than 32"),
        ("a:hunter2-and-more-than-thirty-two-characters", "is not base64"),
        (f"a:{CODED},", "key 2 is not a key"),
    ],
    ids=["no name", "no second name", "twice", "blank in name", "empty name", "short", "no base64", "comma at the end"],
)
def test_invalid_key_is_refused_without_showing_it(text: str, why: str, keys_file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        signing_keys({"WINML_DAG_REMOTE_KEYS": text})
    in_file = text.replace(",", "\n")
    if "key 2" not in why:
        with pytest.raises(UsageError, match=why):
            signing_keys({}, keys_file(in_file))

    assert not any(secret in str(refused.value) for secret in (CODED, OTHER_CODED, "hunter2"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620], ids=oct)
def test_keys_file_accessible_to_others_is_refused(mode: int, keys_file: Callable[..., Path]) -> None:
    path = keys_file(f"a:{CODED}\n", mode)
    with pytest.raises(UsageError, match=f"other users may read or change it. Run `chmod 600 {path}`"):
        signing_keys({}, path)


def test_missing_empty_or_binary_keys_file_is_named(tmp_path: Path, keys_file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"nowhere cannot be read: No such file"):
        signing_keys({}, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="has no key"):
        signing_keys({}, keys_file("# none\n"))
    (tmp_path / "keys").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="it is not text"):
        signing_keys({}, tmp_path / "keys")


def settings(
    *keys: str, mode: Mode = Mode.READ, trusted: frozenset[str] | None = None, accept: bool = False
) -> RemoteSettings:
    level = TierSettings("https://cache", mode, trusted=trusted)
    return RemoteSettings((level,), tuple(SigningKey(name, SECRET) for name in keys), accept)


@pytest.mark.parametrize(
    "sound",
    [
        settings("a"),
        settings("a", "b", trusted=frozenset({"b", "later"})),
        settings(accept=True),
        settings(mode=Mode.OFF),
    ],
    ids=["a key", "one of several is trusted", "unsigned accepted", "off"],
)
def test_verifiable_remote_settings_are_accepted(sound: RemoteSettings) -> None:
    check_keys(sound)


def test_remote_without_usable_key_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"no key to check the records of https://cache, and.*`winml-dag cache remote key`"
    ):
        check_keys(settings())
    with pytest.raises(UsageError, match=r"trusted with \(main\) none is here"):
        check_keys(settings("a", trusted=frozenset({"main"}), accept=True))
