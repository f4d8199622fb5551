"""Facts: hosts, and readings of the probes. Unknown is None, never zero."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from monitor.facts.gpus import (
    MOST_MEMORY,
    MOST_POWER,
    PERCENT,
    Condition,
    Gauge,
    GpuState,
    HealthReading,
    Meter,
    Rollup,
    Xid,
    declared,
    figure,
)


class HostState(StrEnum):
    """Set by operators. drained: no new jobs start; disabled: its service does not start either."""

    ACTIVE = "active"
    DRAINED = "drained"
    DISABLED = "disabled"


class HostFact(Struct, frozen=True, kw_only=True):
    """seen_at: its newest reading. down_at: an operator confirmed that it is down.

    address: of its pages. log_address: where other hosts read its logs. models_address: of its
    endpoint for language models, for other hosts. "" = it has none.

    instance: identity of its data folder; "" = it has not started since hosts have one.
    key_mark: a digest of its secret key; "" = not known.
    """

    name: str
    state: HostState = HostState.ACTIVE
    instance: str = ""
    key_mark: str = ""
    version: str = ""
    address: str = ""
    log_address: str = ""
    models_address: str = ""
    reason: str = ""
    changed_by: str = ""
    started_at: datetime | None = None
    seen_at: datetime | None = None
    down_at: datetime | None = None
    down_by: str = ""
    gpus: int = 0

    @property
    def takes_jobs(self) -> bool:
        """Whether new jobs may start there."""
        return self.state is HostState.ACTIVE


class JoiningHost(Struct, frozen=True, kw_only=True):
    """The statement of a host about itself when it starts."""

    name: str
    instance: str
    boot_id: str
    version: str
    address: str
    profile: str
    log_address: str = ""
    key_mark: str = ""


# The limits of this process on its machine, and their origin. Unknown is None.


class LimitSource(Struct, frozen=True):
    """An upper limit and where it comes from, in words."""

    value: float
    origin: str


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The lowest limits of machine, container and configuration, with their origin.

    `memory_used_bytes`: the memory that counts against the container's limit. `visible_gpus`: the
    GPUs that NVIDIA_VISIBLE_DEVICES names, None = all. Requests are the resources that a pod is
    guaranteed.
    """

    cpus: float | None = None
    cpus_origin: str | None = None
    memory_bytes: int | None = None
    memory_origin: str | None = None
    memory_used_bytes: int | None = None
    machine_cpus: int | None = None
    machine_memory_bytes: int | None = None
    cpus_requested: float | None = None
    memory_requested_bytes: int | None = None
    visible_gpus: tuple[str, ...] | None = None


# The space of a file system, as `df` counts it.


def used_pct(used_bytes: int | None, available_bytes: int | None) -> float | None:
    """Used part of the usable space in percent, as `df` counts it.

    The blocks that are reserved for root are neither used nor available. None: it is unknown, or
    the file system has no size, as /proc.
    """
    if used_bytes is None or available_bytes is None:
        return None
    usable = used_bytes + available_bytes
    return 100 * used_bytes / usable if usable else None


class FileSystemSpace(Struct, frozen=True, kw_only=True):
    """The space of a file system, without the blocks that are reserved for root."""

    used_bytes: int
    available_bytes: int

    @property
    def usable_bytes(self) -> int:
        return self.used_bytes + self.available_bytes

    @property
    def used_pct(self) -> float | None:
        return used_pct(self.used_bytes, self.available_bytes)


class UseSource(StrEnum):
    """How a process's share of a GPU is known, best first."""

    ACCOUNTING = "accounting"
    PROCESSES_INFO = "processes_info"
    PROCESS_UTILIZATION = "process_utilization"
    DEVICE = "device"
    UNKNOWN = "unknown"


class EndedProcess(Struct, frozen=True, kw_only=True):
    """Usage of an ended process since the previous sweep.

    `lived_s` is given when it came and went between two sweeps.
    """

    gpu_uuid: str
    pid: int
    busy_s: float
    source: UseSource
    lived_s: float | None = None
    peak_memory_bytes: int | None = None


class InstanceReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A MIG instance of a GPU. NVML reports its memory and processes, but no utilisation."""

    gpu_uuid: str
    uuid: str
    instance: int | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


class CallCost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cost of one call of the driver: times of the newest calls, in milliseconds.

    `every`: asked at each so many sweeps; more than 1 while it is slow. `count` and `errors` are
    those of the process that samples.
    """

    call: str
    count: int
    p50_ms: float
    p99_ms: float
    errors: int = 0
    every: int = 1


class GpuMark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Up to where a GPU's processes have been counted, in the driver's own clock and counters.

    `cursor_us` is the greatest timestamp that the driver gave, `age_s` how long ago that was;
    `period_us` the driver's sampling period where it gives each sample; `allowance_s` how much of
    the GPU's work no process has been given yet; `accounts`: {pid: (start, samples, sum)};
    `is_unexplained`: at the last look the GPU worked more than the driver attributed to processes;
    `names_clients`: the driver has attributed work to a client of MPS.
    """

    cursor_us: int | None = None
    age_s: float = 0.0
    period_us: int | None = None
    allowance_s: float = 0.0
    accounts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    is_unexplained: bool = False
    names_clients: bool = False


class CpuProcess(Struct, frozen=True, kw_only=True):
    """cpu_s: in all since it started. user None = an account without a name."""

    pid: int
    start_ticks: int
    cpu_s: float
    uid: int
    user: str | None = None
    program: str = ""
    session: int = 0
    parent: int = 0


class Presence(StrEnum):
    """free: no owner process · suspect: perhaps only for a moment, no job starts ·

    owner: jobs yield · leaving: the owner seems gone, jobs wait a little longer.
    """

    FREE = "free"
    SUSPECT = "suspect"
    OWNER = "owner"
    LEAVING = "leaving"


class BaselineProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A background graphics program whose usual memory does not count as presence.

    memory_bytes: what has been learned. level_bytes: what it held at `level_since`; where it stays
    quiet near that, it is learned.
    """

    program: str
    memory_bytes: int = 0
    level_bytes: int = 0
    level_since: datetime


class OwnerReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The presence of an interactive user on a GPU, and since when. `came_at`: first seen.

    program, user, pid: the process with the strongest sign; None = absent or unknown. until: when
    the GPU is free again if the user does not return; None = unknown.
    """

    gpu_uuid: str
    presence: Presence
    since: datetime
    came_at: datetime | None = None
    until: datetime | None = None
    program: str | None = None
    user: str | None = None
    pid: int | None = None
    residents: tuple[BaselineProcess, ...] = ()

    @property
    def keeps_closed(self) -> bool:
        """Whether no new job may start there."""
        return self.presence is not Presence.FREE

    @property
    def is_reported(self) -> bool:
        """Whether the user is reported; a suspected user is not."""
        return self.presence in (Presence.OWNER, Presence.LEAVING)

    @property
    def description(self) -> str:
        """`alice's blender`."""
        return f"{self.user or 'an unknown user'}'s {self.program or 'program'}"


class Health(StrEnum):
    """Whether a GPU answered: `lost` fell off the bus, `failing` answers with errors."""

    OK = "ok"
    FAILING = "failing"
    LOST = "lost"


def position(index: int) -> str:
    """The name of a GPU whose UUID is not known, among UUIDs of others."""
    return f"GPU {index}"


class ComputeMode(StrEnum):
    """The compute mode set with `nvidia-smi -c`, if it restricts processes."""

    EXCLUSIVE = "exclusive process"
    PROHIBITED = "prohibited"


class GpuReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU at an instant. None = unknown. `figure` declares what is measured: see GPU_FIELDS.

    `memory_used_bytes` leaves out what the driver reserves, where it tells that apart.
    `energy_mj` counts since the driver was loaded. `orphaned_bytes` are used although no listed
    process holds them, since `orphaned_since`.
    `compute_mode`: that one process at a time, or none, may compute on it; None: any may.
    `closed`: why it takes no new work though it is well.
    `idle_since`: its utilisation has been below IDLE_PCT since then, even if processes hold memory;
    None: it is in use, or its utilisation is unknown.
    `unsupported`: fields that the GPU or its driver does not have. `failed_calls`: calls of the
    driver that failed at this sweep, in words. Any other value that is None is unknown.
    A probe leaves state, condition, `closed`, `idle_since` and what is orphaned open; the sampler
    fills them in.
    """

    uuid: str
    index: int
    name: str | None = None
    pci_id: str | None = None
    health: Health = Health.OK
    problem: str | None = None
    utilization_pct: Annotated[
        float | None,
        figure(
            "Utilisation",
            "%",
            bounds=PERCENT,
            gauge=Gauge(
                "gpu_utilization_percent",
                "Share of the last sample period in which a kernel ran on the GPU.",
            ),
            meter=Meter(100, in_row=True),
            is_sampled=True,
            rollup=Rollup("utilization_max_pct", "utilization_pct_s", "utilization_known_s"),
        ),
    ] = None
    memory_total_bytes: Annotated[
        int | None,
        figure(
            "Memory size",
            "bytes",
            kind=int,
            bounds=(1, MOST_MEMORY),
            gauge=Gauge("gpu_memory_total_bytes", "Total memory of the GPU."),
        ),
    ] = None
    memory_used_bytes: Annotated[
        int | None,
        figure(
            "Memory",
            "bytes",
            kind=int,
            bounds=(0, MOST_MEMORY),
            gauge=Gauge(
                "gpu_memory_used_bytes",
                "Memory in use, without the memory that the driver reserves.",
            ),
            meter=Meter("memory_total_bytes", in_row=True),
            is_sampled=True,
            rollup=Rollup("memory_max_bytes", "memory_byte_s", "memory_known_s"),
        ),
    ] = None
    memory_reserved_bytes: Annotated[
        int | None,
        figure(
            "Reserved memory",
            "bytes",
            kind=int,
            bounds=(0, MOST_MEMORY),
            in_rest=False,
            gauge=Gauge("gpu_memory_reserved_bytes", "Memory reserved by the driver."),
        ),
    ] = None
    memory_utilization_pct: Annotated[
        float | None,
        figure(
            "Memory utilisation",
            "%",
            bounds=PERCENT,
            in_rest=False,
            gauge=Gauge(
                "gpu_memory_utilization_percent",
                "Share of the last sample period in which GPU memory was read or written.",
            ),
        ),
    ] = None
    power_w: Annotated[
        float | None,
        figure(
            "Power",
            "W",
            bounds=(0.0, MOST_POWER),
            gauge=Gauge("gpu_power_watts", "Current power draw."),
            meter=Meter("power_limit_w", is_limit=True, word="Power"),
            is_sampled=True,
            rollup=Rollup("power_max_w", "energy_j", "power_known_s"),
        ),
    ] = None
    power_limit_w: Annotated[
        float | None,
        figure(
            "Power limit",
            "W",
            bounds=(1.0, MOST_POWER),
            gauge=Gauge("gpu_power_limit_watts", "Power limit in force."),
        ),
    ] = None
    # The hardware switches off below 120 °C. Sleeping sensors answer −256 or 127.
    temperature_c: Annotated[
        float | None,
        figure(
            "Temperature",
            "°C",
            bounds=(-55.0, 120.0),
            gauge=Gauge("gpu_temperature_celsius", "Temperature of the GPU."),
            meter=Meter(100),
            is_sampled=True,
            rollup=Rollup("temperature_max_c"),
        ),
    ] = None
    sm_clock_mhz: Annotated[
        int | None,
        figure(
            "SM clock",
            "MHz",
            kind=int,
            bounds=(0, 10_000),
            gauge=Gauge("gpu_sm_clock_hertz", "SM clock.", 1e6),
            is_sampled=True,
        ),
    ] = None
    memory_clock_mhz: Annotated[
        int | None,
        figure(
            "Memory clock",
            "MHz",
            kind=int,
            bounds=(0, 50_000),
            gauge=Gauge("gpu_memory_clock_hertz", "Memory clock.", 1e6),
        ),
    ] = None
    performance_state: Annotated[
        int | None, figure("Performance state", "", kind=int, bounds=(0, 15))
    ] = None
    compute_mode: ComputeMode | None = None
    compute_capability: str | None = None
    architecture: str | None = None
    cores: int | None = None
    max_sm_clock_mhz: int | None = None
    condition: Condition | None = None
    condition_since: datetime | None = None
    condition_reason: str | None = None
    energy_mj: int | None = None
    orphaned_bytes: Annotated[
        int | None,
        figure(
            "Orphaned memory",
            "bytes",
            kind=int,
            bounds=(0, MOST_MEMORY),
            in_rest=False,
            gauge=Gauge(
                "gpu_memory_orphaned_bytes", "Memory in use that belongs to no listed process."
            ),
        ),
    ] = None
    orphaned_since: datetime | None = None
    state: GpuState | None = None
    state_since: datetime | None = None
    closed: str | None = None
    idle_since: datetime | None = None
    unsupported: tuple[str, ...] | None = None
    failed_calls: tuple[str, ...] | None = None

    def idle_s(self, now: datetime) -> float | None:
        """Seconds since it has been idle by use; 0 = in use, None = unknown."""
        return _idle_s(self.utilization_pct, self.idle_since, now)


