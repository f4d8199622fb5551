"""Presence of users at their GPU: traces of one look a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.facts.readings import Health, OwnerReading, Presence, ProcessReading
from monitor.gpus.policy import presence as machine
from monitor.gpus.policy.presence import TABLE, PresencePolicy, Sign
from monitor.gpus.rows import snapshot as snapshot_codec
from monitor.gpus.sampling import step as presence_step
from monitor.models import LatestSnapshot
from monitor.thresholds import rows as thresholds
from tests.builders import NOW, gpu, gpu_uuid, process, snapshot

MIB = 1024**2
ON = PresencePolicy(enabled=True)
FREE, SUSPECT, OWNER, LEAVING = Presence


def blender(**changes: Any) -> ProcessReading:
    return process(
        5001, **({"program": "blender", "kinds": "C+G", "memory_bytes": 900 * MIB} | changes)
    )


def desktop(mib: int = 150, program: str = "tinywm", **changes: Any) -> ProcessReading:
    """The process that draws the desktop; its name is on no list."""
    facts = {"program": program, "kinds": "G", "memory_bytes": mib * MIB, "sm_pct": 3.0}
    return process(900, **(facts | changes))


class Trace:
    """One look a second at GPU 0 (or more); `states` of GPU 0 after each."""

    def __init__(self, policy: PresencePolicy = ON, gpus: int = 1) -> None:
        self.policy, self.gpus = policy, gpus
        self.at = NOW
        self.owners: tuple[OwnerReading, ...] = ()
        self.states: list[Presence] = []

    def look(self, *processes: ProcessReading, seconds: float = 1) -> Trace:
        """That is there for so many looks."""
        for _ in range(round(seconds)):
            seen = snapshot(self.gpus, processes, at=self.at)
            self.owners = machine.look(seen, self.owners, self.policy)
            self.states.append(self.owners[0].presence)
            self.at += timedelta(seconds=1)
        return self

    @property
    def words(self) -> list[str]:
        """The states in their order, each once."""
        return [s for i, s in enumerate(self.states) if not i or s is not self.states[i - 1]]

    @property
    def now(self) -> OwnerReading:
        return self.owners[0]


def test_a_user_is_suspected_at_once_and_has_the_gpu_within_two_seconds() -> None:
    trace = Trace().look(seconds=3).look(blender(), seconds=4)

    assert trace.states == [FREE, FREE, FREE, SUSPECT, OWNER, OWNER, OWNER]
    assert (trace.now.description, trace.now.pid) == ("alice's blender", 5001)
    assert trace.now.came_at == NOW + timedelta(seconds=3)


def test_a_short_burst_does_not_change_the_state() -> None:
    trace = Trace().look(seconds=3).look(blender()).look(seconds=5)

    assert OWNER not in trace.states
    assert trace.states[4:] == [FREE] * 5


def test_work_resumes_when_they_have_been_gone_for_a_minute() -> None:
    trace = Trace().look(blender(), seconds=10).look(seconds=60)
    assert trace.now.presence is LEAVING
    assert trace.now.until == trace.now.since + timedelta(seconds=60)
    assert trace.now.description == "alice's blender"

    trace.look()

    assert trace.words == [SUSPECT, OWNER, LEAVING, FREE]
    assert trace.now.description == "an unknown user's program"


def test_who_comes_back_within_the_minute_was_never_away() -> None:
    trace = Trace().look(blender(), seconds=10)
    came_at = trace.now.came_at
    trace.look(seconds=50).look(blender(), seconds=2)

    assert trace.words == [SUSPECT, OWNER, LEAVING, OWNER]
    assert trace.now.came_at == came_at


def test_flapping_neither_frees_the_gpu_nor_is_reported_twice() -> None:
    trace = Trace().look(blender(), seconds=10)
    before, told = trace.owners, 0
    for _ in range(10):
        trace.look(seconds=5).look(blender(), seconds=1)
        came, gone = machine.changes(before, trace.owners)
        told += len(came) + len(gone)
        before = trace.owners

    assert FREE not in trace.states
    assert told == 0


def busy(pct: float | None) -> ProcessReading:
    """Little memory, so that its use decides."""
    return blender(memory_bytes=60 * MIB, sm_pct=pct)


def test_use_enters_above_one_threshold_and_leaves_below_another() -> None:
    # HTCondor's desktop: a load above 0.5 is the owner's, one below 0.3 is idle.
    trace = Trace().look(busy(45), seconds=3)
    assert trace.states == [FREE] * 3

    trace.look(busy(55), seconds=3).look(busy(45), seconds=70).look(busy(31), seconds=70)
    assert trace.now.presence is OWNER

    trace.look(busy(29), seconds=61)
    assert trace.words == [FREE, SUSPECT, OWNER, LEAVING, FREE]


def test_memory_enters_above_one_threshold_and_leaves_below_another() -> None:
    def holding(mib: int) -> ProcessReading:
        return blender(memory_bytes=mib * MIB, sm_pct=0.0)

    trace = Trace().look(holding(255), seconds=3).look(holding(256), seconds=3)
    trace.look(holding(128), seconds=70)
    assert trace.words == [FREE, SUSPECT, OWNER]

    trace.look(holding(127), seconds=62)
    assert trace.now.presence is FREE


def test_a_suspicion_that_neither_holds_nor_vanishes_ends() -> None:
    trace = Trace().look(busy(55)).look(busy(45), seconds=4)

    assert trace.words == [SUSPECT, FREE]


def test_the_desktop_itself_is_no_user() -> None:
    # canhazgpu#5: gnome-shell's 150 MB were taken for a user.
    trace = Trace().look(desktop(150), seconds=10)
    listed = Trace().look(desktop(900, program="gnome-shell", sm_pct=90.0), seconds=10)

    assert set(trace.states) == set(listed.states) == {FREE}


def test_what_is_there_quietly_at_the_first_look_belongs_to_the_desktop() -> None:
    trace = Trace().look(desktop(700), seconds=10)
    assert set(trace.states) == {FREE}

    trace.look(desktop(700), blender(memory_bytes=300 * MIB), seconds=3)
    assert trace.now.presence is OWNER
    assert trace.now.description == "alice's blender"


def test_a_drawing_program_that_stays_quiet_is_learned() -> None:
    trace = Trace().look().look(desktop(700), seconds=600)
    assert trace.now.presence is OWNER

    trace.look(desktop(700), seconds=62)
    assert trace.now.presence is FREE

    # It is known from now on, also when it has been away.
    trace.look(seconds=5).look(desktop(690), seconds=5)
    assert trace.words == [FREE, SUSPECT, OWNER, LEAVING, FREE]


def test_what_a_resident_holds_above_its_usual_memory_counts() -> None:
    trace = Trace().look(desktop(200), seconds=10).look(desktop(500), seconds=3)

    assert trace.now.presence is OWNER


def test_creeping_growth_is_not_learned() -> None:
    trace = Trace().look(desktop(200), seconds=5)
    for mib in range(200, 2000, 20):
        trace.look(desktop(mib))

    assert trace.now.presence is OWNER


def test_a_resident_that_works_hard_counts() -> None:
    trace = Trace().look(desktop(200), seconds=5).look(desktop(200, sm_pct=80.0), seconds=3)

    assert trace.now.presence is OWNER


def test_a_program_that_computes_is_never_part_of_the_desktop() -> None:
    held = blender(program="jupyter", kinds="C", sm_pct=0.0)
    trace = Trace().look(held, seconds=610)

    assert trace.now.presence is OWNER


def test_listed_programs_count_at_once_and_ignored_ones_never() -> None:
    listed = replace(ON, exclusive=("game",), ignored=("obs",))
    game = blender(program="game", memory_bytes=MIB, sm_pct=0.0)

    assert Trace(listed).look(game).states == [OWNER]
    assert Trace(listed).look(blender(program="obs"), seconds=5).states == [FREE] * 5


def test_own_jobs_are_no_user() -> None:
    assert set(Trace().look(blender(job_ref="7"), seconds=5).states) == {FREE}


def test_presence_is_per_gpu() -> None:
    trace = Trace(gpus=3).look(blender(gpu_uuid=gpu_uuid(1)), seconds=3)

    assert [owner.presence for owner in trace.owners] == [FREE, OWNER, FREE]


def test_unknown_memory_does_not_change_presence() -> None:
    unknown = blender(memory_bytes=None, sm_pct=None)

    assert set(Trace().look(unknown, seconds=5).states) == {FREE}
    assert Trace().look(blender(), seconds=5).look(unknown, seconds=70).now.presence is OWNER


def test_a_lost_gpu_stays_whose_it_was() -> None:
    trace = Trace().look(blender(), seconds=5)
    lost = snapshot([gpu(0, health=Health.LOST)], at=trace.at + timedelta(seconds=70))
    gone = snapshot([], at=trace.at + timedelta(seconds=91))

    assert machine.look(lost, trace.owners, ON)[0].presence is OWNER
    assert machine.look(gone, trace.owners, ON)[0].presence is OWNER


def test_each_state_survives_the_way_through_a_row() -> None:
    trace = Trace(gpus=2).look(desktop(700), seconds=3)
    for there in ([blender()], [blender()], [blender()], [], []):
        trace.look(desktop(700), *there)
        seen = snapshot(2, owners=trace.owners)

        assert snapshot_codec.loads(snapshot_codec.dumps(seen)).owners == trace.owners
    assert trace.words == [FREE, SUSPECT, OWNER, LEAVING]


def test_every_move_of_the_table_is_between_neighbours() -> None:
    # Nobody is freed from OWNER without LEAVING, and nobody leaves who never was there.
    moves = {(old, new) for (old, _), (new, _) in TABLE.items()}

    assert (OWNER, FREE) not in moves
    assert not {(FREE, LEAVING), (SUSPECT, LEAVING), (OWNER, SUSPECT)} & moves


@given(st.lists(st.tuples(st.sampled_from(Sign), st.integers(1, 5)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_a_gpu_is_freed_only_after_a_whole_minute_without_a_user(
    looks: list[tuple[Sign, int]],
) -> None:
    state, since, t, seen_at = FREE, 0, 0, -100
    for sign, step in looks:
        t += step
        if sign is not Sign.ABSENT:
            seen_at = t if sign in (Sign.PRESENT, Sign.LISTED) else seen_at
        following = machine.move(state, sign, t - since, ON)
        if state is LEAVING and following is FREE:
            assert t - seen_at >= ON.clear_s
        if following is not state:
            state, since = following, t


@pytest.mark.django_db
class TestWatching:
    def test_switched_off_nothing_is_looked_at(self) -> None:
        seen, told = presence_step.watched(
            snapshot(1, [blender()]), None, thresholds.current(PresencePolicy)
        )

        assert (seen.owners, told) == ((), [])

    def test_coming_and_going_are_each_reported_once(self) -> None:
        thresholds.change("presence", {"enabled": True}, by="root", now=NOW)
        told = list(_played([*[True] * 6, *[False] * 70]))

        assert [note.kind for note in told] == ["OWNER_PRESENT", "OWNER_GONE"]
        words = "Other GPU processes detected, evicting models: alice's blender is on GPU 0."
        assert (told[0].text, told[0].severity) == (words, "warning")
        assert told[0].figures == {"other_process_count": 1}
        assert told[1].text == "alice's blender has left GPU 0: jobs may start there again."

    def test_switching_it_off_opens_the_gpu_and_says_so(self) -> None:
        thresholds.change("presence", {"enabled": True}, by="root", now=NOW)
        seen, _ = presence_step.watched(
            snapshot(1, [blender()]), None, thresholds.current(PresencePolicy)
        )
        seen, _ = presence_step.watched(
            snapshot(1, [blender()], at=NOW + timedelta(seconds=1)),
            seen,
            thresholds.current(PresencePolicy),
        )
        thresholds.change("presence", {}, by="root", now=NOW)

        after, told = presence_step.watched(
            snapshot(1, [blender()]), seen, thresholds.current(PresencePolicy)
        )

        assert (after.owners, [note.kind for note in told]) == ((), ["OWNER_GONE"])

    def test_the_number_of_gpus_with_a_user_is_stored_with_the_snapshot(self) -> None:
        from monitor.gpus.rows import snapshot as snapshot_rows

        trace = Trace(gpus=2).look(blender(), seconds=5)
        snapshot_rows.record(snapshot(2, owners=trace.owners))
        assert snapshot_rows.owned("gpubox") == 1

        snapshot_rows.record(snapshot(2))
        assert (snapshot_rows.owned("gpubox"), LatestSnapshot.objects.count()) == (0, 1)


def _played(there: Sequence[bool]) -> Iterable[Any]:
    seen = None
    for second, is_there in enumerate(there):
        at = NOW + timedelta(seconds=second)
        seen, told = presence_step.watched(
            snapshot(1, [blender()] if is_there else [], at=at),
            seen,
            thresholds.current(PresencePolicy),
        )
        yield from told


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"kinds": "C", "memory_bytes": 70 * MIB}, OWNER),
        ({"kinds": "C", "memory_bytes": 60 * MIB}, FREE),
        ({"kinds": "C", "memory_bytes": 70 * MIB, "uid": 0}, FREE),
        ({"kinds": "G", "memory_bytes": 200 * MIB}, FREE),
        ({"kinds": "G", "memory_bytes": 20 * MIB, "encoder_pct": 3.0}, OWNER),
        ({"kinds": "G", "memory_bytes": 20 * MIB, "encoder_pct": 0.0}, FREE),
    ],
)
def test_small_compute_processes_and_encoders_of_users_count(
    facts: dict[str, Any], expected: Presence
) -> None:
    trace = Trace().look(seconds=2).look(blender(sm_pct=0.0, **facts), seconds=4)
    assert trace.now.presence is expected
