from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.policy.ledger import Holder, Split, covered, split

HOUR = 3600.0


def _holder(begin: float = 0, held: float = HOUR, used: float = 0, known: float = 1) -> Holder:
    """A process from `begin` on; used and known as parts of the held time."""
    return Holder([(begin, begin + held)], [], held, held * known, held * used)


def test_a_used_hour_is_used_and_the_rest_of_the_held_time_is_idle() -> None:
    whole, by_owner = split(HOUR, HOUR, None, {"alice": _holder(held=1800, used=0.5)})

    assert (whole.used, whole.idle, whole.free, whole.unknown) == (900, 900, 1800, 0)
    assert by_owner["alice"].held == 1800


def test_idle_time_belongs_to_the_one_who_does_not_compute() -> None:
    holders = {"alice": _holder(used=0.9), "bob": _holder(used=0)}

    _, by_owner = split(HOUR, HOUR, None, holders)

    assert by_owner["alice"].idle == 0
    assert by_owner["bob"].idle == pytest.approx(360)


def test_one_after_the_other_each_has_the_own_time() -> None:
    holders = {"alice": _holder(held=1800, used=1), "bob": _holder(1800, 1800, used=0)}

    _, by_owner = split(HOUR, HOUR, None, holders)

    assert by_owner["alice"].held == pytest.approx(1800)
    assert by_owner["bob"].idle == pytest.approx(1800)


def test_a_booking_without_a_process_is_booked_empty() -> None:
    whole, by_owner = split(HOUR, HOUR, None, {"alice": Holder([], [(0, HOUR)])})

    assert whole.empty == by_owner["alice"].empty == HOUR
    assert whole.free == 0


def test_a_booking_with_a_process_is_not_empty() -> None:
    holder = Holder([(600, HOUR)], [(0, HOUR)], 3000, 3000, 3000)

    whole, _ = split(HOUR, HOUR, None, {"alice": holder})

    assert (whole.used, whole.empty) == (pytest.approx(3000), pytest.approx(600))


def test_unmeasured_use_is_unknown_and_never_idle() -> None:
    whole, by_owner = split(HOUR, HOUR, None, {"alice": _holder(known=0)})

    assert (whole.idle, whole.unknown) == (0, HOUR)
    assert by_owner["alice"].unknown == HOUR


def test_time_without_readings_is_unknown_and_never_free() -> None:
    whole, _ = split(HOUR, 0, None, {})

    assert (whole.free, whole.unknown) == (0, HOUR)


def test_work_of_a_device_without_a_visible_process_is_unknown() -> None:
    whole, _ = split(HOUR, HOUR, 1200, {})

    assert (whole.free, whole.unknown) == (2400, 1200)


SECONDS = st.floats(0, HOUR)


@st.composite
def _holders(draw: st.DrawFn) -> dict[str | None, Holder]:
    found: dict[str | None, Holder] = {}
    for name in draw(st.lists(st.sampled_from(["a", "b", "c", None]), unique=True)):
        holder = Holder()
        for _ in range(draw(st.integers(0, 3))):
            begin = draw(SECONDS)
            held = draw(st.floats(0, HOUR - begin))
            holder.spans.append((begin, begin + held))
            holder.held_s += held
            holder.known_s += held * draw(st.floats(0, 1))
            holder.sm_s += held * draw(st.floats(0, 1))
        if draw(st.booleans()):
            holder.seen_s = draw(st.floats(holder.known_s, max(holder.known_s, holder.held_s)))
        for _ in range(draw(st.integers(0, 2))):
            begin = draw(SECONDS)
            holder.claims.append((begin, begin + draw(st.floats(0, HOUR - begin))))
        found[name] = holder
    return found


@given(_holders(), SECONDS, st.none() | SECONDS)
def test_all_parts_add_up_to_the_time_of_the_gpu(
    holders: dict[str | None, Holder], watched: float, busy: float | None
) -> None:
    whole, by_owner = split(HOUR, watched, busy, holders)

    assert _sum(whole) == pytest.approx(HOUR, rel=1e-3)
    for parts in (whole, *by_owner.values()):
        assert min(parts.used, parts.idle, parts.empty, parts.unknown, parts.free) >= -1e-6
    for name in ("used", "idle", "empty"):
        total = sum(getattr(parts, name) for parts in by_owner.values())
        assert total == pytest.approx(getattr(whole, name), abs=1e-6)


def _sum(parts: Split) -> float:
    return parts.used + parts.idle + parts.empty + parts.unknown + parts.free


@given(st.lists(st.tuples(SECONDS, SECONDS)))
def test_a_union_is_at_most_the_sum_and_at_least_the_longest(
    spans: list[tuple[float, float]],
) -> None:
    lengths = [max(0.0, end - begin) for begin, end in spans]

    assert max(lengths, default=0) - 1e-6 <= covered(spans) <= sum(lengths) + 1e-6


def test_uses_that_fill_the_whole_to_the_last_digit_leave_nothing_unknown() -> None:
    # Scaled to the whole, these three add up to more than it by a rounding error.
    uses = {"alice": 34.16, "bob": 30.79, "charlie": 10.28}
    holders = {owner: Holder([(0, 40.31)], [], 40.31, 40.31, used) for owner, used in uses.items()}
    whole, by_owner = split(40.31, 40.31, 40.31, holders)

    assert whole.unknown == 0
    assert sum(parts.used for parts in by_owner.values()) == pytest.approx(40.31)
