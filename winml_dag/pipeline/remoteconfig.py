"""The settings of remotes from options, the environment, the project's ``winml_dag.toml`` and the user's
``config.toml``, in this order. The first of them that names remotes names all of them.

A project's file comes from the author of the project. So keys, and whether a signature is required, are read from the
environment and the user's own file only. If both files name a remote, the stricter setting counts. Credentials are
never sent to a remote that only the project's file names.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError

from winml_dag.configuration import config_file, expanded
from winml_dag.errors import UsageError, known_instead
from winml_dag.file_reading import read_text
from winml_dag.pipeline.request import (
    ACCEPT_UNSIGNED_VARIABLE,
    MODE_VARIABLE,
    NAMESPACE_VARIABLE,
    REMOTE_VARIABLE,
    RemoteOptions,
    names_remotes,
)
from winml_dag.recipe.document import Location, Position, Positions
from winml_dag.recipe.fields import ListOf, Section, Text, problem
from winml_dag.recipe.problems import problems
from winml_dag.store.remote.protocol import FOLDERS
from winml_dag.store.remote.settings import (
    PATH_ADVICE,
    TOKEN_HOST_VARIABLE,
    Mode,
    RemoteSettings,
    SigningKey,
    TierSettings,
    folder_of,
    is_path,
    keys_in_file,
    new_key,
    shown,
    signing_keys,
)

F = TypeVar("F", bound=Section)

# The strictest first.
_STRICTEST_FIRST = (Mode.OFF, Mode.READ, Mode.READ_WRITE)
_OWN_KEY = "own-folders.key"
_HEADER = re.compile(r"\s*(\[\[?)([^\]]*)\]")
_ASSIGNED = re.compile(r"\s*([\w.-]+|\"[^\"]*\"|'[^']*')\s*=")

_WORDS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


def _check_url(url: str) -> str:
    if "://" not in url:
        # Not shown: without a scheme, any part of it may be a password.
        raise problem("this is not an address; it begins with http://, https://, s3://, az://, gs:// or file://")
    return url


def _check_namespace(text: str) -> str:
    if not is_path(text):
        raise problem(f"{text!r} is not a namespace. {PATH_ADVICE}")
    return text


class RemoteTable(Section):
    """One remote, in a table ``[[remote]]``; the nearest comes first."""

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        description="Where it is: `http(s)://`, `s3://`, `az://`, `gs://` or `file://`."
    )
    mode: Literal["read", "read-write", "off"] = Field("read", description="Whether it is written too, or unused.")
    namespace: Annotated[str, AfterValidator(_check_namespace)] = Field(
        "", description="The level of trust, such as `main`: a folder of the remote, and part of every signature."
    )
    trusted: ListOf[Text] | None = Field(
        None, description="Names of the keys that its records may be signed with; null: any that you have."
    )


class Signing(Section):
    """The table ``[signing]`` of the user's file."""

    keys_file: Text | None = Field(None, description="The file with your keys, one a line; the first signs.")
    accept_unsigned: bool = Field(False, description="Accept unsigned records.")


class ProjectFile(Section):
    """``winml_dag.toml``."""

    remote: ListOf[RemoteTable] = ()


class UserFile(ProjectFile):
    """``config.toml``, without the section on execution providers."""

    signing: Signing = Field(default_factory=Signing.model_construct)


def remote_settings(options: RemoteOptions) -> RemoteSettings | None:
    """The settings that result from *options*, the environment and the files; None without a remote.

    Raises:
        UsageError: for unreadable or invalid settings, with the file and line, or the variable.
    """
    if not options.is_configured:
        if options.mode not in (None, Mode.OFF):
            raise UsageError(
                f"--remote-mode {options.mode} was given, and there is no remote.",
                advice=f"Name one with --remote, {REMOTE_VARIABLE} or in a winml_dag.toml.",
            )
        return None
    user = _user_file()
    named = _named(options)
    mode, namespace = _mode(options), _namespace_of_environment()
    tiers = [
        replace(tier, mode=mode or tier.mode, namespace=namespace or tier.namespace)
        for tier in _tiers(named, user, options.project_file)
    ]
    if options.project_file is not None and named == options.project_file:
        _refuse_writing_outside(tiers, user, options.project_file)
    return _signed(tiers, user)


