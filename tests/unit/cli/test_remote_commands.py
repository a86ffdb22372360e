"""Commands with a remote as a user types them: output, counts, exit codes, and the cost of an unresponsive remote.

Two user-defined stages represent all stages; each machine is a cache folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from servers.faulty import Fault

from winml_dag.cli import run
from winml_dag.cli.remotes import Transfers
from winml_dag.store.remote import http, transfer

MAKING = "import sys; data = open(sys.argv[1]).read(); open(sys.argv[2], 'w').write(data * 100)"
SECRET = "A" * 43 + "="
# A privileged port on which nothing listens.
CLOSED = "http://127.0.0.1:1"


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Reduce the timeouts after which a remote counts as unavailable to a tenth."""
    monkeypatch.setattr(http, "ATTEMPT_SECONDS", 0.2)
    monkeypatch.setattr(transfer, "ATTEMPT_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def recipe(folder: Path, monkeypatch) -> None:
    """A recipe with two stages, in the current folder."""
    monkeypatch.setenv("WINML_DAG_REMOTE_KEYS", f"team:{SECRET}")
    (folder / "making.py").write_text(MAKING)
    (folder / "seed.txt").write_text("seed")
    command = [sys.executable, "-S", "{inputs.script}", "{inputs.of}", "{outputs.made}"]
    stages = {
        name: {
            "command": command,
            "inputs": {"script": "./making.py", "of": read},
            "outputs": {"made": file},
        }
        for name, read, file in (("make", "./seed.txt", "made.txt"), ("more", "make.made", "more.txt"))
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}))


def shared(folder: Path) -> str:
    return (folder / "shared").as_uri()


def build(machine: str, *arguments: str) -> list[str]:
    return ["build", "-c", "recipe.yaml", "--cache-dir", machine, *arguments]


def make_stages_new(folder: Path) -> None:
    """Remove the outputs next to the recipe, as on a machine that has not built yet."""
    for name in ("made.txt", "more.txt"):
        (folder / name).unlink()


def test_build_and_cache_info_report_remote_transfers(folder: Path, says, tells) -> None:
    moved = "2 records, 2 blobs (39.5 KiB)"
    said = says(*build("a", "--remote", shared(folder), "--remote-mode", "read-write"))
    assert f"remote: {moved} put\n" in said
    assert moved in says("cache", "info", "--cache-dir", "a")
    make_stages_new(folder)
    said = says(*build("b", "--remote", shared(folder)))
    assert f"remote: {moved} fetched\n" in said
    assert "found in the remote, made" in said
    assert (folder / "more.txt").read_text() == "seed" * 10_000
    assert tells("cache", "info", "--cache-dir", "b")["remote"]["bytes_fetched"] == 40_400
    said = says("cache", "info", "--cache-dir", "b")
    for line in ("requests; 2 of 2 records found", f"fetched      {moved}", "uploaded     0 records, 0 blobs (0 B)"):
        assert line in said
    make_stages_new(folder)
    told = tells(*build("c", "--remote", shared(folder)))["remote"]
    assert (told["records_found"], told["blobs_fetched"]) == (2, 2)
    assert "remote: " not in says(*build("d", "-q", "--remote", shared(folder)))
    assert "remote" not in tells(*build("e"))
    assert "remote" not in says("cache", "info", "--cache-dir", "e")


@pytest.mark.parametrize("trouble", ["nothing listens", "it never answers"])
@pytest.mark.usefixtures("impatient")
def test_unresponsive_remote_is_noted_once_and_ignored(trouble: str, server, says, tells) -> None:
    server.switch_on(Fault.SILENT)
    url = server.url if trouble == "it never answers" else CLOSED
    said = says(*build("a", "--remote", url, "--remote-mode", "read-write"))
    assert said.count(f"note: The remote {url}") == 1
    assert "ignored for the rest of this run" in said
    assert "2 ran" in said
    assert tells("cache", "info", "--cache-dir", "a")["remote"]["left_alone"] == 1


