"""The sampler: reads the host and its GPUs once a second and stores a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Protocol, runtime_checkable

from django.conf import settings
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact, ClaimKind
from monitor.facts.gpus import ClosureFact, ClosureKind, IllegalGpuTransition, Xid
from monitor.facts.readings import (
    CallCost,
    GpuMark,
    GpuReading,
    GpuSweep,
    HostReading,
    OwnerReading,
    ProcessIdentity,
    ProcessReading,
    Snapshot,
)
from monitor.gpus.policy import changes, health
from monitor.gpus.policy import presence as presence_detection
from monitor.gpus.policy.capability import with_stated_memory
from monitor.gpus.policy.changes import Note
from monitor.gpus.policy.health import HealthPolicy
from monitor.gpus.policy.presence import PresencePolicy
from monitor.gpus.policy.states import Cooling, judge, keep_jobs, with_orphans, with_states
from monitor.gpus.rows import closures as gpu_closures
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling import policy
from monitor.gpus.sampling.policy import (
    Hang,
    JumpFilter,
    bounded_host,
    bounded_sweep,
    start_lines,
    with_rates,
)
from monitor.gpus.sampling.probes import nvml_calls as nvml_faults
from monitor.gpus.sampling.probes.host import HostProbe, LimitsProbe
from monitor.journal.rows import counters, events
from monitor.owners import rows
from monitor.owners.policy import attribute
from monitor.runtime.policy import Guard, TimedCache
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from monitor.usage.step import Ledger

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
        from monitor.gpus.sampling.probes.simulated import SimulatedProbe

        return SimulatedProbe(
            config.simulated_gpus, config.simulated_seed, config.simulated_processes
        )
    if config.probe == "none":
        return NoProbe(
            "GPUs are not read: the probe is set to “none”.",
            "Set GPUCOORD_PROBE=nvml (or leave it out) to read them.",
        )
    from monitor.gpus.sampling.probes import nvml

    if config.probe is None and not nvml.is_installed():
        missing = nvml_faults.FAULTS[nvml_faults.LIBRARY_NOT_FOUND]
        return NoProbe(missing.problem, missing.remedy)
    at_once = config.profile == "desktop"
    return nvml.NvmlProbe(DESKTOP_PROCESSES_S if at_once else PROCESSES_S)


logger = logging.getLogger(__name__)

# After a longer gap the state of a GPU in between is unknown.
UNWATCHED_AFTER = timedelta(seconds=10)
# How long a change of the table of OS accounts may take to be shown.
NAMES_KEPT = timedelta(seconds=10)
# A sweep soon after another one is not sent to viewers.
LIVE_AFTER = timedelta(seconds=0.5)
# Upper bound of the XIDs that wait for a database that is unavailable.
MOST_XIDS = 1000
FAULT_KINDS = ("PROBE_FAULT", "GPU_STATE_FAULT")
# The fields of a GPU's row besides the measured values.
_lasting = attrgetter(
    "state", "problem", "index", "name", "pci_id", "memory_total_bytes", "power_limit_w",
    "compute_capability", "condition",
)  # fmt: skip


class MachineState(Protocol):
    """The host probe as the sampler uses it."""

    name: str

    def open(self) -> None: ...
    def read(self, now: datetime) -> HostReading: ...
    def identities(self, pids: Collection[int]) -> dict[int, ProcessIdentity]: ...
    def close(self) -> None: ...


class HungGpus:
    """GPUs whose calls hung are left out of the sweeps, and tried in a thread beside these.

    A GPU is read again once a trial shows that its calls come back. A trial that hangs delays no
    sweep: the process goes on until it has taken too long, and is then replaced like any that
    hangs. Call `resume` in a fresh process, then `look` before each sweep. `trial`: the one under
    way, `tried`: its GPU.
    """

    def __init__(self, host: str, probe: GpuProbe, guard: Guard) -> None:
        self._host, self._guard = host, guard
        self._probe = probe if isinstance(probe, SelectiveProbe) else None
        self._is_nvml = probe.name == "nvml"
        self._hangs: list[Hang] = []
        self._answered: dict[str, datetime] = {}
        self.tried = ""
        self.trial: Trial | None = None

    def resume(self, now: datetime) -> datetime | None:
        """When GPUs may be read again after the driver as a whole hung; None: now."""
        if not self._is_nvml:
            return None
        since = now - policy.HANGS_KEPT
        hung, answered = (
            events.recent(policy.MOST_HANGS, kind=kind, host=self._host, since=since)
            for kind in ("NVML_HUNG", "NVML_ANSWERS")
        )
        self._hangs = [Hang(row.at, row.gpu_uuid, policy.hung_call(row.text)) for row in hung]
        self._answered = {row.gpu_uuid: row.at for row in reversed(answered)}
        if self._probe is not None:
            self._probe.leave_out(policy.left_out(self._hangs, self._answered))
        return policy.resumes_at([hang.at for hang in self._hangs if not hang.gpu])

    def look(self, now: datetime) -> None:
        """Read a GPU again whose trial is over, or begin the next trial."""
        if self._probe is None:
            return
        if self.trial is None:
            self.tried = policy.to_try(self._hangs, self._answered, now) or ""
            if self.tried:
                self.trial = self._probe.trial(self.tried, now)
                self.trial.start()
        elif not self.trial.is_alive():
            text = f"The calls of {self.tried} come back again, so it is read again."
            with self._guard():
                events.add("NVML_ANSWERS", text, now=now, host=self._host, gpu_uuid=self.tried)
            self._answered[self.tried], self.trial = now, None
            self._probe.leave_out(policy.left_out(self._hangs, self._answered))


class Sampler:
    """A Step. Its state between ticks is stored with the newest snapshot."""

    def __init__(
        self,
        guard: Guard,
        probe: GpuProbe,
        machine: MachineState,
        memory_gib: Mapping[str, float] | None = None,
    ) -> None:
        """memory_gib: of GPUs of which the driver gives no figure, by model or UUID."""
        self._guard = guard
        self._probe = probe
        self._machine = machine
        self._memory_gib = memory_gib or {}
        self._last: Snapshot | None = None
        self._tried_at: datetime | None = None
        self._resumes_at: datetime | None = None
        self._fresh = True
        # XIDs that the driver has reported and that are not committed yet.
        self._xids: tuple[Xid, ...] = ()
        self._jumps = JumpFilter()
        self._hung = HungGpus(machine.name, probe, guard)
        self._isolation = ItemIsolation(machine.name, "sampler", guard)
        self._ledger = Ledger(machine.name, probe.name)
        self._names = TimedCache(lambda _: rows.shown_names(), NAMES_KEPT)

    def open(self) -> None:
        self._fresh = True
        # The probe opens itself at its first sweep, which may have to wait: see `HungGpus`.
        self._machine.open()

    def close(self) -> None:
        self._probe.close()
        self._machine.close()

    @property
    def asking(self) -> tuple[str, float] | None:
        """The driver call in progress and its start (monotonic clock); the older one, if a trial of
        a GPU is under way."""
        trial = self._hung.trial
        calls = [self._asking_of_probe, trial and trial.asking]
        return min((call for call in calls if call), key=itemgetter(1), default=None)

    @property
    def _asking_of_probe(self) -> tuple[str, float] | None:
        return getattr(self._probe, "asking", None)

    @property
    def asking_about(self) -> str:
        """The GPU that this call is about; "" = none."""
        if self.asking != self._asking_of_probe:
            return self._hung.tried
        return getattr(self._probe, "asking_about", "")

    def step(self, now: datetime) -> Snapshot:
        """Read once and store; returns the snapshot."""
        if self._fresh:
            # Not in open(): the previous holder may have sampled until now.
            self._restore()
            self._resumes_at = self._hung.resume(now)
        last = self._last
        held = snapshots.held_claims(self._machine.name)
        for claim in held:
            if claim.kind is ClaimKind.UNKNOWN:
                self._isolation.failed(f"claim {claim.row}", ValueError("unknown kind"), now)
        claims = [claim for claim in held if claim.kind is not ClaimKind.LOCK]
        closures = gpu_closures.on(self._machine.name)
        sweep, failures = self._sweep(now, claims)
        self._xids = (*self._xids, *sweep.xids)[-MOST_XIDS:]
        sweep = replace(sweep, xids=self._xids)
        processes = self._processes(sweep, claims, now)
        before = self._before()
        gpus = changes.complete(sweep, before, now) if self._keeps_missing() else sweep.gpus
        sweep = changes.explained(sweep, gpus)
        host = self._host(now)
        gpus = with_stated_memory(gpus, processes, host, self._memory_gib)
        gpus = with_orphans(gpus, processes, before, now, sweep.is_fresh)
        in_force = thresholds.ThresholdsInForce()
        healthy = in_force.of(HealthPolicy)
        checkup = health.examine(sweep, gpus, self._comparable(host), healthy, now)
        states = with_states(
            checkup.gpus, processes, held, before, now, closures, watched=self._watched(now)
        )
        snapshot = Snapshot(
            seq=0,
            at=now,
            probe=self._probe.name,
            host=host,
            gpus=states.gpus,
            health=checkup.health,
            processes=processes,
            problem=sweep.problem,
            remedy=sweep.remedy,
            failures=failures,
            tried_at=self._tried_at if failures else None,
            query_errors=sweep.query_errors + (last.query_errors if last else 0),
            init_failures=sweep.init_failures + (last.init_failures if last else 0),
            instances=sweep.instances,
            costs=sweep.costs,
            dropped=sweep.dropped + (last.dropped if last else 0),
        )
        if sweep.is_fresh:
            self._ledger.take(now, sweep, snapshot.gpus, processes)
        else:
            self._ledger.note(now, snapshot.gpus)
        suspects = (*(last.processes if last else ()), *processes)
        notes = health.of_checkup(checkup, last, sweep.xids, suspects, claims, healthy.hot_c)
        notes = [*changes.of_sweep(last, snapshot, states.changes), *notes]
        for fault in states.faults:
            self._isolation.failed(fault, IllegalGpuTransition(fault), now, FAULT_KINDS[1])
        cooled = look(snapshot, claims, closures) if sweep.is_fresh else Cooling()
        self._log_start(snapshot)
        snapshot, met = watched(snapshot, last, in_force.of(PresencePolicy))
        return self._write(snapshot, [*notes, *met], sweep, cooled)

    def _log_start(self, snapshot: Snapshot) -> None:
        """Say once in the log that the driver can be read, and which it is."""
        if not self._fresh and (self._last is None or self._last.problem is None):
            return
        versions = self._probe.versions() if isinstance(self._probe, VersionedProbe) else []
        for line in start_lines(snapshot, self._last, versions):
            about = {"kind": line.kind, "host": self._machine.name}
            logger.info(line.text, extra={**about, **line.more})

    def _restore(self) -> None:
        """Restore the state of the previous sampler."""
        self._last = snapshots.newest(self._machine.name)
        self._tried_at = self._last.tried_at if self._last else None
        self._ledger.resume(snapshots.carried(self._machine.name))
        swept_at = self._ledger.swept_at
        if swept_at is not None and isinstance(self._probe, ResumableProbe):
            costs = self._last.costs if self._last else ()
            self._probe.resume(self._ledger.marks, swept_at, costs)

    def _processes(
        self, sweep: GpuSweep, claims: list[ClaimFact], now: datetime
    ) -> tuple[ProcessReading, ...]:
        """The processes of this sweep, or the last known ones if it did not list processes."""
        if sweep.is_fresh or self._last is None:
            identities = self._identities(sweep, claims, now)
            attributed = attribute(sweep.processes, identities, claims, self._names(now))
            return keep_jobs(attributed, self._last.processes if self._last else (), claims)
        there = {(p.gpu_uuid, p.pid) for p in sweep.processes}
        return tuple(p for p in self._last.processes if (p.gpu_uuid, p.pid) in there)

    def _write(
        self,
        snapshot: Snapshot,
        notes: Collection[changes.Note],
        sweep: GpuSweep,
        cooled: Cooling,
    ) -> Snapshot:
        changed = None if self._fresh else self._changed(snapshot)
        with self._guard():
            snapshot = replace(snapshot, seq=self._next_seq())
            snapshots.record(snapshot, changed, self._ledger.carry() if sweep.is_fresh else None)
            apply(cooled, snapshot, self._isolation)
            self._isolation.each(
                notes,
                lambda note: f"{note.kind} of {note.gpu_uuid or note.owner or 'the host'}",
                lambda note: self._record_event(note, snapshot),
                snapshot.at,
            )
            for xid in sweep.xids:
                counters.add_xid(xid)
            if cooled.freed:
                wake("scheduler", only_here=True)
            if self._last is None or snapshot.at - self._last.at >= LIVE_AFTER:
                wake("live", str(snapshot.seq).encode())
        self._last, self._fresh, self._xids = snapshot, False, ()
        if sweep.is_fresh and self._ledger.is_due(snapshot.at):
            # After the wake-up, so that viewers do not wait for it.
            with self._guard():
                snapshots.carry(self._machine.name, self._ledger.write())
            self._ledger.written(snapshot.at)
        return snapshot

    def _next_seq(self) -> int:
        """The next sequence number; read from the rows once, as only the lease holder writes."""
        if self._last is None or self._fresh:
            return snapshots.next_seq(self._machine.name)
        return self._last.seq + 1

    def _sweep(self, now: datetime, claims: list[ClaimFact]) -> tuple[GpuSweep, int]:
        """The sweep of the probe, and the number of successive sweeps that failed."""
        running = [claim for claim in claims if claim.until is None]
        if isinstance(self._probe, PacedProbe) and len(running) < len(claims):
            # Memory of an ended job may be free by now.
            self._probe.list_processes()
        self._hung.look(now)
        last = self._last
        failures = last.failures if last and last.probe == self._probe.name else 0
        if self._resumes_at is not None and now < self._resumes_at:
            return policy.paused(), max(1, failures)
        if last is not None and not changes.may_sweep(failures, self._tried_at, now):
            return GpuSweep(problem=last.problem, remedy=last.remedy), failures
        self._tried_at = now
        try:
            sweep = bounded_sweep(self._probe.read(now, running))
            sweep = replace(sweep, gpus=self._jumps.confirmed(sweep.gpus, now))
        except Exception as error:
            self._isolation.failed("GPU probe", error, now, FAULT_KINDS[0])
            sweep = GpuSweep(
                problem=f"Reading the GPUs failed: {error!r}.",
                remedy="The log has the details; it is tried again by itself.",
            )
        else:
            self._isolation.worked("GPU probe")
        failed = sweep.problem is not None and not sweep.gpus and self._probe.name == "nvml"
        return sweep, failures + 1 if failed else 0

    def _identities(
        self, sweep: GpuSweep, claims: Iterable[ClaimFact], now: datetime
    ) -> dict[int, ProcessIdentity]:
        """Of the processes on GPUs and of the first process of each job."""
        leaders = {claim.leader_pid for claim in claims if claim.leader_pid is not None}
        pids = {process.pid for process in sweep.processes} | leaders
        pids -= sweep.identities.keys()
        try:
            identities = {**self._machine.identities(pids), **sweep.identities}
        except Exception as error:
            self._isolation.failed("processes", error, now, FAULT_KINDS[0])
            return dict(sweep.identities)
        for pid, fault in getattr(self._machine, "process_faults", {}).items():
            self._isolation.failed(f"process {pid}", fault, now, FAULT_KINDS[0])
        self._isolation.worked("processes")
        return identities

    def _host(self, now: datetime) -> HostReading:
        try:
            reading = with_rates(bounded_host(self._machine.read(now)), self._last, now)
        except Exception as error:
            self._isolation.failed("host probe", error, now, FAULT_KINDS[0])
            return HostReading(name=self._machine.name)
        self._isolation.worked("host probe")
        return reading

    def _watched(self, now: datetime) -> bool:
        """Whether the last snapshot is recent enough that no GPU state was missed."""
        return self._last is not None and now - self._last.at <= UNWATCHED_AFTER

    def _before(self) -> dict[str, GpuReading]:
        """The GPUs of the previous snapshot, unless it is of another probe."""
        last = self._last
        gpus = last.gpus if last and last.probe == self._probe.name else ()
        return {gpu.uuid: gpu for gpu in gpus}

    def _comparable(self, host: HostReading) -> Snapshot | None:
        """The previous snapshot, if it is of the same probe and the same boot."""
        last = self._last
        same = last and last.probe == self._probe.name and last.host.boot_id == host.boot_id
        return last if same else None

    def _keeps_missing(self) -> bool:
        # A scenario reports its lost GPUs itself; missing ones belong to an older scenario.
        return self._probe.name == "nvml"

    def _changed(self, snapshot: Snapshot) -> set[str]:
        """UUIDs of the GPUs whose row changed in more than the measured values."""
        before = self._before()
        return {
            gpu.uuid
            for gpu in snapshot.gpus
            if gpu.uuid not in before or _lasting(gpu) != _lasting(before[gpu.uuid])
        }

    def _record_event(self, note: changes.Note, snapshot: Snapshot) -> None:
        since = snapshot.at - changes.FLOOD_WINDOW
        earlier = events.count(note.kind, gpu_uuid=note.gpu_uuid, owner=note.owner, since=since)
        if earlier >= changes.FLOOD_LIMIT:
            return
        events.add(
            note.kind,
            note.text,
            now=snapshot.at,
            severity=note.severity,
            host=snapshot.host.name,
            gpu_uuid=note.gpu_uuid,
            job_ref=note.job_ref,
            owner=note.owner,
            figures=note.figures,
        )


def build(guard: Guard) -> Sampler:
    """Build the sampler of this host from the settings."""
    config = settings.CONFIG
    limits = LimitsProbe(config.cpus, config.memory_gib)
    machine = HostProbe(config.node, [Path(settings.DATA)], limits=limits)
    return Sampler(guard, probe_from(config), machine, config.gpu_memory_gib)


# Release of ended jobs' GPU memory: updates claims and quarantines.


def look(
    snapshot: Snapshot, claims: Sequence[ClaimFact], closures: Sequence[ClosureFact]
) -> Cooling:
    """Judge the claims by a sweep with a fresh process list."""
    if not claims and not closures:
        return Cooling()
    return judge(snapshot.processes, snapshot.gpus, claims, closures, snapshot.at)


def apply(cooling: Cooling, snapshot: Snapshot, isolation: ItemIsolation) -> None:
    """Store the result and record events. The caller holds the sweep's transaction."""
    now = snapshot.at
    if cooling.started:
        snapshots.mark_claims_seen(cooling.started, now)
    if cooling.freed:
        snapshots.mark_claims_freed(cooling.freed, now)
    isolation.each(
        cooling.stuck,
        lambda closure: f"quarantine of {closure.gpu_uuid}",
        lambda closure: _close(closure, snapshot),
        now,
    )
    isolation.each(
        cooling.recovered,
        lambda uuid: f"end of the quarantine of {uuid}",
        lambda uuid: _reopen(uuid, snapshot),
        now,
    )


