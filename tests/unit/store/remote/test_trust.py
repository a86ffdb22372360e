"""Remote contents: only what a trusted key signed, for this key and namespace, becomes a record."""

from __future__ import annotations

import hmac
import json
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winml_dag.canonical import JsonValue, canonical_json
from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_bytes
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.remote.protocol import MOST_RECORD_BYTES
from winml_dag.store.remote.settings import SigningKey
from winml_dag.store.remote.trust import Maker, Refused, Trust, maker_here

MAKER = Maker("winml_dag 1.0", run="https://ci/7", revision="abc", host="Linux x86_64", tools={"onnx": "1.19"})
OURS, OLD = SigningKey("ours", b"o" * 32), SigningKey("old", b"l" * 32)
TRUST = Trust((OURS,), MAKER, key_of=cache_key)
SHA = digest_bytes(b"model", "sha256")


def record_with(**changed: object) -> Record:
    made = KeyInputs("export", 1, {"export": {"opset": 21}}, {"source": "sha256:" + "0" * 64}, {"torch": "2.13"})
    model = Artifact.of([FileEntry("model.onnx", SHA, 5), FileEntry("data/model.bin", SHA, 5)])
    whole = Record(
        cache_key(made), made.config_hash, made, {"model": model}, {"nodes": 37}, 1.5, made_by="winml_dag 0.9"
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


RECORD = record_with()
KEY = RECORD.cache_key


def forged(change: Callable[[dict[str, JsonValue]], object], trust: Trust = TRUST) -> bytes:
    """Return an envelope whose value was changed and signed again, as its writer can do with the key."""
    body = json.loads(trust.sign(RECORD, "main").split(b"\n")[1])
    change(body)
    return signed(canonical_json(body).encode(), trust)


def signed(body: bytes, trust: Trust = TRUST) -> bytes:
    head: dict[str, JsonValue] = {"format": 1}
    if trust.keys:
        # Spelled out again: other versions of this program must produce the same.
        name = trust.keys[0].id
        text = f"winml_dag record 1\n{len(name)} {name}\n".encode() + body
        head |= {"signed_by": name, "hmac_sha256": hmac.digest(trust.keys[0].secret, text, "sha256").hex()}
    return canonical_json(head).encode() + b"\n" + body + b"\n"


def test_verified_record_has_maker_namespace_and_signer() -> None:
    opened = TRUST.verify(TRUST.sign(RECORD, "main"), KEY, "main")

    assert replace(opened, origin={}) == RECORD
    assert opened.origin == {
        # The program that ran the stage, not the one that uploaded the record.
        "maker": replace(MAKER, builder="winml_dag 0.9").to_json(),
        "namespace": "main",
        "signed_by": "ours",
    }


def test_forwarded_record_keeps_its_first_maker() -> None:
    other = Trust((OLD,), Maker("somebody else"), key_of=cache_key)
    fetched = TRUST.verify(TRUST.sign(RECORD, "main"), KEY, "main")

    assert other.verify(other.sign(fetched, "team"), KEY, "team").origin == {
        **fetched.origin,
        "namespace": "team",
        "signed_by": "old",
    }


def test_keys_are_rotated_without_a_gap() -> None:
    """First everybody accepts the new key, then it signs, then the old one is removed."""
    before, while_, after = (replace(TRUST, keys=keys) for keys in ((OLD,), (OURS, OLD), (OURS,)))

    assert while_.verify(before.sign(RECORD, "main"), KEY, "main").origin["signed_by"] == "old"
    assert after.verify(while_.sign(RECORD, "main"), KEY, "main").origin["signed_by"] == "ours"
    with pytest.raises(Refused, match="the key 'old', which is not here"):
        after.verify(before.sign(RECORD, "main"), KEY, "main")


def test_any_changed_byte_is_refused() -> None:
    data = TRUST.sign(RECORD, "main")
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(Refused):
            TRUST.verify(bytes(changed), KEY, "main")


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for trust in (TRUST, Trust((), MAKER, accept_unsigned=True)):
        for prefix in (b"", b'{"format":1}\n'):
            with pytest.raises(Refused):
                trust.verify(prefix + data, KEY, "main")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=9), VALUES, max_size=3), st.text(st.characters(), max_size=30), st.floats())
