"""Rules on bookings: more used than booked, less used than booked, and use without a booking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.facts.claims import ASLEEP, ClaimKind
from monitor.facts.formats import GIB
from monitor.incidents.facts import CLAIMED_EMPTY, EXTRA_GPUS, OVER_MEMORY, UNCLAIMED, UNUSED_GPUS
from monitor.incidents.policy.findings import (
    EmptyBooking,
    Finding,
    Group,
    RuleInput,
    key_of,
    main_process,
)
from monitor.incidents.policy.thresholds import BookingPolicy, GpuTimePolicy
from monitor.incidents.rules.gpu_time import held_bytes, is_covered


def claimed_empty(
    inputs: RuleInput, policy: BookingPolicy, hogs: GpuTimePolicy
) -> Iterator[Finding]:
    """A job holds GPUs on which it has no process."""
    if not policy.empty_on:
        return
    for ref, parts in inputs.jobs.items():
        checked = [_empty(part, ref, inputs, policy.empty_minutes * 60, hogs) for part in parts]
        empty_parts = [empty for empty in checked if empty is not None]
        # A job with a process on one of the GPUs, or with unknown processes, is not reported.
        if len(empty_parts) < len(parts):
            continue
        begin, coverage = max(e.since_t for e in empty_parts), min(e.coverage for e in empty_parts)
        yield _of_job(CLAIMED_EMPTY, ref, parts, begin, coverage=coverage)


def _empty(
    part: Group, ref: str, inputs: RuleInput, seconds: float, hogs: GpuTimePolicy
) -> EmptyBooking | None:
    """The booking if it has had no process for `seconds` with sufficient coverage; else None."""
    if part.claim is not None and part.claim.phase == ASLEEP:
        # A sleeping model has left its GPU on purpose.
        return None
    booking = inputs.empty.get((ref, part.gpu.uuid))
    if booking is None or inputs.t - booking.since_t < seconds:
        return None
    return booking if 100 * booking.coverage >= hogs.coverage_pct else None


def unused_gpus(inputs: RuleInput, policy: BookingPolicy, hogs: GpuTimePolicy) -> Iterator[Finding]:
    """A job with several GPUs uses some of them, and others not."""
    if not policy.unused_on:
        return
    seconds = policy.unused_minutes * 60
    for ref, parts in inputs.jobs.items():
        if len(parts) < 2:
            continue
        idle = {part.key: _unused(part, ref, inputs, seconds, policy, hogs) for part in parts}
        unused = [part for part in parts if idle[part.key] is not None]
        used = [part for part in parts if _is_used(part, seconds, policy)]
        if unused and used:
            pct = max(part.series.last(seconds).pct or 0.0 for part in unused)
            coverages = [coverage for coverage in idle.values() if coverage is not None]
            yield _of_job(
                UNUSED_GPUS, ref, unused, inputs.t - seconds, pct=pct, coverage=min(coverages)
            )


def _unused(
    part: Group,
    ref: str,
    inputs: RuleInput,
    seconds: float,
    policy: BookingPolicy,
    hogs: GpuTimePolicy,
) -> float | None:
    """The coverage (0..1) of the time in which the GPU was unused. None: it is used, or unknown."""
    if not part.processes:
        empty = _empty(part, ref, inputs, seconds, hogs)
        return empty.coverage if empty else None
    used = part.series.last(seconds)
    if used.pct is None or part.series.span_s < seconds or not is_covered(used, hogs):
        return None
    return used.coverage if used.pct < policy.unused_pct else None


def _is_used(part: Group, seconds: float, policy: BookingPolicy) -> bool:
    pct = part.series.last(seconds).pct
    return bool(part.processes) and pct is not None and pct >= policy.unused_pct


def over_memory(inputs: RuleInput, policy: BookingPolicy, hogs: GpuTimePolicy) -> Iterator[Finding]:
    """A job that shares its GPU holds more memory there than it requested."""
    if not policy.over_on:
        return
    seconds = policy.over_minutes * 60
    for ref, parts in inputs.jobs.items():
        for part in parts:
            claim, now = part.claim, part.memory_bytes
            if claim is None or claim.exclusive or not claim.memory_bytes or now is None:
                continue
            used = part.series.last(seconds)
            least = held_bytes(used, now, hogs)
            if part.series.span_s < seconds or least is None or least <= claim.memory_bytes:
                continue
            margin = 1 + policy.over_margin_pct / 100
            yield _of_job(
                OVER_MEMORY,
                ref,
                [part],
                inputs.t - seconds,
                opens=least > claim.memory_bytes * margin,
                coverage=used.memory_coverage,
                pct=100 * now / claim.memory_bytes,
                memory_bytes=now,
                booked_bytes=claim.memory_bytes,
                key=f"{part.gpu.uuid}|job {ref}",
            )


def extra_gpus(inputs: RuleInput, policy: BookingPolicy, hogs: GpuTimePolicy) -> Iterator[Finding]:
    """A process of a job works on a GPU that the job has not booked."""
    if not policy.over_on:
        return
    seconds = policy.over_minutes * 60
    for group in inputs.strays:
        for process in group.processes:
            series = inputs.series.get(key_of(process))
            if not process.job_ref or series is None or series.span_s < seconds:
                continue
            used = series.last(seconds)
            big = (held_bytes(used, process.memory_bytes, hogs) or 0.0) >= policy.over_gib * GIB
            works = is_covered(used, hogs) and (used.pct or 0.0) >= policy.unused_pct
            if big or works:
                yield Finding(
                    rule=EXTRA_GPUS,
                    key=f"{group.gpu.uuid}|{process.pid}-{process.start_ticks or 0}",
                    since_t=series.begin,
                    gpu=group.gpu,
                    process=process,
                    user=process.user,
                    container=process.container,
                    job_ref=process.job_ref,
                    job_owner=process.job_owner,
                    pct=used.pct,
                    peak_pct=used.pct,
                    coverage=used.coverage if works else used.memory_coverage,
                    memory_bytes=process.memory_bytes,
                )


def unclaimed(inputs: RuleInput, policy: BookingPolicy, hogs: GpuTimePolicy) -> Iterator[Finding]:
    """A user uses a GPU without a job, although all use must be booked."""
    if not policy.unclaimed_on:
        return
    seconds = policy.unclaimed_minutes * 60
    for group in inputs.groups:
        if group.series.span_s < seconds or any(p.job_ref for p in group.processes):
            continue
        used, whole = group.series.last(seconds), group.series.over(0.0)
        minutes = whole.sm_s / 60
        size = group.memory_bytes
        big = (held_bytes(used, size, hogs) or 0.0) > policy.unclaimed_gib * GIB
        much = is_covered(whole, hogs) and minutes > policy.unclaimed_gpu_minutes
        if not big and not much:
            continue
        yield Finding(
            rule=UNCLAIMED,
            key=group.key,
            since_t=group.series.begin,
            gpu=group.gpu,
            process=main_process(group, inputs, seconds),
            user=group.user,
            container=group.container,
            pct=used.pct,
            peak_pct=used.pct,
            coverage=whole.coverage if much else used.memory_coverage,
            memory_bytes=size,
            gpu_minutes=minutes,
            processes=len(group.processes),
        )


def _of_job(
    rule: str,
    ref: str,
    parts: Sequence[Group],
    since_t: float,
    *,
    opens: bool = True,
    pct: float | None = None,
    coverage: float | None = None,
    memory_bytes: int | None = None,
    booked_bytes: int | None = None,
    key: str = "",
) -> Finding:
    first = min(parts, key=lambda part: part.gpu.index)
    owner = next((part.claim.owner for part in parts if part.claim), None)
    claim = first.claim
    model = claim.task if claim is not None and claim.kind is ClaimKind.LLM else ""
    processes = [process for part in parts for process in part.processes]
    return Finding(
        rule=rule,
        key=key or f"job {ref}",
        since_t=since_t,
        opens=opens,
        gpu=first.gpu,
        process=processes[0] if processes else None,
        job_ref=ref,
        job_owner=owner,
        pct=pct,
        peak_pct=pct,
        coverage=coverage,
        memory_bytes=memory_bytes,
        booked_bytes=booked_bytes,
        processes=len(processes),
        gpus=tuple(sorted(part.gpu.index for part in parts)),
        model=model,
    )
