"""What must change no key: where, when, by whom and how verbosely a build is planned, and the spelling of a recipe.

The environments are real: the command runs in them, with a cache that has a result for every key. A key that differed
would be a cache miss, and so be noticed. What differs in its arguments only runs in one process, one after the other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from model_files import RECIPES, make_files
from planned_keys import NO_OPTIONS, Stages, keys, make_project, pretend_built, stages_of
from reach import BASES, edited

from winml_dag.cli.build import command as build_command
from winml_dag.cli.settings import COMPILE, VALIDATION
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.store.store import Store

RECIPE: Mapping[str, Any] = {
    **RECIPES["safetensors"],
    "loader": {"task": "text-classification"},
    "quant": {"calibration_data": "data.txt", "samples": 20, "nodes_to_exclude": ["/a", "/b"]},
    "compile": {"provider_options": {"op_affinity": "affinity.json", "soc_model": "57"}},
    "validate": {"min_cosine": 0.5},
}

# The same recipe: other order, other format, comments, an anchor, other spellings.
AS_YAML = """
# A comment
validate: {min_cosine: 5.0e-1}   # another
compile:
  provider_options: {soc_model: '57', op_affinity: affinity.json}
quant:
  nodes_to_exclude: &nodes
    - "/b"
    - "/a"
  calibration_samples: 20
  calibration_data: ./data.txt
ep: QNN
loader:
  task: >-
    text-classification
