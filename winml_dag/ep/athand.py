"""Whether work for an execution provider can be done, and what to say where it cannot."""

from __future__ import annotations

from winml_dag.ep.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.ep.elsewhere import is_elsewhere
from winml_dag.ep.registry import ExecutionProvider, Target, drivers_of, environment_of, installed
from winml_dag.errors import UsageError


def is_at_hand(ep: ExecutionProvider) -> bool:
    """Whether work for *ep* can be done: it is installed here, or on a machine that works for us. Raises as
    :func:`installed` does.
    """
    return installed(ep) or is_elsewhere(ep.alias)


def require_at_hand(target: Target, *, otherwise: str = "") -> None:
    """As :func:`require_installed`, for work that another machine may do. Raises as that does."""
    if not is_elsewhere(target.ep.alias):
        require_installed(target, otherwise=otherwise)


def require_installed(target: Target, *, otherwise: str = "") -> None:
    """Refuse a target that can be served neither here nor in the environment that is named for its provider.

    Raises:
        UsageError: with one sentence on how to get the provider, or all that drive the device where that alone was
            named, and with what to do *otherwise*; and as :func:`environment_of` does.
    """
    ep = target.ep
    if installed(ep):
        return
    environment = environment_of(ep)
    if environment is not None:
        wanted = " or ".join(package.distribution for package in ep.packages)
        raise UsageError(
            f"{environment.where} names {environment.folder} for {ep.name}, and no package in it brings that provider.",
            advice=f"Install {wanted} there. {otherwise}".rstrip(),
        )
    if target.is_open:
        raise UsageError(what_is_missing(target), advice=f"{_ways(target.device)} {otherwise}".rstrip())
    elsewhere = f"An environment that has it is named with {ENVIRONMENTS_VARIABLE}={ep.alias}=FOLDER."
    raise UsageError(f"{ep.name} is not installed here.", advice=f"{ep.how_to_get} {elsewhere} {otherwise}".rstrip())


def what_is_missing(target: Target) -> str:
    """The sentence for a *target* that nothing here serves."""
    if target.is_open:
        return f"No execution provider that drives the {target.device} is installed here."
    return f"{target.ep.name} is not installed here."


def _ways(device: str) -> str:
    ways = "; ".join(f"{ep.alias}: {ep.how_to_get.rstrip('.')}" for ep in drivers_of(device))
    return f"Install one of these, or name another target with --ep. {ways}."
