"""A worker that a build starts on its own machine: ``python -m winml_dag.pipeline.cluster.ownworker``.

What it has to know comes through its standard input, as one line of JSON. It ends when that closes, so it does not
outlive the build, however that ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class OwnWorker:
    """*tls*: certificates and keys, as dask has them."""

    address: str
    folder: str
    places: int
    memory_bytes: int
    tls: Mapping[str, str]

    def to_text(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def _until_the_build_ends() -> None:
    while sys.stdin.read(1024):
        pass


def main() -> None:
    told = OwnWorker(**json.loads(sys.stdin.readline()))
    # Imported here: a build imports this module for the class alone.
    from winml_dag.pipeline.cluster.report import Offer
    from winml_dag.pipeline.cluster.service import Service

    offer = Offer(told.places, told.memory_bytes)
    Service(told.address, Path(told.folder), offer, tls=told.tls).run(lambda *_: None, _until_the_build_ends)


if __name__ == "__main__":
    main()