def test_rejected_remote_record_is_reported(folder: Path, server, says) -> None:
    says(*build("a", "--remote", server.url, "--remote-mode", "read-write"))
    for path in server.content:
        if "/ac/" in path:
            server.content[path] = server.content[path].replace(b"seed.txt", b"sold.txt")
            server.content[path] = server.content[path][:-3] + b" }\n"
    make_stages_new(folder)
    said = says(*build("b", "--remote", server.url))
    assert "rejected" in said
    assert "2 ran" in said


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["--remote", "https://cache"], {"WINML_DAG_REMOTE_KEYS": ""}, "There is no key to check the records of"),
        (["--remote-mode", "read"], {}, "--remote-mode read was given, and there is no remote."),
        (["--remote-mode", "reed"], {}, "'reed' is not one of 'read', 'read-write', 'off'"),
    ],
)
def test_invalid_remote_options_are_refused(
    arguments: list[str], variables: dict[str, str], told: str, says, monkeypatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert told in says(*build("a", *arguments), code=2)


@pytest.mark.parametrize("address", ["https://me:sesame@cache", "ftp://me:sesame@cache", "http://me:sesame@[::1"])
@pytest.mark.parametrize(
    ("command", "keys"),
    [("plan -c recipe.yaml", f"team:{SECRET}"), ("plan -c recipe.yaml", ""), ("cache remote check", f"team:{SECRET}")],
)
@pytest.mark.usefixtures("impatient")
def test_errors_never_show_password(address: str, keys: str, command: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("WINML_DAG_REMOTE_KEYS", keys)
    url = address.replace("cache", CLOSED.partition("//")[2])
    run([*command.split(), "--remote", url, "--format", "json"])
    said = capsys.readouterr()
    assert json.loads(said.out)
    assert "sesame" not in said.out + said.err
    assert "Traceback" not in said.err


def test_missing_remote_extra_is_named(says, monkeypatch) -> None:
    monkeypatch.setattr("winml_dag.store.remote.settings.find_spec", lambda _: None)
    assert "pip install winml_dag[remote]" in says(*build("a", "--remote", "https://cache"), code=2)


class TestPushAndPull:
    def test_push_uploads_local_results(self, folder: Path, says, tells) -> None:
        says(*build("a", "--remote", shared(folder)))
        push = ("cache", "push", "--cache-dir", "a", "--remote", shared(folder))
        assert "Give --remote-mode read-write" in says(*push, "--all", code=2)
        push += ("--remote-mode", "read-write")
        records = tells("cache", "list", "--cache-dir", "a")["records"]
        [key] = [each["key"] for each in records if each["bytes"] == 40_000]
        assert "1 record offered." in says(*push, key[:12])
        assert len(list((folder / "shared" / "ac").iterdir())) == 1
        pushed = tells(*push, "--all")
        assert (pushed["records"], pushed["remote"]["records_put"], pushed["remote"]["blobs_put"]) == (2, 1, 1)
        again = says(*push, "--all")
        assert "2 already existed" in again
        assert "remote: " not in again
        make_stages_new(folder)
        assert "(0 stages run)" in says(*build("b", "--remote", shared(folder)))

    def test_push_and_pull_of_recipe_transfer_its_records(self, folder: Path, says, tells) -> None:
        says(*build("a", "--remote", shared(folder)))
        (folder / "seed.txt").write_text("other")
        says(*build("a", "--remote", shared(folder)))
        both = ["-c", "recipe.yaml", "--remote", shared(folder)]
        assert "2 records offered." in says("cache", "push", *both, "--remote-mode", "read-write", "--cache-dir", "a")
        make_stages_new(folder)
        pulled = tells("cache", "pull", *both, "--cache-dir", "b")
        assert (pulled["records"], pulled["lacking_blobs"], pulled["to_run"]) == (2, 2, 0)
        pulled = tells("cache", "pull", *both, "--all-blobs", "--cache-dir", "b")
        assert (pulled["lacking_blobs"], pulled["remote"]["blobs_fetched"]) == (0, 2)
        assert "(0 stages run)" in says(*build("b", "--remote", shared(folder), "--remote-mode", "off"))
        assert (folder / "more.txt").read_text() == "other" * 10_000

    def test_results_pulled_from_one_remote_can_be_pushed_to_another(self, folder: Path, says, tells) -> None:
        """Also without the logs of stages, which are not fetched by a build that fetches its outputs."""
        (folder / "making.py").write_text(f"{MAKING}; print('made')")
        says(*build("a", "--remote", shared(folder), "--remote-mode", "read-write"))
        make_stages_new(folder)
        says(*build("b", "--remote", shared(folder)))
        other = ["--remote", (folder / "other").as_uri(), "--remote-mode", "read-write", "--cache-dir", "b"]
        assert tells("cache", "push", "--all", *other)["remote"]["records_put"] == 2

    @pytest.mark.usefixtures("impatient")
    def test_failed_pull_exits_1(self, says, tells) -> None:
        pull = ("cache", "pull", "-c", "recipe.yaml", "--cache-dir", "a", "--remote", CLOSED)
        pulled = tells(*pull, code=1)
        assert (pulled["records"], pulled["to_run"]) == (0, 2)
        assert "ignored" in says(*pull, code=1)

    @pytest.mark.parametrize("fault", [Fault.FORBIDDEN, Fault.FULL])
    def test_failed_push_exits_1(self, fault: Fault, server, says, tells) -> None:
        says(*build("a", "--remote", server.url, "--remote-mode", "off"))
        server.switch_on(fault, method="PUT")
        push = ["cache", "push", "--all", "--cache-dir", "a", "--remote", server.url, "--remote-mode", "read-write"]
        assert "note: " in says(*push, code=1)
        assert tells(*push, code=1)["remote"]["records_put"] == 0
        assert server.content == {}

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["push"], "Nothing to upload is named. Give --all, keys, or a recipe with -c."),
            (["push", "--all", "-c", "recipe.yaml"], "Nothing to upload is named"),
            (["pull"], "No recipe is named. Give one with -c."),
            (["push", "--all"], "There is no remote. Name one with --remote"),
            (["pull", "-c", "recipe.yaml"], "There is no remote. Name one with --remote"),
        ],
    )
    def test_push_and_pull_require_selection(self, arguments: list[str], told: str, says) -> None:
        assert told in says("cache", *arguments, "--cache-dir", "a", code=2)