def test_signed_record_roundtrips_and_unsignable_is_refused_by_signer(
    metrics: dict[str, JsonValue], made_at: str, seconds: float
) -> None:
    record = record_with(metrics=metrics, made_at=made_at, elapsed_seconds=seconds)
    try:
        data = TRUST.sign(record, "main")
    except Refused:
        return
    opened = replace(TRUST.verify(data, KEY, "main"), origin={})
    assert canonical_json(opened.to_json()) == canonical_json(record.to_json())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (signed(b"{}", replace(TRUST, keys=())), "nobody has signed it"),
        (TRUST.sign(RECORD, "main")[:-1], "not two lines"),
        (b"x" * 300 + b"\n{}\n", "not two lines"),
        (b'{"format":2}\n{}\n', "format is '2'"),
        (b'{"format":1,"signed_by":"ours"}\n{}\n', "not readable"),
        (b'{"format":1,"hmac_sha256":"00","signed_by":"ours"}\n{}\n', "signature does not match"),
        (b'{"format":1,"hmac_sha256":"\xc3\xa4","signed_by":"ours"}\n{}\n', "signature does not match"),
        (Trust((SigningKey("ours", b"x" * 32),), MAKER).sign(RECORD, "main"), "does not match the key 'ours'"),
        (Trust((OLD,), MAKER).sign(RECORD, "main"), "the key 'old', which is not here"),
        (b"x" * (MOST_RECORD_BYTES + 1), "no record has more"),
        (TRUST.sign(RECORD, "pull/12"), "made for the namespace 'pull/12', not for 'main'"),
    ],
    ids=str,
)
def test_invalid_signature_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why):
        TRUST.verify(data, KEY, "main")


def test_key_not_trusted_for_the_remote_is_refused() -> None:
    both = replace(TRUST, keys=(OLD, OURS))
    data = TRUST.sign(RECORD, "main")

    assert both.verify(data, KEY, "main", frozenset({"ours"}))
    with pytest.raises(Refused, match="'ours', which this remote is not trusted with"):
        both.verify(data, KEY, "main", frozenset({"old"}))


def file(name: str = "model.onnx", digest: str = SHA, size: JsonValue = 5) -> JsonValue:
    return {"name": name, "digest": digest, "size": size}


def with_outputs(*files: JsonValue, slot: str = "model") -> Callable[[dict[str, JsonValue]], object]:
    return lambda body: body["record"].update(outputs={slot: list(files)})  # type: ignore[union-attr]


MALICE: dict[str, tuple[Callable[[dict[str, JsonValue]], object], str]] = {
    "one folder up": (with_outputs(file("../../.ssh/authorized_keys")), "not a safe file name"),
    "a slot that is a path": (with_outputs(file(), slot="../x"), "not a name of an output"),
    "a digest that is a path": (with_outputs(file(digest="sha256:../../../../etc/passwd")), "malformed"),
    "a negative size": (with_outputs(file(size=-1)), "malformed"),
    "an absurd size": (with_outputs(file(size=1 << 60)), "more than .* TiB"),
    "a size that is text": (with_outputs(file(size="5")), "malformed"),
    "many files": (with_outputs(*(file(f"f{number}") for number in range(20_001))), "more than 20000 files"),
    "a weak digest of the log": (lambda body: body["record"].update(log=file("log", "xxh3-128:" + "0" * 32)), "sha256"),  # type: ignore[union-attr]
    "another record": (lambda body: body["record"].update(cache_key="f" * 64), "another key"),  # type: ignore[union-attr]
    "a made-up origin": (lambda body: body["record"].update(origin={"signed_by": "ours"}), "itself where"),  # type: ignore[union-attr]
    "one field more": (lambda body: body.update(more=1), "fields are not those"),
    "a maker that clears the screen": (lambda body: body["maker"].update(run="\x1b[2J"), "maker of a record"),  # type: ignore[union-attr]
    "a date that clears the screen": (lambda body: body["record"].update(made_at="\x1b[2J"), "cannot be shown"),  # type: ignore[union-attr]
    "time that runs backwards": (lambda body: body["record"].update(elapsed_seconds=-1.0), "less than no time"),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("attack", MALICE, ids=str)
def test_malicious_signed_content_is_refused(attack: str) -> None:
    change, why = MALICE[attack]
    with pytest.raises(Refused, match=why):
        TRUST.verify(forged(change), KEY, "main")


def test_refusal_message_is_printable() -> None:
    """File systems accept names with a byte that starts a terminal command."""
    with pytest.raises(Refused, match="one name twice") as refused:
        TRUST.verify(forged(with_outputs(file("a\x9b2J"), file("A\x9b2J"))), KEY, "main")
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"key":NaN}',
        b'{"key":1e999}',
        b'{"key":"\\ud800"}',
        b'{"key": 1}',
        b'{"key":1,"key":2}',
        b'{"key":' + b"9" * 5000 + b"}",
        b"\x80\x04cos\nsystem"[:5],
        b"[]",
    ],
    ids=lambda body: str(body[:12]),
)
def test_noncanonical_json_is_refused_even_if_unsigned(body: bytes) -> None:
    unsigned = Trust((), MAKER, accept_unsigned=True)
    with pytest.raises(Refused, match=r"not JSON|not a JSON object"):
        unsigned.verify(signed(body, unsigned), KEY, "main")


