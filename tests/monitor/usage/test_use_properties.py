"""Properties of attributed use that hold with any answer of a driver."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.facts.readings import EndedProcess, GpuMark, Health, UseSource
from monitor.usage.policy import accounting
from monitor.usage.policy.accounting import ProcessUses, UsageAmounts, UsePolicy
from monitor.usage.policy.attribution import AccountingSample, Evidence, UseSample, count, judge
from tests.builders import GIB, NOW, gpu, gpu_uuid, process

PIDS = st.integers(1, 5)
STAMPS = st.integers(0, 20_000_000) | st.integers(0, 2**63)
PERCENT = st.integers(-5, 130) | st.sampled_from([2_147_483_632, 255, 4_294_967_295])
SAMPLES = st.lists(st.builds(UseSample, PIDS, STAMPS, PERCENT), max_size=12)
LISTED = st.frozensets(PIDS)
SECONDS = st.floats(0.1, 30)
ACCOUNTS = st.dictionaries(
    PIDS,
    st.builds(
        AccountingSample,
        start_us=st.integers(0, 3),
        samples=st.integers(0, 100),
        sum_pct=st.integers(0, 10**7),
        lived_s=st.floats(0, 100),
    ),
)
EVIDENCE = st.builds(
    Evidence,
    accounts=st.none() | ACCOUNTS,
    samples=st.none() | SAMPLES,
    device_s=st.none() | st.floats(0, 2),
)


@given(st.lists(st.tuples(SAMPLES, LISTED, SECONDS), max_size=8))
def test_the_cursor_only_moves_forward_or_is_reset(
    sweeps: list[tuple[list[UseSample], frozenset[int], float]],
) -> None:
    mark = GpuMark()
    for samples, listed, passed in sweeps:
        counted = count(samples, mark, passed, listed)
        if mark.cursor_us is not None and counted.mark.cursor_us is not None:
            assert counted.mark.cursor_us >= mark.cursor_us
        mark = counted.mark


@given(SAMPLES, LISTED, SECONDS)
def test_asking_again_counts_nothing_twice(
    samples: list[UseSample], listed: frozenset[int], passed: float
) -> None:
    first = count(samples, GpuMark(cursor_us=1), passed, listed)
    again = count(samples, first.mark, passed, listed)
    new = {s.t_us for s in samples if s.t_us > (first.mark.cursor_us or 0)}
    assert not again.busy_s or new


@given(st.lists(st.tuples(EVIDENCE, LISTED), min_size=1, max_size=10))
def test_processes_never_did_more_than_the_gpu(
    sweeps: list[tuple[Evidence, frozenset[int]]],
) -> None:
    mark, before, given_s, device_s = GpuMark(), frozenset[int](), 0.0, 0.0
    for evidence, listed in sweeps:
        judged = judge("GPU-a", listed, before, evidence, mark, 2.0)
        mark, before = judged.mark, listed
        given_s += sum(judged.busy_s.values()) + sum(e.busy_s for e in judged.ended)
        device_s += 2.0 if evidence.device_s is None else evidence.device_s
        assert judged.busy_s.keys() <= listed
        assert all(seconds >= 0 for seconds in judged.busy_s.values())
    assert given_s <= device_s + 1e-6


@given(LISTED, st.none() | st.floats(0, 2))
def test_a_missing_answer_never_makes_a_process_idle(
    listed: frozenset[int], device_s: float | None
) -> None:
    judged = judge("GPU-a", listed, listed, Evidence(device_s=device_s), GpuMark(), 2.0)
    assert set(judged.source.values()) <= {UseSource.DEVICE}
    assert len(judged.busy_s) <= 1


SHARES = st.none() | st.floats(0, 100)
LOOKS = st.lists(
    st.tuples(
        st.floats(0.2, 12),
        st.dictionaries(st.tuples(PIDS, st.integers(0, 1)), SHARES, max_size=6),
        st.sampled_from([Health.OK, Health.OK, Health.OK, Health.LOST]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(LOOKS, st.integers(0, 24))
def test_amounts_are_conserved(
    looks: list[tuple[float, dict[tuple[int, int], float | None], Health]], cut: int
) -> None:
    uses, now, done, minutes = ProcessUses(), NOW, {}, []
    wall = 0.0
    for number, (passed, shares, health) in enumerate(looks):
        now += timedelta(seconds=passed)
        wall += passed
        total = sum(share or 0 for share in shares.values())
        scale = min(1.0, 100 / total) if total else 1.0
        seen = [
            process(
                pid,
                start_ticks=start,
                created_at=NOW,
                memory_bytes=GIB,
                sm_pct=None if share is None else share * scale,
            )
            for (pid, start), share in {(p, s): v for (p, s), v in shares.items()}.items()
        ]
        once = list({p.pid: p for p in seen}.values())
        uses.take(now, [gpu(0, health=health)], once, {})
        if number == cut:
            carried = accounting.loads(accounting.dumps("x", uses, {}), "x", UsePolicy())
            assert carried is not None
            assert carried[0] == uses
            uses = carried[0]
        done |= {id(use): use for use in (*uses.ended, *uses.open.values())}
        minutes += [(m.use, m.t, m.amounts) for m in uses.minutes]
        if number != cut:
            done |= {id(use): use for use in uses.ended}
        uses.taken()
    everyone = [*uses.open.values(), *(u for u in done.values() if u.ended_at)]
    assert sum(use.total.sm_s for use in everyone) <= wall * (1 + 1e-9) + 1e-6
    for use in everyone:
        amounts = use.total
        assert 0 <= amounts.sm_s <= amounts.known_s + 1e-6
        assert amounts.known_s <= amounts.held_s + 1e-6 <= wall + 1e-5
        assert amounts.memory_byte_s == pytest.approx(GIB * amounts.memory_known_s)


@given(LOOKS)
@settings(max_examples=60)
def test_minutes_add_up_to_the_whole(
    looks: list[tuple[float, dict[tuple[int, int], float | None], Health]],
) -> None:
    uses, now = ProcessUses(), NOW
    for passed, shares, health in looks:
        now += timedelta(seconds=passed)
        seen = {pid: process(pid, start_ticks=1, sm_pct=s) for (pid, _), s in shares.items()}
        uses.take(now, [gpu(0, health=health)], list(seen.values()), {})
    everyone = [*uses.open.values(), *uses.ended]
    for use in everyone:
        parts = [m.amounts for m in uses.minutes if m.use is use] + [use.minute]
        times = [m.t for m in uses.minutes if m.use is use]
        assert len(times) == len(set(times))
        whole = UsageAmounts()
        for part in parts:
            whole.add(part)
            assert part.held_s <= 60 + 1e-6
        for name in ("sm_s", "held_s", "known_s", "memory_byte_s"):
            assert getattr(whole, name) == pytest.approx(getattr(use.total, name))


@given(st.lists(st.none() | st.floats(0, 100), max_size=20))
def test_unknown_is_never_counted_as_known(shares: list[float | None]) -> None:
    uses = ProcessUses()
    for number, share in enumerate(shares):
        uses.take(
            NOW + timedelta(seconds=2 * number),
            [gpu(0)],
            [process(1, sm_pct=share, created_at=NOW - timedelta(hours=1))],
            {},
        )
    if shares:
        known = sum(2 for share in shares[1:] if share is not None)
        assert uses.open[gpu_uuid(0), 1].total.known_s == known


def test_a_pid_on_two_gpus_is_two_uses() -> None:
    uses = ProcessUses()
    for second in (0, 2, 4):
        both = [process(1, on=index, sm_pct=50.0) for index in (0, 1)]
        uses.take(NOW + timedelta(seconds=second), [gpu(0), gpu(1)], both, {})
    assert [use.total.sm_s for use in uses.open.values()] == [2, 2]


def test_a_clock_that_is_set_back_adds_no_time() -> None:
    uses = ProcessUses()
    for second in (0, 2, -100, -98):
        uses.take(NOW + timedelta(seconds=second), [gpu(0)], [process(1)], {})
    assert uses.open[gpu_uuid(0), 1].total.held_s == 4


def test_a_process_that_ended_unseen_has_an_unknown_owner() -> None:
    uses = ProcessUses()
    uses.take(NOW, [gpu(0)], [], {})
    ended = EndedProcess(
        gpu_uuid=gpu_uuid(0), pid=7, busy_s=0.5, source=UseSource.ACCOUNTING, lived_s=1.0
    )
    uses.take(NOW + timedelta(seconds=2), [gpu(0)], [], {}, [ended])
    uses.take(NOW + timedelta(seconds=4), [gpu(0)], [], {})
    (use,) = uses.ended
    assert (use.user, use.total.sm_s, use.total.held_s) == (None, 0.5, 1.0)


def test_unwatched_time_lowers_the_coverage() -> None:
    """A process at 50 % for 600 s, of which 186 s are not watched."""
    uses = ProcessUses()
    for second in range(0, 601, 2):
        if second % 200 not in range(100, 160):
            now = NOW + timedelta(seconds=second)
            busy = {(gpu_uuid(0), 1): 1.0} if second else {}
            uses.take(now, [gpu(0)], [process(1)], busy)
    total = uses.open[gpu_uuid(0), 1].total
    assert (total.held_s, total.known_s) == (600, 414)
    assert total.memory_known_s == 414


def test_the_minutes_of_an_unwatched_time_hold_no_memory_and_no_peak() -> None:
    uses = ProcessUses()
    for second in (0, 2, 302, 304):
        uses.take(NOW + timedelta(seconds=second), [gpu(0)], [process(1)], {})
    minutes = {m.t - int(NOW.timestamp()): m.amounts for m in uses.minutes}
    assert [amounts.held_s for amounts in minutes.values()] == pytest.approx([60] * 5)
    assert minutes[120].known_s == minutes[120].memory_known_s == 0
    assert minutes[120].peak_memory_bytes is None


def test_a_state_of_another_probe_or_version_is_left_without_an_error() -> None:
    earlier = '{"version": 1, "probe": "x", "names": [], "uses": [], "open": 0}'
    empty = accounting.dumps("x", ProcessUses(policy=UsePolicy()), {})

    assert accounting.loads(empty, "x", UsePolicy()) is not None
    assert [accounting.loads(text, "x", UsePolicy()) for text in ("", earlier)] == [None, None]
    assert accounting.loads(empty, "y", UsePolicy()) is None
    with pytest.raises(ValueError):
        accounting.loads("{", "x", UsePolicy())
