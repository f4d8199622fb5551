"""Thresholds, input and findings of the incident rules, and who is exempt from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct, field

from monitor.facts.accounts import JOB_KINDS, ClaimFact, Demand, is_person
from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot
from monitor.facts.thresholds import percent, threshold
from monitor.incidents.policy.usage_series import Key, ProcessPresence, Series, UsageBuffers

# Thresholds of the incident rules. Each rule can be disabled.


# %: no incident is opened if readings cover less of the measured time.
COVERAGE_PCT = 80.0
# %: an open incident of sustained use closes below this mean use.
SUSTAINED_CLEAR_PCT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimePolicy:
    """Overuse of GPU and CPU time outside jobs, and exemptions from all rules."""

    # fmt: off
    sustained_on: bool = threshold(True, "Detect sustained use",
        "GPU hog: a user keeps one GPU busy for long, outside jobs.")
    sustained_pct: float = percent(80.0, "Sustained use: opens above",
        "A user's mean use of one GPU, outside jobs.")
    sustained_minutes: float = threshold(10.0, "Sustained use: measured over",
        unit="min", ge=0, le=1440)
    alert_on_hog: bool = threshold(False, "Alert on sustained use while no job waits",
        "Sustained use is then reported as a GPU hog, at level warning and each hour. Otherwise it "
        "is reported without blame, at growing intervals.")
    fair_on: bool = threshold(True, "Detect use above the fair share",
        "A user exceeds the fair share by more than 5 % of all GPUs for 10 minutes, while other "
        "users wait.")
    cpu_on: bool = threshold(True, "Detect CPU overuse",
        "CPU hog: a user takes more than half of all CPUs for 10 minutes, outside jobs. "
        "Disabled with simulated GPUs, because the CPUs are real.")
    exempt_users: tuple[str, ...] = threshold((), "Exempt users", "User names; * is a wildcard.")
    exempt_programs: tuple[str, ...] = threshold((), "Exempt programs",
        "Program names; * is a wildcard.")
    exempt_containers: tuple[str, ...] = threshold((), "Exempt containers",
        "Container names as displayed; * is a wildcard.")
    spare_service_accounts: bool = threshold(True, "Exempt service accounts",
        "Accounts with user IDs 1 to 999.")
    # fmt: on

    @property
    def sustained_clear_pct(self) -> float:
        return min(SUSTAINED_CLEAR_PCT, self.sustained_pct)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """GPU memory that is overused, leaking, idle or orphaned."""

    # fmt: off
    hog_on: bool = threshold(True, "Detect GPU memory overuse",
        "Memory hog: a user holds 80 % of one GPU's memory for 10 minutes, outside jobs.")
    leak_on: bool = threshold(True, "Detect memory leaks",
        "The GPU memory of a process grows steadily for an hour, by at least 1 GiB.")
    idle_on: bool = threshold(True, "Detect idle memory",
        "A process holds GPU memory without using the GPU while others need it.")
    idle_minutes: float = threshold(60.0, "Idle memory: measured over", unit="min", ge=0, le=1440)
    orphaned_on: bool = threshold(True, "Detect orphaned memory",
        "At least 1 GiB of GPU memory is in use by no visible process for 10 minutes.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingPolicy:
    """Differences between booked and actual use."""

    # fmt: off
    empty_on: bool = threshold(True, "Detect empty bookings",
        "No process of the holder is on the booked GPUs for 15 minutes.")
    unused_on: bool = threshold(True, "Detect unused booked GPUs",
        "A job uses only some of its booked GPUs, and others below 2 % for 30 minutes.")
    over_on: bool = threshold(True, "Detect use beyond a booking",
        "A holder uses other GPUs, or 10 % more memory than booked, for 5 minutes.")
    unclaimed_on: bool = threshold(False, "Detect use outside the queue",
        "For hosts on which all use must be booked: 1 GiB of memory for 10 minutes, or 30 "
        "GPU-minutes within two hours.")
    # fmt: on


class Group(Struct, frozen=True, kw_only=True):
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


class EmptyBooking(Struct, frozen=True):
    """Since when a booked GPU has had no process of its job.

    `coverage`: the part (0..1) of that time for which this is known.
    """

    since_t: float
    coverage: float


class MachineShare(Struct, frozen=True):
    """A user's part of all GPUs of the machine over a window, in percent."""

    pct: float
    coverage: float


class RuleInput(Struct, frozen=True, kw_only=True):
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


