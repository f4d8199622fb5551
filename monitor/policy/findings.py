"""What a rule finds, and the scene that all rules look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monitor.demand import Demand
from monitor.policy.use_series import Series
from monitor.policy.use_windows import Key
from monitor.readings import ClaimFact, GpuReading, ProcessReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What a person has on one GPU outside of jobs (`claim` None), or a job on one of its GPUs."""

    key: str
    gpu: GpuReading
    series: Series
    user: str | None = None
    container: str | None = None
    claim: ClaimFact | None = None
    processes: tuple[ProcessReading, ...] = ()

    @property
    def who(self) -> str | None:
        """Whom all their groups are added up for."""
        return self.claim.owner if self.claim else self.user

    @property
    def memory_bytes(self) -> int | None:
        """What they hold now; unknown when it is of one."""
        sizes = [p.memory_bytes for p in self.processes]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class Empty:
    """Since when a booked GPU has had no process of its job; of which part (0..1) that is known."""

    since_t: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that is judged at an instant. `t`: epoch seconds of the readings.

    groups: outside of jobs. jobs: by job, one for each GPU that it has booked. strays: of jobs, on
    GPUs that these have not booked. empty: booked GPUs without a process of their job, None =
    somebody there can't be told. demand: who waits.
    """

    t: float
    gpus: tuple[GpuReading, ...]
    groups: tuple[Group, ...] = ()
    jobs: Mapping[str, tuple[Group, ...]]
    strays: tuple[Group, ...] = ()
    empty: Mapping[tuple[str, str], Empty | None]
    series: Mapping[Key, Series]
    demand: Sequence[Demand] = ()

    def waiting_for(self, gpu_uuid: str | None, but: str | None) -> list[Demand]:
        """Whom freeing this GPU would help, besides `but`; None = any GPU of the host."""
        return [
            d
            for d in self.demand
            if d.owner != but and (gpu_uuid is None or not d.gpu_uuids or gpu_uuid in d.gpu_uuids)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule holds of somebody. `opens` false: it only keeps open what is open (hysteresis).

    since_t: since when. pct: what the rule measures now, mean_pct since then, peak_pct its
    highest. expected_pct, measured_pct: shares of the machine. coverage: 0..1. gpus: of several.
    """

    rule: str
    key: str
    since_t: float
    opens: bool = True
    gpu: GpuReading | None = None
    process: ProcessReading | None = None
    user: str | None = None
    container: str | None = None
    job_ref: str | None = None
    job_owner: str | None = None
    pct: float | None = None
    peak_pct: float | None = None
    expected_pct: float | None = None
    measured_pct: float | None = None
    coverage: float | None = None
    memory_bytes: int | None = None
    booked_bytes: int | None = None
    growth_per_h: float | None = None
    gpu_minutes: float | None = None
    processes: int = 1
    gpus: tuple[int, ...] = ()

    @property
    def who(self) -> str | None:
        """Whose it is to change."""
        return self.job_owner or self.user


def key_of(process: ProcessReading) -> Key:
    return (process.gpu_uuid, process.pid, process.start_ticks)


def main_process(group: Group, scene: Scene, seconds: float) -> ProcessReading | None:
    """The one that used most of late; of equal ones that with most memory."""

    def used(process: ProcessReading) -> tuple[float, int, int]:
        series = scene.series.get(key_of(process))
        sm_s = series.last(seconds).sm_s if series else 0.0
        return (round(sm_s, 1), process.memory_bytes or 0, -process.pid)

    return max(group.processes, key=used, default=None)