def test_remote_uses_separate_cache_folder(folder: Path, says, tells, monkeypatch) -> None:
    says(*build("a"))
    says("cache", "gc", "--limit", "1GiB", "--cache-dir", "a")
    writable = ["--remote", shared(folder), "--remote-mode", "read-write"]
    begun = says("cache", "push", "--all", "--cache-dir", "a", *writable)
    assert f"with a remote the cache is {Path('a/sha256')}, which begins empty" in begun
    assert "0 records offered" in begun
    assert "2 ran" in says(*build("a", *writable))
    assert tells("cache", "info", "--cache-dir", "a/sha256")["limit_bytes"] == 1 << 30
    assert "(0 stages run)" in says(*build("a"))
    assert f"besides        {folder / 'a' / 'sha256'}" in says("cache", "info", "--cache-dir", "a")
    monkeypatch.setenv("WINML_DAG_REMOTE", shared(folder))
    assert f"cache folder   {folder / 'a' / 'sha256'}" in says("cache", "info", "--cache-dir", "a")


CHECK = ("cache", "remote", "check", "--remote")


class TestCheck:
    def test_check_passes_for_working_remote(self, server, says) -> None:
        says(*CHECK, server.url.replace("//", "//me:secret@"))
        assert server.count("PUT") == 0, "only what may be written gets a probe"
        assert "\n  off\n" in says(*CHECK, server.url, "--remote-mode", "off")
        said = says(*CHECK, server.url.replace("//", "//me:secret@"), "--remote-mode", "read-write")
        assert "secret" not in said
        assert f"{server.url} (read-write)" in said
        for line in (
            "ok     keys: trusts team, signs with team",
            "ok     reach: answers in ",
            "ok     clock: ",
            "ok     read: ",
            "ok     write: works; the probe cas/",
            "ok     first wins: existing records are not replaced",
        ):
            assert line in said
        # Again, now that a probe exists.
        says(*CHECK, server.url, "--remote-mode", "read-write")

    @pytest.mark.parametrize(
        ("fault", "method", "below", "what", "told"),
        [
            (Fault.FORBIDDEN, "PUT", "", "write", "answered 403 Forbidden. Look at the credentials"),
            (Fault.FULL, "PUT", "", "write", "Make room there"),
            (Fault.ERROR, "", "ac", "reach", "answered 500"),
            (Fault.FORBIDDEN, "", "cas", "read", "answered 403 Forbidden. Look at the credentials"),
            (Fault.WRONG_BYTES, "GET", "cas", "write", "comes back changed"),
        ],
    )
    def test_check_reports_fault_with_advice(
        self, fault: Fault, method: str, below: str, what: str, told: str, server, says
    ) -> None:
        server.switch_on(fault, method=method, below=below)
        said = says(*CHECK, server.url, "--remote-mode", "read-write", code=1)
        assert f"FAILS  {what}: " in said
        assert told in said

    def test_check_fails_for_missing_remote(self, folder: Path, says, tells, monkeypatch) -> None:
        """Reads of a folder that does not exist find nothing, as in an empty remote: only this reveals the typo."""
        said = says(*CHECK, shared(folder), code=1)
        assert f"FAILS  reach: there is no folder {folder / 'shared'}. Look at the address" in said
        monkeypatch.setenv("WINML_DAG_REMOTE_KEYS", "")
        told = tells(*CHECK, CLOSED, code=1)
        assert not told["is_well"]
        findings = told["remotes"][0]["findings"]
        assert [(each["what"], each["is_well"]) for each in findings] == [("keys", False), ("reach", False)]
        assert all(each["advice"] for each in findings)
        assert "There is no remote to check." in says("cache", "remote", "check", code=2)


