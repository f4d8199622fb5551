"""The GPU probe protocol, and the choice of the probe for this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from monitor.facts.claims import ClaimFact
from monitor.facts.readings import GpuSweep
from monitor.facts.usage import CallCost, GpuMark
from monitor.gpus.sampling.probes.nvml import calls as nvml_faults

# Interval of process lists; GPUs are read at each sweep. On a desktop jobs yield to the owner,
# whose processes must be detected quickly.
PROCESSES_S, DESKTOP_PROCESSES_S = 2.0, 1.0


class GpuProbe(Protocol):
    """Reads all GPUs at an instant. Opened in the process that reads, after the fork."""

    @property
    def name(self) -> str: ...

    def open(self) -> None: ...

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep: ...

    def close(self) -> None: ...


@runtime_checkable
class PacedProbe(Protocol):
    """A probe that lists processes less often than it reads GPUs."""

    def list_processes(self) -> None:
        """The next sweep lists them, whether or not it is time."""


@runtime_checkable
class ResumableProbe(Protocol):
    """A probe that goes on counting where another process stopped at `swept_at`."""

    def resume(
        self, marks: Mapping[str, GpuMark], swept_at: datetime, costs: Sequence[CallCost]
    ) -> None: ...


class Trial(Protocol):
    """A look at one GPU in a thread of its own, which may never end."""

    def start(self) -> None: ...

    def is_alive(self) -> bool: ...

    @property
    def asking(self) -> tuple[str, float] | None:
        """The call in progress and its start (monotonic clock)."""


@runtime_checkable
class SelectiveProbe(Protocol):
    """A probe that can leave out GPUs whose calls did not come back, {GPU: the call}, and try one
    of them."""

    def leave_out(self, hung: Mapping[str, str]) -> None: ...

    def trial(self, gpu: str, now: datetime) -> Trial: ...


@runtime_checkable
class VersionedProbe(Protocol):
    """A probe that can name the versions of its driver, for people."""

    def versions(self) -> list[str]: ...


class ProbeSettings(Protocol):
    """The settings that choose a probe."""

    @property
    def probe(self) -> str | None: ...
    @property
    def profile(self) -> str: ...
    @property
    def simulated_gpus(self) -> int: ...
    @property
    def simulated_processes(self) -> int: ...
    @property
    def simulated_seed(self) -> int: ...


class NoProbe:
    """For a machine whose GPUs cannot or must not be read. The sweep says why."""

    name = "none"

    def __init__(self, problem: str, remedy: str) -> None:
        self._sweep = GpuSweep(problem=problem, remedy=remedy)

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close."""

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        return self._sweep


def probe_from(config: ProbeSettings) -> GpuProbe:
    """The probe that the settings ask for; by default NVML, or none where there is no driver."""
    # Imported where it is used: NVML's binding is large, and a simulated server needs none.
    if config.probe == "simulated":
        from monitor.gpus.sampling.probes.simulated.probe import SimulatedProbe

        return SimulatedProbe(
            config.simulated_gpus, config.simulated_seed, config.simulated_processes
        )
    if config.probe == "none":
        return NoProbe(
            "GPUs are not read: the probe is set to “none”.",
            "Set GPUCOORD_PROBE=nvml (or leave it out) to read them.",
        )
    from monitor.gpus.sampling.probes.nvml import probe as nvml

    if config.probe is None and not nvml.is_installed():
        missing = nvml_faults.FAULTS[nvml_faults.LIBRARY_NOT_FOUND]
        return NoProbe(missing.problem, missing.remedy)
    at_once = config.profile == "desktop"
    return nvml.NvmlProbe(DESKTOP_PROCESSES_S if at_once else PROCESSES_S)