GPU_FIELDS = tuple(declared(GpuReading))


# Below this utilisation, a GPU or the CPUs of a host are idle.
IDLE_PCT = 5.0


def idle_since(
    pct: float | None, before: datetime | None, now: datetime, *, watched: bool = True
) -> datetime | None:
    """Since when a utilisation has been below IDLE_PCT; None = it is not, or is unknown.

    before: the same at the previous reading. watched: no reading was missed since then.
    """
    if pct is None or pct >= IDLE_PCT:
        return None
    return before if before is not None and watched else now


def _idle_s(pct: float | None, since: datetime | None, now: datetime) -> float | None:
    if pct is None:
        return None
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


class GpuProcess(Struct, frozen=True, kw_only=True):
    """A pid on one GPU, as the driver lists it. A pid on two GPUs is two of these.

    `kinds` holds the lists it stood in: "C" compute, "G" graphics, "M" MPS.
    `sm_pct`: its share of the GPU's time since the sweep before, None = unknown, 0 = known idle;
    `busy_s`: the same in seconds, where the probe counts them. `instance`: its MIG instance.
    `encoder_pct`: its highest share of the video encoder since then, None = unknown.
    """

    gpu_uuid: str
    pid: int
    memory_bytes: int | None = None
    sm_pct: float | None = None
    kinds: str = "C"
    source: UseSource = UseSource.UNKNOWN
    busy_s: float | None = None
    instance: int | None = None
    encoder_pct: float | None = None


class OwnerSource(StrEnum):
    """How the owner of a process is known, the strongest first."""

    JOB = "job"
    SUBUID = "subuid"
    RUNTIME = "runtime"
    MOUNT = "mount"
    LOGIN = "login"
    UID = "uid"
    UNKNOWN = "unknown"


class ProcessIdentity(Struct, frozen=True, kw_only=True):
    """Identity of a pid. `start_ticks` (field 22 of /proc/PID/stat) tells a reused pid apart.

    `uid` is the account that it runs as; `user` the owner, None = unknown;
    `owner_source` says how the owner is known.

    `lineage` holds the pids from its parent upwards, `session` its session id, `job_cgroup` the
    cgroup of a job that it is in ("" = none): so a process is known to belong to a job.
    """

    pid: int
    start_ticks: int
    created_at: datetime
    uid: int | None = None
    user: str | None = None
    program: str | None = None
    command: tuple[str, ...] | None = None
    session: int | None = None
    lineage: tuple[int, ...] = ()
    job_cgroup: str = ""
    labelled_job: str = ""
    container: str | None = None
    owner_source: OwnerSource = OwnerSource.UNKNOWN


class ProcessReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process on one GPU with its owner and job. user None = owner unknown.

    `job_owner` is the person whose job it is; `user` the person whose account it runs as.
    """

    gpu_uuid: str
    pid: int
    start_ticks: int | None = None
    created_at: datetime | None = None
    uid: int | None = None
    user: str | None = None
    program: str | None = None
    command: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    sm_pct: float | None = None
    kinds: str = "C"
    source: UseSource = UseSource.UNKNOWN
    container: str | None = None
    instance: int | None = None
    job_ref: str | None = None
    job_owner: str | None = None
    owner_source: OwnerSource = OwnerSource.UNKNOWN
    encoder_pct: float | None = None

    @property
    def key(self) -> str:
        return f"{self.pid}-{self.gpu_uuid[-8:]}"


class DiskReading(Struct, frozen=True, kw_only=True):
    """Space without the blocks that are reserved for root, as `df` counts its percentage."""

    mount: str
    total_bytes: int
    free_bytes: int

    @property
    def used_pct(self) -> float | None:
        """As `df` counts it; None: it has no size."""
        return used_pct(self.total_bytes - self.free_bytes, self.free_bytes)


class Pressure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pressure stall shares (PSI avg10, percent of time); None where the kernel has none."""

    cpu_some_pct: float | None = None
    memory_some_pct: float | None = None
    memory_full_pct: float | None = None
    io_some_pct: float | None = None
    io_full_pct: float | None = None


