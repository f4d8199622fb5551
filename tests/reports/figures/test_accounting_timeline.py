"""Each part of a GPU's time against an exact timeline; the accounting has only its sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.figures.policy.ledger import Holder, Split, split

LENGTH = 120
NAMES = ("used", "idle", "empty", "unknown", "free")


@dataclass
class Presence:
    """One owner. working, dark: seconds with a process that computes, and with unknown use."""

    there: range = range(0)
    working: set[int] = field(default_factory=set)
    dark: set[int] = field(default_factory=set)
    booked: range = range(0)

    def holder(self, watched: set[int]) -> Holder:
        """The sums that rows hold of it."""
        seen = set(self.there) & watched
        known = seen - self.dark
        spans = [(self.there.start, self.there.stop)] if self.there else []
        claims = [(self.booked.start, self.booked.stop)] if self.booked else []
        return Holder(
            [(float(begin), float(end)) for begin, end in spans],
            [(float(begin), float(end)) for begin, end in claims],
            held_s=len(self.there),
            seen_s=len(seen),
            known_s=len(known),
            sm_s=len(known & self.working),
        )


def walked(watched: set[int], owners: dict[str | None, Presence]) -> Split:
    """Each second belongs to one part."""
    parts = dict.fromkeys(NAMES, 0)
    for second in range(LENGTH):
        here = [o for o in owners.values() if second in o.there]
        if second not in watched:
            name = "unknown"
        elif any(second in o.working and second not in o.dark for o in here):
            name = "used"
        elif any(second in o.dark for o in here):
            name = "unknown"
        elif here:
            name = "idle"
        else:
            name = "empty" if any(second in o.booked for o in owners.values()) else "free"
        parts[name] += 1
    return Split(**{name: float(seconds) for name, seconds in parts.items()})


def differences(parts: Split, truth: Split) -> dict[str, tuple[float, float]]:
    """{part: its seconds, the true ones} of the parts that are wrong."""
    pairs = {name: (getattr(parts, name), getattr(truth, name)) for name in NAMES}
    return {
        name: pair for name, pair in pairs.items() if pair[0] != pytest.approx(pair[1], abs=1e-6)
    }


@st.composite
def ranges(draw: st.DrawFn, begin: int = 0, end: int = LENGTH) -> range:
    first, last = sorted(draw(st.tuples(st.integers(begin, end), st.integers(begin, end))))
    return range(first, last)


@st.composite
def some_of(draw: st.DrawFn, seconds: range) -> set[int]:
    """Some seconds in up to three runs."""
    runs = draw(st.lists(ranges(seconds.start, seconds.stop), max_size=3))
    return {second for run in runs for second in run}


@st.composite
def presences(draw: st.DrawFn, there: range) -> Presence:
    return Presence(there, draw(some_of(there)), draw(some_of(there)))


def parts_of(watched: set[int], owners: dict[str | None, Presence]) -> tuple[Split, ...]:
    holders = {owner: presence.holder(watched) for owner, presence in owners.items()}
    whole, by_owner = split(LENGTH, len(watched), None, holders)
    return (whole, *by_owner.values())


@settings(max_examples=150)
@given(st.data())
def test_each_part_of_one_owner_s_time_is_exact_whenever_it_was_unwatched(
    data: st.DataObject,
) -> None:
    alice = data.draw(presences(data.draw(ranges())))
    watched = set(range(LENGTH)) - data.draw(some_of(range(LENGTH)))
    if not set(alice.there) & watched:
        # Without any reading the sums do not tell when it was unwatched.
        watched |= set(alice.there)

    whole, mine = parts_of(watched, {"alice": alice})

    assert differences(whole, walked(watched, {"alice": alice})) == {}
    assert mine.held == pytest.approx(len(alice.there))


@settings(max_examples=100)
@given(st.data())
def test_each_part_is_exact_of_owners_who_follow_each_other(data: st.DataObject) -> None:
    change = data.draw(st.integers(1, LENGTH - 1))
    owners: dict[str | None, Presence] = {
        "alice": data.draw(presences(range(change))),
        "bob": data.draw(presences(range(change, LENGTH))),
    }
    watched = set(range(LENGTH)) - data.draw(some_of(range(LENGTH)))
    watched |= {0, LENGTH - 1}

    whole, alice, bob = parts_of(watched, owners)

    assert differences(whole, walked(watched, owners)) == {}
    for parts, presence in ((alice, owners["alice"]), (bob, owners["bob"])):
        alone = walked(watched & set(presence.there), {"x": presence})
        outside = LENGTH - len(presence.there)
        truth = Split(alone.used, alone.idle, 0, alone.unknown - outside, 0)
        assert differences(parts, truth) == {}


@settings(max_examples=100)
@given(st.data())
def test_each_part_is_exact_of_owners_who_share_the_whole_time(data: st.DataObject) -> None:
    """They compute in turns; the unwatched time is unknown of both."""
    turns = data.draw(some_of(range(LENGTH)))
    work = data.draw(some_of(range(LENGTH)))
    owners: dict[str | None, Presence] = {
        "alice": Presence(range(LENGTH), work & turns),
        "bob": Presence(range(LENGTH), work - turns),
    }
    watched = set(range(LENGTH)) - data.draw(some_of(range(LENGTH)))

    whole, alice, bob = parts_of(watched, owners)

    assert differences(whole, walked(watched, owners)) == {}
    assert alice.unknown == pytest.approx((LENGTH - len(watched)) / 2)
    assert bob.unknown == pytest.approx((LENGTH - len(watched)) / 2)


@settings(max_examples=100)
@given(st.data())
def test_each_part_is_exact_of_a_booking_around_a_process(data: st.DataObject) -> None:
    """Unwatched only while the process was there, or with bookings for all other time."""
    alice = data.draw(presences(data.draw(ranges())))
    alice.booked = data.draw(st.sampled_from([range(LENGTH), alice.there, range(0)]))
    gap = data.draw(some_of(alice.there if alice.booked != range(LENGTH) else range(LENGTH)))
    watched = set(range(LENGTH)) - gap
    if not set(alice.there) & watched:
        watched |= set(alice.there)

    whole, _ = parts_of(watched, {"alice": alice})

    assert differences(whole, walked(watched, {"alice": alice})) == {}


@settings(max_examples=100)
@given(st.data())
def test_unwatched_time_of_owners_who_overlap_in_part_is_unknown_once(data: st.DataObject) -> None:
    """The sums do not tell which of these seconds the owners shared."""
    owners: dict[str | None, Presence] = {
        name: Presence(data.draw(ranges())) for name in ("alice", "bob", "carol")
    }
    watched = set(range(LENGTH)) - data.draw(some_of(range(LENGTH)))
    # Each process was read at least once.
    watched |= {presence.there.start for presence in owners.values() if presence.there}
    missing = LENGTH - len(watched)

    whole, *by_owner = parts_of(watched, owners)

    assert whole.free + whole.idle == pytest.approx(len(watched))
    assert whole.unknown == pytest.approx(missing)
    assert sum(parts.unknown for parts in by_owner) <= missing + 1e-6
    held = {second for presence in owners.values() for second in presence.there}
    assert whole.free >= len(watched) - len(held) - 1e-6


def test_an_unwatched_part_of_the_held_time_is_unknown_once() -> None:
    """Held for 1800 s of an hour, unwatched for 600 s of them."""
    holder = Holder([(0, 1800)], [], held_s=1800, known_s=1200, sm_s=600, seen_s=1200)

    whole, by_owner = split(3600, 3000, None, {"alice": holder})

    assert differences(whole, Split(used=600, idle=600, unknown=600, free=1800)) == {}
    assert by_owner["alice"].held == pytest.approx(1800)
