"""Placements beside foreign processes, compared with those of the PyPI package gpusched.

For jobs that declare their memory both must choose the same GPUs. They differ, and are meant to:
* a job that declares nothing gets the emptiest GPU without another of our jobs, where gpusched
  wants one that nobody uses (below 200 MiB): so we place whatever it places, and more;
* gpusched's exclusive mode is one of the whole scheduler, not of a job, and allows processes of
  others beside it: it is not compared;
* how busy a GPU is does not matter to it: all are quiet here;
* our heavy starts wait for each other (Ramping), and unhealthy GPUs, models, shares, promises and
  order are unknown to it: they are left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.readings import ProcessReading
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, Slot
from scheduler.queue.planner import capacity, placement
from scheduler.queue.planner.capacity import CapacityContext
from tests.builders import NOW, claim, gpu, process, snapshot

allocation: ModuleType = pytest.importorskip("gpusched.allocation")
backend: ModuleType = pytest.importorskip("gpusched.backend")
jobspec: ModuleType = pytest.importorskip("gpusched.jobspec")

MIB = 1024**2
MARGIN_MIB = 512
sizes = st.sampled_from([0, 100, 150, 1000, 5000, 7000, 12000, 20000])


@dataclass(frozen=True)
class Use:
    """A process on a GPU: ours with what it declared (None = nothing), or a foreign one."""

    on: int
    now_mib: int
    peak_mib: int
    ours: bool
    declared_mib: int | None


uses = st.builds(
    Use,
    on=st.integers(0, 2),
    now_mib=sizes,
    peak_mib=sizes,
    ours=st.booleans(),
    declared_mib=st.none() | st.sampled_from([2000, 6000, 10000]),
).map(
    lambda use: Use(use.on, use.now_mib, max(use.now_mib, use.peak_mib), use.ours, use.declared_mib)
)
totals = st.lists(st.sampled_from([16384, 24576, 40960]), min_size=3, max_size=3)


def _slots(total_mib: list[int], there: list[Use]) -> tuple[Slot, ...]:
    """As gpucoord sees it."""
    processes: list[ProcessReading] = []
    claims: list[ClaimFact] = []
    peaks: dict[tuple[str, int, int | None], int] = {}
    for number, use in enumerate(there, start=1):
        first = process(
            number,
            on=use.on,
            memory_bytes=use.now_mib * MIB,
            job_ref=str(number) if use.ours else None,
        )
        processes.append(first)
        peaks[first.gpu_uuid, first.pid, first.start_ticks] = use.peak_mib * MIB
        if use.ours:
            declared = None if use.declared_mib is None else use.declared_mib * MIB
            since = NOW - timedelta(hours=1)
            claims.append(claim(str(number), on=use.on, memory_bytes=declared, since=since))
    used = [sum(use.now_mib for use in there if use.on == at) for at in range(3)]
    readings = [
        gpu(at, memory_total_bytes=total * MIB, memory_used_bytes=used[at] * MIB)
        for at, total in enumerate(total_mib)
    ]
    return capacity.slots(
        snapshot(readings, processes),
        claims,
        PlanPolicy(margin_bytes=MARGIN_MIB * MIB),
        NOW,
        host="gpubox",
        context=CapacityContext(peaks=peaks),
    ).gpus


def _ours(request: Requirement, slots: tuple[Slot, ...]) -> list[int] | None:
    quiet = [replace(slot, use_pct=0.0, heavy_bytes=None) for slot in slots]
    chosen = placement.choose(request, quiet, PlanPolicy(margin_bytes=MARGIN_MIB * MIB))
    return None if chosen is None else sorted(slot.index for slot in chosen)


def _theirs(vram_mib: int | None, gpus: int, total_mib: list[int], there: list[Use]) -> object:
    used = [sum(use.now_mib for use in there if use.on == at) for at in range(3)]
    gpu_snapshot = backend.GpuSnapshot(
        gpus={
            at: backend.GpuStat(index=at, total_mib=total, used_mib=used[at])
            for at, total in enumerate(total_mib)
        }
    )
    occupants = [
        allocation.Occupant(
            (use.on,), use.declared_mib, {use.on: use.now_mib}, {use.on: use.peak_mib}
        )
        for use in there
        if use.ours
    ]
    outside = [[use for use in there if use.on == at and not use.ours] for at in range(3)]
    external = {
        at: max(sum(u.now_mib for u in here), ceil(sum(u.peak_mib for u in here) * 1.1 - 1e-6))
        for at, here in enumerate(outside)
    }
    return allocation.find_allocation(
        jobspec.JobSpec(index=1, command="true", vram_mib=vram_mib, n_gpus=gpus),
        gpu_snapshot,
        occupants,
        {0, 1, 2},
        allocation.AllocOptions(margin_mib=MARGIN_MIB),
        external,
    )


@settings(max_examples=60)
@given(
    totals,
    st.lists(uses, max_size=6),
    st.sampled_from([1000, 4000, 9000, 15000, 30000]),
    st.integers(1, 3),
)
def test_a_job_that_declares_its_memory_gets_the_gpus_that_gpusched_gives_it(
    total_mib: list[int], there: list[Use], wants_mib: int, gpus: int
) -> None:
    request = Requirement(gpus=gpus, memory_bytes=wants_mib * MIB)

    assert _ours(request, _slots(total_mib, there)) == _theirs(wants_mib, gpus, total_mib, there)


@settings(max_examples=30)
@given(totals, st.lists(uses, max_size=6), st.integers(1, 3))
def test_whatever_gpusched_places_that_declares_nothing_is_placed(
    total_mib: list[int], there: list[Use], gpus: int
) -> None:
    theirs = _theirs(None, gpus, total_mib, there)

    assert theirs is None or _ours(Requirement(gpus=gpus), _slots(total_mib, there)) is not None