class HostCounters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of the machine since it started; rates come from two of these."""

    cpu_busy_s: float | None = None
    cpu_total_s: float | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None


class HostReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine at an instant.

    A probe gives `counters`; the sampler makes of two readings cpu_pct and the disk rates, means
    since the reading before. They are None at the first. Memory is what may be used of it: see
    `limits`.
    """

    name: str
    boot_id: str | None = None
    cpu_count: int | None = None
    cpu_pct: float | None = None
    load_1: float | None = None
    load_5: float | None = None
    load_15: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bps: float | None = None
    disk_write_bps: float | None = None
    disks: tuple[DiskReading, ...] = ()
    pressure: Pressure = field(default_factory=Pressure)
    counters: HostCounters = field(default_factory=HostCounters)
    limits: Limits = field(default_factory=Limits)
    # Its CPUs have been idle since then; the sampler fills it in.
    cpu_idle_since: datetime | None = None

    def cpu_idle_s(self, now: datetime) -> float | None:
        """Seconds since its CPUs have been idle; 0 = in use, None = unknown."""
        return _idle_s(self.cpu_pct, self.cpu_idle_since, now)


class GpuSweep(Struct, frozen=True, kw_only=True):
    """Result of one GPU probe. `problem` says why GPUs can't be read, with `remedy`.

    `identities` is filled only by a probe whose pids are not this machine's (simulated).
    `unnamed`: so many GPUs can't even tell their UUID; `problem` then says why.
    `query_errors`, `init_failures`: how many there were since the sweep before.
    `is_fresh` is false where `processes` are those of an earlier sweep. `dropped`: so many of the
    driver's statements made no sense or named no process.
    """

    gpus: tuple[GpuReading, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    identities: dict[int, ProcessIdentity] = field(default_factory=dict)
    unnamed: int = 0
    problem: str | None = None
    remedy: str | None = None
    health: tuple[HealthReading, ...] = ()
    xids: tuple[Xid, ...] = ()
    query_errors: int = 0
    init_failures: int = 0
    is_fresh: bool = True
    ended: tuple[EndedProcess, ...] = ()
    instances: tuple[InstanceReading, ...] = ()
    marks: dict[str, GpuMark] = field(default_factory=dict)
    costs: tuple[CallCost, ...] = ()
    dropped: int = 0


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Host, GPUs and processes at one instant; `seq` grows by one per snapshot of a host.

    `failures`: how many sweeps in a row, up to this one, saw no GPU at all because of a fault.
    `tried_at`: the last of these sweeps.
    `query_errors`, `init_failures`: of NVML, in all since this host was first sampled.
    `dropped`: statements of the driver that made no sense, counted on over all snapshots.
    `owners`: presence of each GPU's owner, on hosts where it is detected.
    """

    seq: int
    at: datetime
    probe: str
    host: HostReading
    gpus: tuple[GpuReading, ...] = ()
    processes: tuple[ProcessReading, ...] = ()
    problem: str | None = None
    remedy: str | None = None
    failures: int = 0
    tried_at: datetime | None = None
    health: tuple[HealthReading, ...] = ()
    query_errors: int = 0
    init_failures: int = 0
    instances: tuple[InstanceReading, ...] = ()
    costs: tuple[CallCost, ...] = ()
    dropped: int = 0
    owners: tuple[OwnerReading, ...] = ()

    def on(self, gpu_uuid: str) -> Sequence[ProcessReading]:
        return [p for p in self.processes if p.gpu_uuid == gpu_uuid]

    def guest(self, gpu_uuid: str) -> OwnerReading | None:
        """The owner for which jobs yield on this GPU; None if absent or only suspected."""
        there = next((o for o in self.owners if o.gpu_uuid == gpu_uuid), None)
        return there if there is not None and there.is_reported else None
