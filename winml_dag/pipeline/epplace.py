"""The environment in which an execution provider works, and what in it influences the output.

Provider packages exclude each other, so a provider may be in another environment that the user configures. What is
installed there, not here, belongs in the keys of its stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.engine.keys import installed_distributions, normalised, versions_in
from winml_dag.ep.availability import environment_of, installed, package_of
from winml_dag.ep.registry import CPU, Target, is_emulated, runtime_builds
from winml_dag.store.digest import Fingerprints


@dataclass(frozen=True)
class EpPlace:
    """The environment for the work of a stage; by default the current one, for work on the CPU.

    Attributes:
        interpreter: its Python; None for the current one.
        site_packages: its package folders; None for the current ones.
        distributions: what is installed there; None if that is to be looked up.
        tools: for keys: versions of the provider's packages, digests of its libraries, and for a provider that compiles
            for the host, the host's hardware.
        libraries: the files of those libraries, by their names in ``tools``.
        looked_at: files and folders that influenced all this, for the plan cache.
        pools: the device, if it is real: one run at a time uses it. Emulators are not limited.
        name: its name on every machine; empty for the current environment.
    """

    interpreter: Path | None = None
    site_packages: tuple[Path, ...] | None = None
    distributions: Mapping[str, str] | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, Path] = field(default_factory=dict)
    looked_at: tuple[Path, ...] = ()
    pools: tuple[str, ...] = ()
    name: str = ""

    def toolchain(self, packages: Iterable[str]) -> dict[str, str]:
        """Return what influences the output of work that uses *packages*: their versions, and the provider's packages.

        For onnxruntime, that includes its builds under other distribution names.
        """
        present = self.present()
        found = versions_in(present, packages)
        if "onnxruntime" in found:
            builds = {build: present[normalised(build)] for build in runtime_builds() if normalised(build) in present}
            if builds and "onnxruntime" not in present:
                del found["onnxruntime"]  # installed under another name
            found |= builds
        return {**found, **self.tools}

    def present(self) -> Mapping[str, str]:
        """Return every installed distribution with its version."""
        return installed_distributions(self.site_packages) if self.distributions is None else self.distributions


HERE = EpPlace()


def ep_place(target: Target, fingerprints: Fingerprints) -> EpPlace:
    """Return the environment for work on *target*; *fingerprints* caches the digests of its libraries.

    Raises:
        UsageError: for a configuration that names an invalid environment.
    """
    if target.ep == CPU:
        return HERE
    # Imported here: the CPU does not need it.
    from winml_dag.ep.availability import environment_elsewhere, environment_name, libraries_of

    name = environment_name(target.ep.alias, target.device)
    elsewhere = None if installed(target.ep) else environment_elsewhere(name)
    if elsewhere is not None:
        return EpPlace(distributions=elsewhere.distributions, tools=elsewhere.tools, pools=elsewhere.pools, name=name)
    environment = environment_of(target.ep)
    path = None if environment is None else environment.site_packages
    present = installed_distributions(path)
    counts = package_of(target.ep, environment)
    # Some distributions have the same module in different builds; only the distribution name distinguishes them.
    packages = {target.ep.plugin} | {  # the plug-in's own code matters, too
        package.distribution
        for package in target.ep.packages
        if counts is not None and (package.plugin, package.catalog) == (counts.plugin, counts.catalog)
    }
    libraries = libraries_of(target.ep, environment)
    names = [f"{target.ep.alias} library {name}" for name in libraries.names()]
    entries = fingerprints.entries(list(zip(libraries.files, names, strict=True)))
    return EpPlace(
        interpreter=None if environment is None else environment.python,
        site_packages=path,
        tools={
            **{name: present[normalised(name)] for name in sorted(packages) if normalised(name) in present},
            **{entry.name: entry.digest for entry in entries},
            **(_machine(target) if target.ep.for_this_machine else {}),
        },
        libraries=dict(zip(names, libraries.files, strict=True)),
        looked_at=(*libraries.files, *libraries.folders, *(() if environment is None else environment.looked_at)),
        pools=() if target.device == "cpu" or is_emulated(target) else (target.device,),
        name=name,
    )


def _machine(target: Target) -> dict[str, str]:
    """Return the hardware that a model is compiled for: the processor, and other devices with their drivers."""
    from winml_dag.pipeline.assess.host import this_host

    host = this_host()
    accelerators = host.accelerators if target.device != "cpu" else ()
    return {
        "system": host.system,
        "processor": host.processor,
        **{f"{target.device} device {number}": name for number, name in enumerate(accelerators)},
    }