def test_printed_commands_omit_password(folder: Path, says) -> None:
    (folder / "sweep.yaml").write_text("{model: model.onnx, matrix: {precision: [fp32, fp16]}}")
    said = says("plan", "-c", "sweep.yaml", "--matrix", "--remote", "https://me:secret@cache/path")
    assert "--remote https://cache/path --filter fp32" in said
    assert "secret" not in said


def test_generated_key_can_sign(folder: Path, says, tells, monkeypatch) -> None:
    monkeypatch.delenv("WINML_DAG_REMOTE_KEYS")
    says("cache", "remote", "key", "main-2026", "-o", "keys")
    monkeypatch.setenv("WINML_DAG_REMOTE_KEYS_FILE", "keys")
    assert "signs with main-2026" in says(*CHECK, shared(folder), "--remote-mode", "read-write")
    assert "already exists" in says("cache", "remote", "key", "other", "-o", "keys", code=2)
    first, second = (tells("cache", "remote", "key", "main")["key"] for _ in range(2))
    assert first.startswith("main:")
    assert first != second


def test_transfer_progress_is_reported_periodically() -> None:
    said: list[str] = []
    now = [0.0]
    transfers = Transfers(said.append, lambda: now[0])
    for second in range(26):
        now[0] = second
        transfers.received(1 << 20)
    assert said == [f"remote: {count}.0 MiB fetched so far" for count in (3, 13, 23)]
    said.clear()
    for gone in (0, 2, 4, 6, 10):
        transfers.waits(gone << 20, 10 << 20)
        now[0] += 1
    assert said == ["remote: 4.0 MiB of 10.0 MiB put"]
    said.clear()
    for minute in range(1, 6):
        now[0] = 60 * minute
        transfers.received(1 << 20)
        transfers.received(1 << 20)
    assert not said, "transfers that are over at once"