def _close(closure: ClosureFact, snapshot: Snapshot) -> None:
    host = snapshot.host.name
    if not gpu_closures.close(closure, host):
        return
    events.add(
        "GPU_QUARANTINED",
        f"{_name(closure.gpu_uuid, snapshot)} takes no new work. {closure.text}",
        now=snapshot.at,
        severity="warning",
        host=host,
        gpu_uuid=closure.gpu_uuid,
        job_ref=closure.job_ref,
    )


def _reopen(uuid: str, snapshot: Snapshot) -> None:
    if not gpu_closures.reopen([uuid], ClosureKind.QUARANTINED, snapshot.at):
        return
    text = f"{_name(uuid, snapshot)} has its memory back and takes work again."
    host = snapshot.host.name
    events.add("GPU_QUARANTINE_OVER", text, now=snapshot.at, host=host, gpu_uuid=uuid)


def _name(uuid: str, snapshot: Snapshot) -> str:
    return next((f"GPU {gpu.index}" for gpu in snapshot.gpus if gpu.uuid == uuid), "A GPU")


def watched(
    snapshot: Snapshot, before: Snapshot | None, policy: PresencePolicy
) -> tuple[Snapshot, list[Note]]:
    """The snapshot with the presence on each GPU, and the events to record."""
    previous = before.owners if before else ()
    owners = presence_detection.look(snapshot, previous, policy) if policy.enabled else ()
    came, gone = presence_detection.changes(previous, owners)
    notes = [
        _note_of_coming(
            owner, _gpu(owner, snapshot), presence_detection.others_on(owner, snapshot, policy)
        )
        for owner in came
    ]
    notes += [_note_of_going(owner, _gpu(owner, snapshot)) for owner in gone]
    return replace(snapshot, owners=owners), notes


def _gpu(owner: OwnerReading, snapshot: Snapshot) -> str:
    names = (f"GPU {gpu.index}" for gpu in snapshot.gpus if gpu.uuid == owner.gpu_uuid)
    return next(names, "a lost GPU")


def _note_of_coming(owner: OwnerReading, gpu: str, count: int) -> Note:
    return Note(
        kind="OWNER_PRESENT",
        text=f"Other GPU processes detected, evicting models: {owner.description} is on {gpu}.",
        severity="warning",
        gpu_uuid=owner.gpu_uuid,
        owner=owner.user or "",
        figures={"other_process_count": count},
    )


def _note_of_going(owner: OwnerReading, gpu: str) -> Note:
    text = f"{owner.description} has left {gpu}: jobs may start there again."
    return Note(kind="OWNER_GONE", text=text, gpu_uuid=owner.gpu_uuid, owner=owner.user or "")
