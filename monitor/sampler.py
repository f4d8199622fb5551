"""The sampler: once a second it looks at the host and its GPUs and writes down what it saw."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from django.conf import settings

from monitor import cooling, events, gpu_closing, policies, presence, store, tallies
from monitor.claims import ClaimKind
from monitor.gpu_states import IllegalGpuTransition
from monitor.ledger import Ledger
from monitor.policy import hangs, health, health_notes, missing, notes
from monitor.policy.attribution import attribute
from monitor.policy.cooling import Cooling, keep_jobs
from monitor.policy.health_policy import HealthPolicy
from monitor.policy.orphans import with_orphans
from monitor.policy.presence_policy import PresencePolicy
from monitor.policy.rates import with_rates
from monitor.policy.states import with_states
from monitor.probes import GpuProbe, ResumableProbe, probe_from
from monitor.probes.host import HostProbe
from monitor.probes.limits import LimitsProbe
from monitor.readings import (
    ClaimFact,
    GpuReading,
    GpuSweep,
    HostReading,
    ProcessIdentity,
    ProcessReading,
    Snapshot,
)
from monitor.stepping import Guard
from monitor.wake import wake

# After a longer hole nobody knows what a GPU did meanwhile.
UNWATCHED_AFTER = timedelta(seconds=10)
logger = logging.getLogger(__name__)
# What of a GPU stands in its row besides the measured values.
_lasting = attrgetter(
    "state", "problem", "index", "name", "pci_id", "memory_total_bytes", "power_limit_w",
    "compute_capability", "condition",
)  # fmt: skip


class Machine(Protocol):
    """What the sampler asks of a host probe."""

    name: str

    def open(self) -> None: ...
    def read(self, now: datetime) -> HostReading: ...
    def identities(self, pids: Collection[int]) -> dict[int, ProcessIdentity]: ...
    def close(self) -> None: ...


class Sampler:
    """A Step. What it must remember from tick to tick is in the newest snapshot."""

    def __init__(self, guard: Guard, probe: GpuProbe, machine: Machine) -> None:
        self._guard = guard
        self._probe = probe
        self._machine = machine
        self._last: Snapshot | None = None
        self._tried_at: datetime | None = None
        self._resumes_at: datetime | None = None
        self._fresh = True
        self._complained: set[str] = set()
        self._ledger = Ledger(machine.name, probe.name)

    def open(self) -> None:
        self._fresh = True
        # The probe opens itself at its first sweep, which may have to wait: see `hangs`.
        self._machine.open()

    def close(self) -> None:
        self._probe.close()
        self._machine.close()

    @property
    def asking(self) -> tuple[str, float] | None:
        """The call of the driver that is under way, and when it began (monotonic)."""
        return getattr(self._probe, "asking", None)

    def step(self, now: datetime) -> Snapshot:
        """Look once and write it down; the snapshot is what was seen."""
        if self._fresh:
            # Not in open(): the holder before us may have gone on sampling until now.
            self._go_on()
            self._resumes_at = self._after_hangs()
        last = self._last
        held = store.held_claims(self._machine.name)
        claims = [claim for claim in held if claim.kind is not ClaimKind.LOCK]
        closures = gpu_closing.on(self._machine.name)
        sweep, failures = self._sweep(now, [c for c in claims if c.until is None])
        processes = self._processes(sweep, claims)
        before = self._before()
        gpus = missing.complete(sweep, before, now) if self._keeps_missing() else sweep.gpus
        sweep = missing.explained(sweep, gpus)
        gpus = with_orphans(gpus, processes, before, now, sweep.is_fresh)
        host = self._host(now)
        in_force = policies.InForce()
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
            query_errors=sweep.query_errors + (last.query_errors if last else 0),
            init_failures=sweep.init_failures + (last.init_failures if last else 0),
            instances=sweep.instances,
            costs=sweep.costs,
            dropped=sweep.dropped + (last.dropped if last else 0),
        )
        if sweep.is_fresh:
            self._ledger.take(now, sweep, snapshot.gpus, processes)
        suspects = (*(last.processes if last else ()), *processes)
        told = health_notes.of_checkup(checkup, last, sweep.xids, suspects, claims)
        told = [*notes.of_sweep(last, snapshot, states.changes), *told]
        for fault in states.faults:
            self._complain("A GPU made a move that can't be", IllegalGpuTransition(fault))
        cooled = cooling.look(snapshot, claims, closures) if sweep.is_fresh else Cooling()
        snapshot, met = presence.watched(snapshot, last, in_force.of(PresencePolicy))
        return self._write(snapshot, [*told, *met], sweep, cooled)

    def _go_on(self) -> None:
        """Where the sampler before stopped."""
        self._last = store.newest(self._machine.name)
        self._ledger.resume(store.carried(self._machine.name))
        swept_at = self._ledger.swept_at
        if swept_at is not None and isinstance(self._probe, ResumableProbe):
            costs = self._last.costs if self._last else ()
            self._probe.resume(self._ledger.marks, swept_at, costs)

    def _processes(self, sweep: GpuSweep, claims: list[ClaimFact]) -> tuple[ProcessReading, ...]:
        """Those of this sweep; or as they were told last, between two looks at processes."""
        if sweep.is_fresh or self._last is None:
            found = attribute(sweep.processes, self._identities(sweep), claims)
            return keep_jobs(found, self._last.processes if self._last else (), claims)
        there = {(p.gpu_uuid, p.pid) for p in sweep.processes}
        return tuple(p for p in self._last.processes if (p.gpu_uuid, p.pid) in there)

    def _write(
        self, snapshot: Snapshot, told: Collection[notes.Note], sweep: GpuSweep, cooled: Cooling
    ) -> Snapshot:
        changed = None if self._fresh else self._changed(snapshot)
        with self._guard():
            snapshot = replace(snapshot, seq=self._next_seq())
            store.record(snapshot, changed, self._ledger.carry() if sweep.is_fresh else None)
            cooling.apply(cooled, snapshot)
            for note in told:
                self._tell(note, snapshot)
            for xid in sweep.xids:
                tallies.add_xid(xid)
            wake("live", str(snapshot.seq).encode())
        self._last, self._fresh = snapshot, False
        if sweep.is_fresh and self._ledger.is_due(snapshot.at):
            # After the wake-up: nobody who looks waits for it.
            with self._guard():
                store.carry(self._machine.name, self._ledger.write())
            self._ledger.written(snapshot.at)
        return snapshot

    def _next_seq(self) -> int:
        """One more than the last; nobody else has written one since this holder's first."""
        if self._last is None or self._fresh:
            return store.next_seq(self._machine.name)
        return self._last.seq + 1

    def _sweep(self, now: datetime, claims: list[ClaimFact]) -> tuple[GpuSweep, int]:
        """What the probe saw, and how many sweeps in a row have seen nothing by a fault."""
        last = self._last
        failures = last.failures if last and last.probe == self._probe.name else 0
        if self._resumes_at is not None and now < self._resumes_at:
            return hangs.paused(), max(1, failures)
        if last is not None and not notes.may_sweep(failures, self._tried_at, now):
            return GpuSweep(problem=last.problem, remedy=last.remedy), failures
        self._tried_at = now
        try:
            sweep = self._probe.read(now, claims)
        except Exception as error:
            self._complain("The GPU probe failed", error)
            sweep = GpuSweep(
                problem=f"Reading the GPUs failed: {error!r}.",
                remedy="The log has the details; it is tried again by itself.",
            )
        failed = sweep.problem is not None and not sweep.gpus and self._probe.name == "nvml"
        return sweep, failures + 1 if failed else 0

    def _after_hangs(self) -> datetime | None:
        """When the GPUs may be read, if calls to their driver hung lately."""
        if self._probe.name != "nvml":
            return None
        found = events.recent(hangs.KEPT, kind="NVML_HUNG", host=self._machine.name)
        return hangs.resumes_at([event.at for event in found])

    def _identities(self, sweep: GpuSweep) -> dict[int, ProcessIdentity]:
        pids = {process.pid for process in sweep.processes} - sweep.identities.keys()
        try:
            return {**self._machine.identities(pids), **sweep.identities}
        except Exception as error:
            self._complain("Looking up processes failed", error)
            return dict(sweep.identities)

    def _host(self, now: datetime) -> HostReading:
        try:
            return with_rates(self._machine.read(now), self._last, now)
        except Exception as error:
            self._complain("The host probe failed", error)
            return HostReading(name=self._machine.name)

    def _watched(self, now: datetime) -> bool:
        """Whether somebody looked so lately that no state can have been missed."""
        return self._last is not None and now - self._last.at <= UNWATCHED_AFTER

    def _before(self) -> dict[str, GpuReading]:
        """The GPUs of the snapshot before this one, unless another probe saw them."""
        last = self._last
        known = last.gpus if last and last.probe == self._probe.name else ()
        return {gpu.uuid: gpu for gpu in known}

    def _comparable(self, host: HostReading) -> Snapshot | None:
        """The snapshot before this one, if it was of the same probe and since the last restart."""
        last = self._last
        same = last and last.probe == self._probe.name and last.host.boot_id == host.boot_id
        return last if same else None

    def _keeps_missing(self) -> bool:
        # A scenario says itself which of its GPUs are lost; others belong to an older scenario.
        return self._probe.name == "nvml"

    def _changed(self, snapshot: Snapshot) -> set[str]:
        """GPUs of which something besides the measured values changed."""
        before = self._before()
        return {
            gpu.uuid
            for gpu in snapshot.gpus
            if gpu.uuid not in before or _lasting(gpu) != _lasting(before[gpu.uuid])
        }

    def _tell(self, note: notes.Note, snapshot: Snapshot) -> None:
        since = snapshot.at - notes.FLOOD_WINDOW
        told = events.count(note.kind, gpu_uuid=note.gpu_uuid, owner=note.owner, since=since)
        if told >= notes.FLOOD_LIMIT:
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
        )

    def _complain(self, what: str, error: Exception) -> None:
        """Once per fault and slice: a sweep a second must not fill the log."""
        if repr(error) not in self._complained:
            self._complained.add(repr(error))
            illegal = {"kind": "GPU_STATE_FAULT"} if isinstance(error, IllegalGpuTransition) else {}
            logger.error("%s", what, exc_info=error, extra={"kind": "PROBE_FAULT"} | illegal)


def build(guard: Guard) -> Sampler:
    """The sampler of this host, as the settings want it."""
    config = settings.CONFIG
    limits = LimitsProbe(config.cpus, config.memory_gib)
    machine = HostProbe(config.node, [Path(settings.DATA)], limits=limits)
    return Sampler(guard, probe_from(config), machine)