def with_secrets_of_this_machine(tiers: Sequence[TierSettings]) -> RemoteSettings:
    """*tiers* of another machine with the secrets of this one: its keys, its passwords for the same addresses, and its
    rules for unsigned records and tokens. Raises UsageError as :func:`remote_settings` does.
    """
    user = _user_file()
    known = {_alike(url): url for url in (*_urls_of_environment(), *(tier.url for tier in user.remote))}
    ours = [
        replace(
            tier,
            url=known.get(_alike(tier.url), tier.url),
            gets_token=tier.gets_token and _gets_token(tier.url, named_by_user=True),
        )
        for tier in tiers
    ]
    return _signed(ours, user)


def _signed(tiers: Sequence[TierSettings], user: UserFile) -> RemoteSettings:
    keys_file = user.signing.keys_file
    keys = signing_keys(os.environ, None if keys_file is None else config_file().parent / expanded(keys_file))
    in_use = [tier for tier in tiers if tier.mode is not Mode.OFF]
    if not keys and in_use and all(_is_own_folder(tier.url) for tier in in_use):
        keys = _own_key()
    return RemoteSettings(tuple(tiers), keys, _accepts_unsigned(user))


def _is_own_folder(url: str) -> bool:
    """Whether *url* is a folder that only this user can write: nobody else needs the key. Unknown on Windows."""
    folder = _folder_of(url)
    if folder is None or sys.platform == "win32":
        return False
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    status = nearest.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _own_key() -> tuple[SigningKey, ...]:
    """The user's key for folders that only they can write, made on first use; none if it cannot be written."""
    path = config_file().parent / _OWN_KEY
    with suppress(OSError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            opened, partial = tempfile.mkstemp(dir=path.parent)  # only the user can read it
            with open(opened, "w", encoding="utf-8", newline="\n") as file:
                file.write(f"{new_key('own')}\n")
            try:
                # Unlike renaming, a link keeps the key of another process that was faster.
                with suppress(FileExistsError):
                    os.link(partial, path)
            finally:
                Path(partial).unlink()
        return keys_in_file(path)
    return ()


def named_by(options: RemoteOptions) -> str:
    """The first source that names remotes: the option, the variable, or a file."""
    named = _named(options)
    return str(named) if isinstance(named, Path) else "--remote" if options.urls else REMOTE_VARIABLE


def _named(options: RemoteOptions) -> tuple[str, ...] | Path:
    """The URLs in the option or the variable, else the file that names remotes."""
    if urls := options.urls or _urls_of_environment():
        return urls
    project_file = options.project_file
    return config_file() if project_file is None or not names_remotes(project_file) else project_file


def _tiers(named: tuple[str, ...] | Path, user: UserFile, project_file: Path | None) -> list[TierSettings]:
    if not isinstance(named, Path):
        return [TierSettings(url, gets_token=_gets_token(url, named_by_user=True)) for url in named]
    if named != project_file:
        return [_settled(tier) for tier in user.remote]
    by_url = {_alike(tier.url): _settled(tier) for tier in user.remote}
    return [
        _stricter(_settled(tier, named_by_user=_alike(tier.url) in by_url), by_url.get(_alike(tier.url)))
        for tier in _read(named, ProjectFile).remote
    ]


def _refuse_writing_outside(tiers: Sequence[TierSettings], user: UserFile, project_file: Path) -> None:
    """Raise UsageError for a writable remote that is a folder outside of the project, links followed, and that no file
    of the user names: otherwise the project's author could choose where its users write files.
    """
    by_user = {folder.resolve() for tier in user.remote if (folder := _folder_of(tier.url)) is not None}
    project = project_file.parent.resolve()
    for tier in tiers:
        folder = _folder_of(tier.url)
        if tier.mode is not Mode.READ_WRITE or folder is None or folder.resolve() in by_user:
            continue
        inside = folder / tier.namespace
        if not all(path.resolve().is_relative_to(project) for path in (inside, *(inside / name for name in FOLDERS))):
            raise UsageError(
                f"{project_file} names {shown(tier.url)} as a remote to write to, which lies outside of the project.",
                advice=f"If you want that, name it in {config_file()} too, or with --remote; else --remote-mode read.",
            )


def _folder_of(url: str) -> Path | None:
    """The folder of *url*; None for other kinds of remotes and invalid URLs."""
    try:
        parts = urlsplit(url)
    except ValueError:  # reported when it is opened
        return None
    return folder_of(parts) if parts.scheme == "file" else None


def _urls_of_environment() -> tuple[str, ...]:
    return tuple(os.environ.get(REMOTE_VARIABLE, "").split())


def _alike(url: str) -> str:
    """A normal form in which different spellings of one remote, with any credentials, are equal."""
    return shown(url).rstrip("/").lower()


def _gets_token(url: str, *, named_by_user: bool) -> bool:
    """The token goes to the host that the environment names; without one, to remotes that this user has named."""
    if not (host := os.environ.get(TOKEN_HOST_VARIABLE, "").strip().lower()):
        return named_by_user
    try:
        parts = urlsplit(url)
    except ValueError:  # reported when it is opened
        return False
    return host in (parts.hostname, parts.netloc.rpartition("@")[2].lower())


def _settled(tier: RemoteTable, *, named_by_user: bool = True) -> TierSettings:
    trusted = None if tier.trusted is None else frozenset(tier.trusted)
    gets_token = _gets_token(tier.url, named_by_user=named_by_user)
    return TierSettings(tier.url, Mode(tier.mode), tier.namespace, trusted, gets_token=gets_token)


def _stricter(of_project: TierSettings, of_user: TierSettings | None) -> TierSettings:
    """What both allow: a project cannot loosen its user's settings of the same remote."""
    if of_user is None:
        return of_project
    stated = [trusted for trusted in (of_project.trusted, of_user.trusted) if trusted is not None]
    return replace(
        of_project,
        mode=min(of_project.mode, of_user.mode, key=_STRICTEST_FIRST.index),
        trusted=frozenset.intersection(*stated) if stated else None,
    )


def _mode(options: RemoteOptions) -> Mode | None:
    """The mode of all remotes, if an option or the environment sets it."""
    if options.mode is not None:
        return Mode(options.mode)
    given = os.environ.get(MODE_VARIABLE, "").strip()
    if given and given not in set(Mode):
        raise UsageError(
            f"{MODE_VARIABLE} is {given!r}{known_instead(given, map(str, Mode))}.",
            advice="Set it to read, read-write or off, or unset it.",
        )
    return Mode(given) if given else None


def _namespace_of_environment() -> str | None:
    given = os.environ.get(NAMESPACE_VARIABLE, "").strip()
    if not is_path(given):
        advice = f"{PATH_ADVICE}: main, pull/12."
        raise UsageError(f"{NAMESPACE_VARIABLE} is {given!r}, which is not a namespace.", advice=advice)
    return given or None


def _accepts_unsigned(user: UserFile) -> bool:
    given = os.environ.get(ACCEPT_UNSIGNED_VARIABLE, "").strip().lower()
    if given not in _WORDS:
        raise UsageError(f"{ACCEPT_UNSIGNED_VARIABLE} is {given!r}.", advice="Set it to 1 or 0.")
    return _WORDS[given] if given else user.signing.accept_unsigned


def _user_file() -> UserFile:
    path = config_file()
    if not path.exists():
        return UserFile()
    return _read(path, UserFile, elsewhere=("ep",))


def _read(path: Path, kind: type[F], *, elsewhere: Sequence[str] = ()) -> F:
    """The file at *path* as a *kind*, without the keys that are read *elsewhere*."""
    import tomllib

    try:
        text = read_text(path)
        content: dict[str, Any] = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    stated = {key: value for key, value in content.items() if key not in elsewhere}
    if kind is ProjectFile and "signing" in stated:
        raise UsageError(
            f"{path} has [signing], which is for the user's own file: otherwise the authors of a project "
            "would decide whom its users trust.",
            advice=f"Put it into {config_file()}, or use {ACCEPT_UNSIGNED_VARIABLE} and WINML_DAG_REMOTE_KEYS_FILE.",
        )
    try:
        return kind.model_validate(stated)
    except ValidationError as error:
        found = problems(error, kind, positions_in(text), str(path))
        raise UsageError("\n".join([f"{path} has invalid entries:", *(f"  {line}" for line in found)])) from None


def positions_in(text: str) -> Positions:
    """The positions of keys in TOML with one key per line, for error messages."""
    found = Positions()
    table: Location = ()
    location: Location
    arrays: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            name = header[2].strip()
            arrays[name] = arrays.get(name, -1) + 1
            location = table = (name, arrays[name]) if header[1] == "[[" else (name,)
        elif key := _ASSIGNED.match(line):
            location = (*table, key[1].strip("\"'"))
        else:
            continue
        found.keys.setdefault(location, Position(number, 1))
        found.values.setdefault(location, Position(number, 1))
    return found