model: safetensors/../safetensors
"""

ELSEWHERE = "somebody else's Prüfstand 模型/a/b c"

# No build stage differs between the cells of this sweep.
AS_SWEEP = "{base: recipe.json, matrix: {perf.iterations: [5, 7]}}"


@dataclass(frozen=True)
class Surroundings:
    """How to call the command: with *arguments* instead of the usual ones, in *folder*, for the project *at*.

    ``options``: the command's options that this covers.
    """

    arguments: tuple[str, ...] = ("plan", "-c", "recipe.json", "-o", "out")
    at: str = "project"
    folder: str = ""
    cache: str = "cache"
    environment: Mapping[str, str] | None = None
    umask: int = -1
    options: tuple[str, ...] = ()

    @property
    def process(self) -> tuple[object, ...]:
        """Return what one process has in common."""
        return self.at, self.umask, tuple((self.environment or {}).items()), "--executor" in self.arguments


_PLAN = ("plan", "-c", "recipe.json")
SURROUNDINGS: Mapping[str, Surroundings] = {
    "first": Surroundings(),
    "another user, home, locale, time zone, hash order, terminal, strict permissions, threads of others": Surroundings(
        (*_PLAN, "-o", "strict"),
        umask=0o077,
        environment={
            **dict.fromkeys(("USER", "LOGNAME", "USERNAME"), "somebody"),
            **dict.fromkeys(("HOME", "USERPROFILE"), "home"),
            "PYTHONHASHSEED": "7",
            "TZ": "Asia/Tokyo",
            "LC_ALL": "C",
            "LANG": "tr_TR.UTF-8",
            "LC_NUMERIC": "de_DE",
            "HOSTNAME": "elsewhere",
            "COMPUTERNAME": "elsewhere",
            "COLUMNS": "20",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
    ),
    "YAML, other order, comments": Surroundings(("plan", "-c", "recipe.yaml", "-o", "out"), options=("recipes",)),
    "a cell of a sweep": Surroundings(
        ("plan", "-c", "sweep.yaml", "-o", "out", "--filter", "perf.iterations=7", "--shard", "1/1"),
        options=("filters", "shard"),
    ),
    "another current folder": Surroundings(("plan", "-c", "../recipe.json", "-o", "out"), folder="org"),
    "the recipe by its whole path": Surroundings(("plan", "-c", "{project}/recipe.json", "-o", "{project}/out")),
    "the project elsewhere": Surroundings(at=ELSEWHERE),
    "the cache elsewhere": Surroundings(cache=f"{ELSEWHERE} cache"),
    "the cache named": Surroundings(
        (*_PLAN, "-o", "out", "--cache-dir", "{cache}"), cache="other cache", options=("cache_dir",)
    ),
    "another output folder": Surroundings((*_PLAN, "-o", "{project}/out/of/the way"), options=("output_dir",)),
    "output in the cache": Surroundings((*_PLAN, "--use-cache"), options=("use_cache",)),
    "the finished model alone": Surroundings((*_PLAN, "-o", "out", "--final-only"), options=("final_only",)),
    "no remote, switched off": Surroundings((*_PLAN, "-o", "out", "--remote-mode", "off"), options=("remote_mode",)),
    "an option that says what the recipe says": Surroundings((*_PLAN, "-o", "out", "--ep", "Qnn", "-d", "NPU")),
    "a quiet build": Surroundings(
        ("build", "-c", "recipe.json", "-o", "quiet", "-q", "-j", "1", "--stage-timeout", "7.5", "--memory", "8GB"),
        options=("quiet", "jobs", "stage_timeout", "memory", "format_"),
    ),
    "a loud build": Surroundings(
        ("build", "-c", "recipe.json", "-o", "loud", "-v", "-j", "7", "-k", "--link", "--sandbox", "--memory", "none"),
        options=("verbose", "jobs", "keep_going", "link", "sandbox"),
    ),
    "a build on a cluster": Surroundings(
        ("build", "-c", "recipe.json", "-o", "far", "--executor", "dask", "--workers", "1", "--worker-tag", "ep:cpu"),
        options=("executor", "workers", "worker_tags"),
    ),
}

# With a remote all keys differ, since all digests do. Which remote it is reaches nothing.
_SIGNED = {"WINML_DAG_REMOTE_ACCEPT_UNSIGNED": "1"}
REMOTES: Mapping[str, Surroundings] = {
    "off": Surroundings(
        (*_PLAN, "-o", "out", "--remote", "https://nowhere", "--remote-mode", "off"),
        cache="one cache",
        environment=_SIGNED,
        options=("remote", "remote_mode"),
    ),
    "a folder": Surroundings(
        (*_PLAN, "-o", "out", "--remote", "file:///nowhere"), cache="two cache", environment=_SIGNED
    ),
    "named elsewhere": Surroundings(
        (*_PLAN, "-o", "out"),
        cache="three cache",
        environment={**_SIGNED, "WINML_DAG_REMOTE": "file:///nowhere", "WINML_DAG_REMOTE_NAMESPACE": "main"},
    ),
}


@pytest.mark.slow
def test_surroundings_do_not_reach_keys(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_project(project)
    make_files(project)
    (project / "org").mkdir()
    (project / "recipe.json").write_text(json.dumps(RECIPE), encoding="utf-8")
    (project / "recipe.yaml").write_text(AS_YAML, encoding="utf-8")
    (project / "sweep.yaml").write_text(AS_SWEEP, encoding="utf-8")
    for at in {each.at for each in SURROUNDINGS.values()} - {"project"}:
        shutil.copytree(project, tmp_path / at)
    keys_of_nodes = fill_cache(project, tmp_path / "cache", tmp_path / "scratch")
    for cache in {each.cache for each in (*SURROUNDINGS.values(), *REMOTES.values())} - {"cache"}:
        shutil.copytree(tmp_path / "cache", tmp_path / cache)

    expected = {node: ("reused", key) for node, key in keys_of_nodes.items()}
    assert len(expected) == 8
    assert run_in_all(tmp_path, SURROUNDINGS) == dict.fromkeys(SURROUNDINGS, expected)

    shared = run_in_all(tmp_path, REMOTES)
    assert shared == dict.fromkeys(REMOTES, shared["off"])
    assert not isinstance(shared["off"], str)
    # Nothing was really built, so only the key of the first stage is available.
    assert {key for _, key in shared["off"].values()}.isdisjoint(key for _, key in expected.values())
    assert shared["off"].keys() == {"export"}


def fill_cache(project: Path, cache: Path, scratch: Path) -> dict[str, str]:
    store = Store(cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project / "packages")
        planned = plan_request(Request(project / "recipe.json", NO_OPTIONS, project / "out"), store, download=False)
    filled = pretend_built(planned, store, scratch)
    store.close()
    return filled


# Runs commands with the current folder and the cache of each, and prints their exit codes, stdout and stderr.
_COMMANDS = """
import contextlib, io, json, os, sys
from winml_dag.cli import run
told = []
for folder, cache, arguments in json.load(sys.stdin):
    os.chdir(folder)
    os.environ["WINML_DAG_CACHE_DIR"] = cache
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as messages:
        code = run(arguments)
    told.append([code, out.getvalue(), messages.getvalue()])