class Finding(Struct, frozen=True, kw_only=True):
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


def of_process(
    rule: str, gpu: GpuReading, process: ProcessReading, pct: float | None, **figures: Any
) -> Finding:
    """A finding about one process, with these further figures."""
    return Finding(
        rule=rule,
        key=process_key(process),
        gpu=gpu,
        process=process,
        user=process.user,
        container=process.container,
        pct=pct,
        peak_pct=pct,
        memory_bytes=process.memory_bytes,
        **figures,
    )


def of_group(
    rule: str, group: Group, inputs: RuleInput, seconds: float, pct: float | None, **figures: Any
) -> Finding:
    """A finding about the processes of a group. `figures` add to those of the group, or replace
    them. seconds: the time in which its main process used most."""
    values: dict[str, Any] = {
        "key": group.key,
        "gpu": group.gpu,
        "process": main_process(group, inputs, seconds),
        "user": group.user,
        "container": group.container,
        "pct": pct,
        "peak_pct": pct,
        "memory_bytes": group.memory_bytes,
        "processes": len(group.processes),
    }
    return Finding(rule=rule, **values | figures)


def key_of(process: ProcessReading) -> Key:
    return (process.gpu_uuid, process.pid, process.start_ticks)


def process_key(process: ProcessReading) -> str:
    """The key of findings about the process."""
    return f"{process.gpu_uuid}|{process.pid}-{process.start_ticks or 0}"


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


class ExemptionRule(Struct, frozen=True):
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


# Input of the rules: processes and bookings of a snapshot, grouped by accountable user or job.


# (job, GPU)
Booking = tuple[str, str]


class GroupedProcesses(Struct, frozen=True):
    """Processes by group, without exempt processes."""

    groups: Mapping[str, list[ProcessReading]]
    claims: Mapping[Booking, ClaimFact]


def group_key(process: ProcessReading, claims: Mapping[Booking, ClaimFact]) -> str:
    """The group of a process: a job on a GPU, or a user on a GPU in one container.

    Processes of one container with an unknown owner form a group, too. Any other process with an
    unknown owner is a group of its own.
    """
    return group_name(
        process.gpu_uuid,
        process.job_ref if (process.job_ref, process.gpu_uuid) in claims else None,
        process.job_owner or process.user,
        process.container,
        process.pid,
    )


def group_name(
    gpu_uuid: str, job_ref: str | None, user: str | None, container: str | None, pid: int
) -> str:
    if job_ref:
        return f"{gpu_uuid}|job {job_ref}"
    if user or container:
        return f"{gpu_uuid}|{user or ''}|{container or ''}"
    return f"{gpu_uuid}|pid {pid}"


def bookings(claims: Sequence[ClaimFact]) -> dict[Booking, ClaimFact]:
    """The claims of jobs and model services; external locks are not bookings."""
    return {(c.job_ref, c.gpu_uuid): c for c in claims if c.kind in JOB_KINDS and c.until is None}


def group_processes(
    processes: Iterable[ProcessReading],
    claims: Mapping[Booking, ClaimFact],
    policy: GpuTimePolicy,
    exempt: Sequence[ExemptionRule],
) -> GroupedProcesses:
    groups: dict[str, list[ProcessReading]] = {}
    for process in processes:
        key = group_key(process, claims)
        # Processes of a job on its booked GPUs belong to the job, also if their user is exempt.
        booked = (process.job_ref, process.gpu_uuid) in claims
        if booked or not is_exempt(process, policy, exempt):
            groups.setdefault(key, []).append(process)
    return GroupedProcesses(groups, claims)


def presences(grouped: GroupedProcesses) -> list[ProcessPresence]:
    """The present processes, as input of the usage buffers."""
    return [
        ProcessPresence(
            key_of(process),
            group,
            process.sm_pct,
            process.memory_bytes,
            process.created_at.timestamp() if process.created_at else None,
        )
        for group, processes in grouped.groups.items()
        for process in processes
    ]


def readable_gpus(snapshot: Snapshot) -> set[str]:
    """The GPUs whose processes are all known."""
    return {gpu.uuid for gpu in snapshot.gpus if gpu.health is Health.OK}


