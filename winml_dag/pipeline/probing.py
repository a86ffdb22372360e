"""Trying cases on a target through the engine: each is a stage, so what is known already is reused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from winml_dag.canonical import canonical_json
from winml_dag.engine.config import config_json
from winml_dag.engine.events import Observer, Status
from winml_dag.ep.availability import require_installed
from winml_dag.ep.options import complete_options
from winml_dag.ep.registry import Target
from winml_dag.ep.support.case import Case, Level, Verdict, case_json
from winml_dag.pipeline.finished.measurement import carry_out, measuring_node, plan_measurement
from winml_dag.stages.probe import PROBE, ProbeConfig, ProbeFields
from winml_dag.stages.target import RunTarget
from winml_dag.store.local import LocalStore


@dataclass(frozen=True)
class Probed:
    """What came of trying cases. ``ran``: how many were tried now; the others were known."""

    verdicts: Mapping[Case, Verdict]
    ran: int


def probe(
    cases: Iterable[Case],
    target: Target,
    store: LocalStore,
    *,
    options: Mapping[str, str] | None = None,
    observer: Observer | None = None,
) -> Probed:
    """Try *cases* on *target*, one after the other, with the provider *options* given besides the target's own.

    A case that ends the process of its provider, or that no model can be made of, is unknown with the reason, and the
    others are tried all the same.

    Raises:
        UsageError: when *target* is not installed.
        StoreError: when the cache cannot be used.
        KeyboardInterrupt: after children have been ended.
    """
    require_installed(target)
    wanted = list(dict.fromkeys(cases))
    run_target = RunTarget(target.ep.name, target.device, complete_options(target, options or {}))
    verdicts: dict[Case, Verdict] = {}
    ran = 0
    for case in wanted:
        text = canonical_json(case_json(case))
        config = config_json(ProbeConfig(ProbeFields(text), run_target))
        node = measuring_node(PROBE, config, {}, target, store.fingerprints)
        scope = f"probe {target.ep.alias} {target.device}\n{text}"
        planned = plan_measurement([replace(node, id=PROBE.name)], [], store.fingerprints, scope)
        (result,) = carry_out(planned, store, observer=observer).results
        if result.record is None:
            verdicts[case] = Verdict(Level.UNKNOWN, f"{case} was tried: {result.error}")
        else:
            metrics = result.record.metrics
            verdicts[case] = Verdict(
                Level(str(metrics["verdict"])), str(metrics["reason"]), bool(metrics["compiled"]), bool(metrics["ran"])
            )
        ran += result.status is Status.RAN
    return Probed(verdicts, ran)