print(json.dumps(told))
"""

Outcome = dict[str, tuple[str, str]] | str


def run_in_all(folder: Path, wanted: Mapping[str, Surroundings]) -> dict[str, Outcome]:
    """Return the status and key of every stage, or the output of a command that failed, by the name of surroundings."""
    by_process: dict[tuple[object, ...], list[str]] = {}
    for name, each in wanted.items():
        by_process.setdefault(each.process, []).append(name)
    groups = by_process.values()
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda names: run_in(folder, [wanted[name] for name in names]), groups)
        return {
            name: told
            for names, those in zip(groups, found, strict=True)
            for name, told in zip(names, those, strict=True)
        }


def run_in(folder: Path, those: Sequence[Surroundings]) -> list[Outcome]:
    first = those[0]
    commands = []
    for each in those:
        project, cache = folder / each.at, folder / each.cache
        arguments = [argument.format(project=project, cache=cache) for argument in each.arguments]
        used = folder / "never" if "--cache-dir" in arguments else cache
        commands.append((str(project / each.folder), str(used), [*arguments, "--format", "json"]))
    packages = str(folder / first.at / "packages")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([packages, *filter(None, sys.path)]),
        **(first.environment or {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        input=json.dumps(commands),
        env=environment,
        umask=first.umask if os.name == "posix" else -1,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [messages if code else _keys_in(out) for code, out, messages in json.loads(done.stdout)]


def _keys_in(out: str) -> Outcome:
    stages = json.loads(out)["builds"][0]["stages"]
    return {stage["id"]: (stage["status"], stage["cache_key"]) for stage in stages if stage["cache_key"]}


def test_every_build_option_is_classified() -> None:
    """Options that are tested elsewhere are excluded.

    ``--rebuild`` runs every stage under its key (tests of the engine); ``--retry-failed`` chooses cells by their
    results (tests of sweeps); ``--scheduler`` names one (tests of clusters); ``--check-inputs`` needs strace (tests of
    the engine); ``--overwrite`` is about files in the way.
    """
    tried = {name for each in (*SURROUNDINGS.values(), *REMOTES.values()) for name in each.options}
    about_keys = {field.name for field in fields(Overrides)}
    about_keys |= {name for group in (COMPILE, VALIDATION) for name in group.fields.values()}
    about_keys |= {"batch_size", "dynamic_axes", "export_config", "input_specs", "shape_config"}  # all of `export`
    about_keys |= {"set_"}
    elsewhere = {"rebuild", "retry_failed", "scheduler", "check_inputs", "overwrite"}
    assert {option.name for option in build_command.params} - about_keys - elsewhere == tried


# Base, and two spellings of the same.
SPELLINGS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "case of a provider": ("static", {"ep": "QNN"}, {"ep": "qnn"}),
    "a provider's whole name": ("static", {"ep": "QNNExecutionProvider"}, {"ep": "qnn"}),
    "another alias": ("static", {"ep": "ov"}, {"ep": "OpenVINO"}),
    "a precision and its sections": ("static", {"precision": "w8a16"}, {"quant.activation_type": "uint16"}),
    "an old name of a mode": ("static", {"quant.mode": "qdq"}, {"quant.mode": "static"}),
    "an old name of a field": ("static", {"quant.calibration_samples": 7}, {"quant.samples": 7}),
    "null for a list": ("static", {"quant.nodes_to_exclude": None}, {"quant.nodes_to_exclude": []}),
    "a name twice": ("static", {"quant.nodes_to_exclude": ["b", "a", "b"]}, {"quant.nodes_to_exclude": ["a", "b"]}),
    "order of operators": (
        "static",
        {"quant.op_types_to_quantize": ["b", "a"]},
        {"quant.op_types_to_quantize": ["a", "b"]},
    ),
    "order of blocked operators": (
        "fp16",
        {"quant.fp16_op_block_list": ["b", "a"]},
        {"quant.fp16_op_block_list": ["a", "b"]},
    ),
    "order of flags": (
        "static",
        {"optim": {"gelu_fusion": True, "layer_norm_fusion": True}},
        {"optim": {"layer_norm_fusion": True, "gelu_fusion": True}},
    ),
    "order of options": (
        "static",
        {"compile.provider_options": {"vtcm_mb": "4", "soc_model": "57"}},
        {"compile.provider_options": {"soc_model": "57", "vtcm_mb": "4"}},
    ),
    "options that go together": (
        "static",
        {"compile.provider_options": {"htp_arch": "75"}},
        {"compile.provider_options": {"soc_model": "57"}},
    ),
    "the device as an option": ("static", {"compile.provider_options": {"device_type": "NPU"}}, {}),
    "a nested section": (
        "static",
        {"compile": {"ep_config": {"embed_context": True}}},
        {"compile": {"embed_context": True}},
    ),
    "a section in another place": ("float", {"quant": {"samples": 7}}, {"compile.quant_config": {"samples": 7}}),
    "a whole number for another": ("static", {"validate.min_cosine": 1}, {"validate.min_cosine": 1.0}),
    "random weights in short": ("static", {"loader.random_weights": True}, {"loader.random_weights": {"seed": 0}}),
    "an order of architecture settings": (
        "static",
        {"loader.random_weights.config": {"a": 1, "b": 2}},
        {"loader.random_weights.config": {"b": 2, "a": 1}},
    ),
    "a path with detours": ("folder", {"model": "./other/../other"}, {"model": "other"}),
    "a default that is written": ("static", {"quant.samples": 10}, {}),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_equivalent_spellings_have_one_key(project: Path, name: str) -> None:
    base, one, other = SPELLINGS[name]
    found: list[Stages] = []
    for changes in (one, other):
        recipe: Mapping[str, Any] = BASES[base]
        for field, value in changes.items():
            recipe = edited(recipe, field, value)
        found.append(stages_of(recipe, project))
    assert keys(found[0]) == keys(found[1])
