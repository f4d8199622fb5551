"""Findings of rules, and the input that all rules read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from monitor.facts.accounts import is_person
from monitor.facts.claims import ClaimFact, Demand
from monitor.facts.readings import GpuReading, ProcessReading
from monitor.incidents.policy.thresholds import GpuTimePolicy
from monitor.incidents.policy.usage_buffers import Key
from monitor.incidents.policy.usage_series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Processes of a user on one GPU outside jobs (`claim` None), or of a job on one GPU."""

    key: str
    gpu: GpuReading
    series: Series
    user: str | None = None
    container: str | None = None
    claim: ClaimFact | None = None
    processes: tuple[ProcessReading, ...] = ()

    @property
    def owner(self) -> str | None:
        """The key under which all groups of a user or job are summed."""
        return self.claim.owner if self.claim else self.user

    @property
    def memory_bytes(self) -> int | None:
        """Memory held now; None if that of any process is unknown."""
        sizes = [p.memory_bytes for p in self.processes]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class EmptyBooking:
    """Since when a booked GPU has had no process of its job.

    `coverage`: the part (0..1) of that time for which this is known.
    """

    since_t: float
    coverage: float


@dataclass(frozen=True, slots=True)
class MachineShare:
    """A user's part of all GPUs of the machine over a window, in percent."""

    pct: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInput:
    """Everything that the rules evaluate at one instant. `t`: epoch seconds of the readings.

    groups: processes outside jobs. jobs: by job, one group per GPU that it has booked. strays:
    processes of jobs on GPUs that the job has not booked. empty: booked GPUs without a process of
    their job; None: a process there cannot be attributed. demand: the waiting jobs. shares: the
    fair share of the machine (%) of each user on GPUs, while a job waits. series_of: use outside
    jobs by user and GPU, also on GPUs that the user has left. in_turn: of each user, the use of one
    GPU at a time: of the busiest GPU of each step, of the next one, and so on. machine_shares:
    parts of the machine that rules have computed, by user and window.
    """

    t: float
    gpus: tuple[GpuReading, ...]
    groups: tuple[Group, ...] = ()
    jobs: Mapping[str, tuple[Group, ...]]
    strays: tuple[Group, ...] = ()
    empty: Mapping[tuple[str, str], EmptyBooking | None]
    series: Mapping[Key, Series]
    demand: Sequence[Demand] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    series_of: Mapping[str, Mapping[str, Sequence[Series]]] = field(default_factory=dict)
    in_turn: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    machine_shares: dict[tuple[str, float], MachineShare | None] = field(default_factory=dict)

    def waiting_for(self, gpu_uuid: str | None, but: str | None) -> list[Demand]:
        """The waiting jobs that freeing this GPU would help, except those of `but`.

        None = any GPU.
        """
        return [
            d
            for d in self.demand
            if d.owner != but and (gpu_uuid is None or not d.gpu_uuids or gpu_uuid in d.gpu_uuids)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule applies to a subject. `opens` false: the finding only keeps an open incident open.

    since_t: begin. pct: the measure of the rule now, mean_pct since the begin, peak_pct its
    maximum. expected_pct, measured_pct: shares of the machine. coverage: 0..1. gpus: indices if
    there are several. model: the name of the model service that the job serves; "" = none.
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
    model: str = ""

    @property
    def owner(self) -> str | None:
        """The user who can change it."""
        return self.job_owner or self.user


def subject_of(finding: Finding) -> str:
    """Findings of one subject form one incident. A subject is a job, or a user's program."""
    process = finding.process
    job = finding.job_ref or (process.job_ref if process else None)
    if job:
        return f"job {job}"
    if finding.user or finding.container:
        program = (process.program if process else None) or ""
        return f"{finding.user or ''}|{finding.container or ''}|{program[:100]}"
    if process is not None:
        return f"pid {process.pid}-{process.start_ticks or 0}"
    return finding.key


def key_of(process: ProcessReading) -> Key:
    return (process.gpu_uuid, process.pid, process.start_ticks)


def main_process(group: Group, inputs: RuleInput, seconds: float) -> ProcessReading | None:
    """The process with the most recent use; among equal ones the one with the most memory."""

    def used(process: ProcessReading) -> tuple[float, int, int]:
        series = inputs.series.get(key_of(process))
        sm_s = series.last(seconds).sm_s if series else 0.0
        return (round(sm_s, 1), process.memory_bytes or 0, -process.pid)

    return max(group.processes, key=used, default=None)


# Processes exempt from incident rules: system processes and operator exemptions.

USER, PROGRAM, CONTAINER = "user", "program", "container"
# Desktop and driver processes: they belong to no user, or to the interactive user.
SYSTEM_PROGRAMS = (
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "kwin*",
    "plasmashell",
    "mutter*",
    "sddm*",
    "gdm*",
    "lightdm*",
    "nvidia-*",
    "nv-hostengine",
    "dcgm*",
)


@dataclass(frozen=True, slots=True)
class ExemptionRule:
    """One exemption. `rule` "" = all rules; `name` may contain *."""

    scope: str
    name: str
    rule: str = ""

    def fits(self, user: str | None, program: str | None, container: str | None) -> bool:
        value = {USER: user, PROGRAM: program, CONTAINER: container}.get(self.scope)
        return bool(value) and fnmatchcase(value or "", self.name)


def exemptions_of_policy(policy: GpuTimePolicy) -> tuple[ExemptionRule, ...]:
    """The exemptions in the thresholds."""
    named = (
        (USER, policy.exempt_users),
        (PROGRAM, policy.exempt_programs),
        (CONTAINER, policy.exempt_containers),
    )
    return tuple(ExemptionRule(scope, name) for scope, names in named for name in names)


def is_system(process: ProcessReading, policy: GpuTimePolicy) -> bool:
    """Whether the process belongs to a desktop, the driver or a service account.

    Any user can give a program such a name, so a user's process that only computes does not count.
    """
    program = process.program or ""
    computes = "G" not in process.kinds
    is_persons = process.uid is not None and is_person(process.uid)
    if any(fnmatchcase(program, name) for name in SYSTEM_PROGRAMS):
        return not (is_persons and computes)
    service = process.uid is not None and process.uid != 0 and not is_person(process.uid)
    return policy.spare_service_accounts and service and process.container is None


def is_exempt(
    process: ProcessReading, policy: GpuTimePolicy, exempt: Sequence[ExemptionRule]
) -> bool:
    """Whether the process is exempt from all rules."""
    if is_system(process, policy):
        return True
    return any(not e.rule and _fits(e, process) for e in exempt)


def is_exempt_from(
    rule: str,
    user: str | None,
    program: str | None,
    container: str | None,
    exempt: Sequence[ExemptionRule],
) -> bool:
    """Whether this user, program or container is exempt from the rule."""
    return any(e.rule in ("", rule) and e.fits(user, program, container) for e in exempt)


def _fits(exempt: ExemptionRule, process: ProcessReading) -> bool:
    """Both the owner of the job and the account of the process may be exempt."""
    return any(
        exempt.fits(user, process.program, process.container)
        for user in {process.user, process.job_owner}
    )
