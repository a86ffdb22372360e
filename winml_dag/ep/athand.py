"""Whether work for an execution provider can be done, and what to say where it cannot."""

from __future__ import annotations

from winml_dag.ep.configuration import ENVIRONMENTS_VARIABLE
from winml_dag.ep.elsewhere import is_elsewhere
from winml_dag.ep.registry import ExecutionProvider, environment_of, installed
from winml_dag.errors import UsageError


def is_at_hand(ep: ExecutionProvider) -> bool:
    """Whether work for *ep* can be done: it is installed here, or on a machine that works for us. Raises as
    :func:`installed` does.
    """
    return installed(ep) or is_elsewhere(ep.alias)


def require_at_hand(ep: ExecutionProvider, *, otherwise: str = "") -> None:
    """As :func:`require_installed`, for work that another machine may do. Raises as that does."""
    if not is_elsewhere(ep.alias):
        require_installed(ep, otherwise=otherwise)


def require_installed(ep: ExecutionProvider, *, otherwise: str = "") -> None:
    """Refuse a target that can be served neither here nor in the environment that is named for it.

    Raises:
        UsageError: with one sentence on how to get *ep*, or where else to run, and with what to do *otherwise*; and as
            :func:`environment_of` does.
    """
    if installed(ep):
        return
    environment = environment_of(ep)
    if environment is not None:
        wanted = " or ".join(package.distribution for package in ep.packages)
        raise UsageError(
            f"{environment.where} names {environment.folder} for {ep.name}, and no package in it brings that provider.",
            advice=f"Install {wanted} there. {otherwise}".rstrip(),
        )
    elsewhere = f"An environment that has it is named with {ENVIRONMENTS_VARIABLE}={ep.alias}=FOLDER."
    raise UsageError(f"{ep.name} is not installed here.", advice=f"{ep.how_to_get} {elsewhere} {otherwise}".rstrip())
