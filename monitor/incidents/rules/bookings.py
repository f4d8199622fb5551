"""Rules on bookings: more used than booked, less used than booked, and use without a booking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.facts.claims import ASLEEP, ClaimKind
from monitor.facts.formats import GIB
from monitor.facts.incidents import CLAIMED_EMPTY, EXTRA_GPUS, OVER_MEMORY, UNCLAIMED, UNUSED_GPUS
from monitor.incidents.policy.findings import (
    COVERAGE_PCT,
    BookingPolicy,
    EmptyBooking,
    Finding,
    Group,
    RuleInput,
    key_of,
    main_process,
)
from monitor.incidents.rules.processes import held_bytes, is_covered

# Minutes without a process of the holder: loading data and compiling take less.
EMPTY_MINUTES = 15.0
# A GPU of a job with several GPUs is unused below this mean use in %, over this time.
UNUSED_MINUTES, UNUSED_PCT = 30.0, 2.0
# Use beyond a booking counts after this time, above this tolerance in % of the booked memory.
OVER_MINUTES, OVER_MARGIN_PCT = 5.0, 10.0
# GiB on a GPU that is not booked: less is driver overhead or idle.
OVER_GIB = 1.0
# Use outside the queue counts after this time, with this memory or with these GPU-minutes of the
# last two hours.
UNCLAIMED_MINUTES, UNCLAIMED_GIB, UNCLAIMED_GPU_MINUTES = 10.0, 1.0, 30.0


def claimed_empty(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job holds GPUs on which it has no process."""
    if not policy.empty_on:
        return
    for ref, parts in inputs.jobs.items():
        checked = [_empty(part, ref, inputs, EMPTY_MINUTES * 60) for part in parts]
        empty_parts = [empty for empty in checked if empty is not None]
        # A job with a process on one of the GPUs, or with unknown processes, is not reported.
        if len(empty_parts) < len(parts):
            continue
        begin, coverage = max(e.since_t for e in empty_parts), min(e.coverage for e in empty_parts)
        yield _of_job(CLAIMED_EMPTY, ref, parts, begin, coverage=coverage)


def _empty(part: Group, ref: str, inputs: RuleInput, seconds: float) -> EmptyBooking | None:
    """The booking if it has had no process for `seconds` with sufficient coverage; else None."""
    if part.claim is not None and part.claim.phase == ASLEEP:
        # A sleeping model has left its GPU on purpose.
        return None
    booking = inputs.empty.get((ref, part.gpu.uuid))
    if booking is None or inputs.t - booking.since_t < seconds:
        return None
    return booking if 100 * booking.coverage >= COVERAGE_PCT else None


def unused_gpus(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job with several GPUs uses some of them, and others not."""
    if not policy.unused_on:
        return
    seconds = UNUSED_MINUTES * 60
    for ref, parts in inputs.jobs.items():
        if len(parts) < 2:
            continue
        idle = {part.key: _unused(part, ref, inputs, seconds) for part in parts}
        unused = [part for part in parts if idle[part.key] is not None]
        used = [part for part in parts if _is_used(part, seconds)]
        if unused and used:
            pct = max(part.series.last(seconds).pct or 0.0 for part in unused)
            coverages = [coverage for coverage in idle.values() if coverage is not None]
            yield _of_job(
                UNUSED_GPUS, ref, unused, inputs.t - seconds, pct=pct, coverage=min(coverages)
            )


def _unused(part: Group, ref: str, inputs: RuleInput, seconds: float) -> float | None:
    """The coverage (0..1) of the time in which the GPU was unused. None: it is used, or unknown."""
    if not part.processes:
        empty = _empty(part, ref, inputs, seconds)
        return empty.coverage if empty else None
    used = part.series.last(seconds)
    if used.pct is None or part.series.span_s < seconds or not is_covered(used):
        return None
    return used.coverage if used.pct < UNUSED_PCT else None


def _is_used(part: Group, seconds: float) -> bool:
    pct = part.series.last(seconds).pct
    return bool(part.processes) and pct is not None and pct >= UNUSED_PCT


def over_memory(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job that shares its GPU holds more memory there than it requested."""
    if not policy.over_on:
        return
    seconds = OVER_MINUTES * 60
    for ref, parts in inputs.jobs.items():
        for part in parts:
            claim, now = part.claim, part.memory_bytes
            if claim is None or claim.exclusive or not claim.memory_bytes or now is None:
                continue
            used = part.series.last(seconds)
            least = held_bytes(used, now)
            if part.series.span_s < seconds or least is None or least <= claim.memory_bytes:
                continue
            margin = 1 + OVER_MARGIN_PCT / 100
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


def extra_gpus(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A process of a job works on a GPU that the job has not booked."""
    if not policy.over_on:
        return
    seconds = OVER_MINUTES * 60
    for group in inputs.strays:
        for process in group.processes:
            series = inputs.series.get(key_of(process))
            if not process.job_ref or series is None or series.span_s < seconds:
                continue
            used = series.last(seconds)
            big = (held_bytes(used, process.memory_bytes) or 0.0) >= OVER_GIB * GIB
            works = is_covered(used) and (used.pct or 0.0) >= UNUSED_PCT
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


def unclaimed(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A user uses a GPU without a job, although all use must be booked."""
    if not policy.unclaimed_on:
        return
    seconds = UNCLAIMED_MINUTES * 60
    for group in inputs.groups:
        if group.series.span_s < seconds or any(p.job_ref for p in group.processes):
            continue
        used, whole = group.series.last(seconds), group.series.over(0.0)
        minutes = whole.sm_s / 60
        size = group.memory_bytes
        big = (held_bytes(used, size) or 0.0) > UNCLAIMED_GIB * GIB
        much = is_covered(whole) and minutes > UNCLAIMED_GPU_MINUTES
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