def test_unsigned_records_need_acceptance_and_no_required_signer() -> None:
    unsigned = Trust((), MAKER, accept_unsigned=True)
    data = unsigned.sign(RECORD, "main")

    assert unsigned.verify(data, KEY, "main").origin["signed_by"] is None
    with pytest.raises(Refused, match="nobody has signed it"):
        unsigned.verify(data, KEY, "main", frozenset({"ours"}))


def test_unknown_signer_may_be_accepted_but_known_key_mismatch_is_refused() -> None:
    data = TRUST.sign(RECORD, "main")
    changed = data.replace(b'"nodes":37', b'"nodes":38')

    assert Trust((), MAKER, accept_unsigned=True).verify(data, KEY, "main").origin["signed_by"] is None
    with pytest.raises(Refused, match="signature does not match"):
        Trust((OURS,), MAKER, accept_unsigned=True).verify(changed, KEY, "main")


def test_record_with_local_digests_is_not_signed() -> None:
    local = record_with(outputs={"model": Artifact.of([FileEntry("model.onnx", digest_bytes(b"model"), 5)])})
    with pytest.raises(Refused, match="not a sha256"):
        TRUST.sign(local, "main")


def test_input_file_list_is_dropped_from_too_long_record() -> None:
    long = record_with(input_files={"source": [file(f"{number:0100}") for number in range(50_000)]})
    data = TRUST.sign(long, "main")

    assert len(data) < 10_000
    assert TRUST.verify(data, KEY, "main").input_files == {}


def test_maker_has_builder_host_and_versions_but_no_machine_name() -> None:
    maker = maker_here("winml_dag 1.0")

    assert (maker.builder, maker.run, maker.revision) == ("winml_dag 1.0", "", "")
    assert maker.host == f"{platform.system()} {platform.machine()}"
    assert maker.tools["python"] == platform.python_version()
    assert maker.tools["onnxruntime"] == version("onnxruntime")
    assert platform.node() not in str(maker)
    assert Maker.from_json(maker.to_json()) == maker


@pytest.mark.parametrize("address", ["https://x/\x1b[2J", "https://" + "x" * 1000], ids=["escape", "long"])
def test_unprintable_or_long_run_url_is_dropped(address: str) -> None:
    assert maker_here("x", run="https://x/1", revision="abc").run == "https://x/1"
    assert maker_here("x", run=address).run == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"run": 1},
        {"run": "a\nb"},
        {"more": ""},
        {"tools": {"onnx": 1}},
        {"tools": {f"tool{number}": "1" for number in range(51)}},
        {"tools": []},
    ],
    ids=lambda changed: str(changed)[:20],
)
def test_invalid_maker_json_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="maker of a record"):
        Maker.from_json({**Maker("x").to_json(), **changed})  # type: ignore[dict-item]