class EmptyBookingTracker(Struct):
    """Since when booked GPUs have had no process of their job, and how long this was unknown.

    If two updates are more than `gap_s` apart, the time between them is unknown.
    """

    gap_s: float = 15.0
    seen_t: dict[Booking, float] = field(default_factory=dict)
    blind_s: dict[Booking, float] = field(default_factory=dict)
    looked_t: float | None = None

    def look(self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]) -> None:
        """Update from the processes of this snapshot."""
        t = snapshot.at.timestamp()
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        silent = _gpus_with_unknown_processes(snapshot)
        there = {(process.job_ref or "", process.gpu_uuid) for process in snapshot.processes}
        for booking in claims:
            if booking in there:
                self.seen_t[booking], self.blind_s[booking] = t, 0.0
            elif booking[1] in silent or passed > self.gap_s:
                self.blind_s[booking] = self.blind_s.get(booking, 0.0) + passed
        for booking in [b for b in (*self.seen_t, *self.blind_s) if b not in claims]:
            self.seen_t.pop(booking, None)
            self.blind_s.pop(booking, None)
        self.looked_t = t

    def since(
        self, snapshot: Snapshot, claims: Mapping[Booking, ClaimFact]
    ) -> dict[Booking, EmptyBooking | None]:
        """The empty bookings. None: the GPU cannot be read, or an unknown process is on it."""
        t = snapshot.at.timestamp()
        silent = _gpus_with_unknown_processes(snapshot)
        result: dict[Booking, EmptyBooking | None] = {}
        for booking, claim in claims.items():
            if self.seen_t.get(booking) == t:
                continue
            since = self.begin_of(booking, claim, t)
            blind = self.blind_s.get(booking, 0.0) / (t - since) if t > since else 0.0
            tellable = booking[1] not in silent
            result[booking] = EmptyBooking(since, max(0.0, 1.0 - blind)) if tellable else None
        return result

    def begin_of(self, booking: Booking, claim: ClaimFact, t: float) -> float:
        """When the GPU was booked, or a process of its job was last seen there."""
        booked_t = claim.since.timestamp() if claim.since else t
        return max(self.seen_t.get(booking, 0.0), booked_t)


def _gpus_with_unknown_processes(snapshot: Snapshot) -> set[str]:
    """GPUs on which the owner of a process is unknown."""
    can_read = readable_gpus(snapshot)
    unknown = {p.gpu_uuid for p in snapshot.processes if not (p.user or p.job_ref)}
    return unknown | {gpu.uuid for gpu in snapshot.gpus if gpu.uuid not in can_read}


def build(
    snapshot: Snapshot,
    grouped: GroupedProcesses,
    windows: UsageBuffers,
    empty_bookings: EmptyBookingTracker,
    demand: Sequence[Demand],
    shares: Mapping[str, float] | None = None,
) -> RuleInput:
    """Return the input of the rules."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    groups: list[Group] = []
    strays: list[Group] = []
    jobs: dict[str, list[Group]] = {}
    booked = {ref for ref, _ in grouped.claims}
    for key, processes in grouped.groups.items():
        first = processes[0]
        gpu = gpus.get(first.gpu_uuid)
        if gpu is None:
            continue
        claim = grouped.claims.get((first.job_ref or "", first.gpu_uuid))
        group = _group(key, gpu, processes, claim, windows)
        if claim is not None:
            jobs.setdefault(claim.job_ref, []).append(group)
            continue
        groups.append(group)
        if any(p.job_ref in booked for p in processes):
            strays.append(group)
    for (job_ref, uuid), claim in grouped.claims.items():
        key = group_name(uuid, job_ref, None, None, 0)
        if key not in grouped.groups and uuid in gpus:
            jobs.setdefault(job_ref, []).append(_group(key, gpus[uuid], (), claim, windows))
    return RuleInput(
        t=snapshot.at.timestamp(),
        gpus=snapshot.gpus,
        groups=tuple(groups),
        jobs={ref: tuple(parts) for ref, parts in jobs.items()},
        strays=tuple(strays),
        empty=empty_bookings.since(snapshot, grouped.claims),
        series=windows.processes,
        demand=demand,
        shares=shares or {},
        series_of=windows.by_user,
        in_turn=windows.turns.ranks,
    )


def _group(
    key: str,
    gpu: GpuReading,
    processes: Sequence[ProcessReading],
    claim: ClaimFact | None,
    windows: UsageBuffers,
) -> Group:
    first = processes[0] if processes else None
    return Group(
        key=key,
        gpu=gpu,
        series=windows.groups.get(key) or Series(),
        user=(first.job_owner or first.user) if first else None,
        container=first.container if first else None,
        claim=claim,
        processes=tuple(processes),
    )
