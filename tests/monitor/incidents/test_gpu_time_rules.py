from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.facts.incidents import FAIR_SHARE, SUSTAINED
from monitor.facts.readings import Health, ProcessReading
from tests.builders import NOW, claim, gpu, gpu_uuid, process
from tests.monitor.hog_traces import Processes, Trace, policies, waiting

FAIR = {"alice": 70.0}


def steady(pct: float | None, **changes: object) -> Processes:
    return lambda minute: [process(sm_pct=pct, **changes)]


def test_a_user_who_keeps_a_gpu_busy_for_the_rule_time_is_a_hog_and_not_before() -> None:
    trace = Trace(gpus=3).play(30, steady(95.0))
    # It was first seen after 10 s.
    assert trace.told == [(10.17, "opened", SUSTAINED)]


def test_the_sentence_says_who_where_how_much_and_how_long() -> None:
    trace = Trace(gpus=3).play(31, steady(95.0, pid=12345, on=2))
    assert trace.texts[SUSTAINED] == (
        "Heavy use outside the queue: python (PID 12345, alice) at 95 % on GPU 2 for 30 min;"
        " no job waits"
    )


def test_it_names_waiting_users_and_their_delay_and_raises_the_severity() -> None:
    trace = Trace().play(12, steady(95.0))
    assert trace.known[0].severity == "info"
    trace.demand = [waiting(job_ref=ref, minutes_ago=-12) for ref in ("7", "8", "9")]
    trace.play(14, steady(95.0))
    assert trace.texts[SUSTAINED].endswith("for 25 min; 3 jobs waited 42 min in all")
    assert trace.known[0].severity == "warning"


def test_a_blip_does_not_reset_it() -> None:
    def blips(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=0.0 if minute % 3 < 0.2 else 95.0)]

    assert Trace().play(12, blips).opened == [SUSTAINED]


def test_short_pauses_and_restarts_do_not_evade_the_rule() -> None:
    def restarted(minute: float) -> list[ProcessReading]:
        run = int(minute // 4)
        is_away = minute % 4 < 0.2
        began = NOW + timedelta(minutes=run * 4)
        return [] if is_away else [process(pid=5000 + run, sm_pct=97.0, created_at=began)]

    trace = Trace().play(20, restarted)
    assert trace.opened == [SUSTAINED]


def test_many_small_processes_of_one_person_count_together() -> None:
    def four(minute: float) -> list[ProcessReading]:
        return [process(pid=pid, sm_pct=23.0) for pid in range(1, 5)]

    trace = Trace().play(12, four)
    assert trace.opened == [SUSTAINED]
    assert "and 3 more at 92 %" in trace.texts[SUSTAINED]


def test_a_burst_opens_nothing() -> None:
    def burst(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=100.0 if 20 < minute < 28 else 5.0)]

    assert Trace().play(60, burst).told == []


def test_use_that_swings_around_the_threshold_opens_once_and_does_not_flap() -> None:
    def swinging(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=95.0 if minute % 16 < 8 else 68.0)]

    trace = Trace().play(120, swinging)
    assert [what for _, what, _ in trace.told] == ["opened"]


def test_it_ends_when_it_has_been_quiet_for_a_while_and_stays_ended() -> None:
    def stops(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=95.0 if minute <= 20 else 0.0)]

    trace = Trace().play(60, stops)
    assert [what for _, what, _ in trace.told] == ["opened", "closed"]
    assert 25 < trace.told[1][0] < 30


def test_it_ends_soon_after_the_process_has() -> None:
    trace = Trace().play(15, steady(95.0)).play(2, lambda minute: [])
    assert trace.told[-1][1] == "closed"
    assert trace.minute - trace.told[-1][0] > 1


@pytest.mark.parametrize("known_part", [0.0, 0.5, 0.75])
def test_no_user_is_accused_on_unknown_use(known_part: float) -> None:
    def partly(minute: float) -> list[ProcessReading]:
        is_known = (minute * 6) % 12 < 12 * known_part
        return [process(sm_pct=99.0 if is_known else None)]

    assert Trace().play(40, partly).told == []


def test_most_of_the_time_known_is_enough() -> None:
    def mostly(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=None if round(minute * 6) % 10 == 0 else 99.0)]

    assert Trace().play(15, mostly).opened == [SUSTAINED]


def test_a_job_within_its_booking_is_no_hog() -> None:
    trace = Trace(claims=[claim("42")])
    trace.play(30, steady(99.0, job_ref="42", job_owner="alice"))
    assert trace.told == []


@pytest.mark.parametrize(
    "who",
    [
        {"program": "Xorg", "uid": 0, "user": "root"},
        {"program": "gnome-shell", "kinds": "CG"},
        {"program": "serve", "uid": 998, "user": "ollama"},
    ],
    ids=lambda who: str(who["program"]),
)
def test_the_system_is_never_accused(who: dict[str, object]) -> None:
    assert Trace().play(15, steady(99.0, **who)).told == []


def test_a_user_process_named_like_a_system_program_is_not_exempt() -> None:
    assert Trace().play(15, steady(99.0, program="nvidia-train")).opened == [SUSTAINED]


@pytest.mark.parametrize(
    "exempt",
    [
        {"exempt_users": ("ali*",)},
        {"exempt_programs": ("python",)},
        {"exempt_containers": ("docker 0123*",)},
        {"sustained_on": False},
    ],
    ids=lambda exempt: next(iter(exempt)),
)
def test_an_exempt_user_is_not_accused(exempt: dict[str, object]) -> None:
    trace = Trace(policies(**exempt)).play(15, steady(99.0, container="docker 0123456789ab"))
    assert trace.told == []


def test_no_incident_ends_during_a_downtime() -> None:
    """As when gpucoord is updated, and is back after eight minutes."""
    trace = Trace().play(15, steady(95.0))
    trace.at += timedelta(minutes=8)
    trace.play(15, steady(95.0))
    assert (trace.opened, trace.closed) == ([SUSTAINED], [])
    trace.at += timedelta(minutes=8)
    trace.play(20, steady(5.0))
    assert trace.closed == [SUSTAINED]


def test_an_incident_that_can_no_longer_be_measured_closes_eventually() -> None:
    trace = Trace(every_s=30).play(15, steady(95.0))
    trace.play(100, lambda minute: [process(sm_pct=None)])
    assert trace.closed == []
    trace.play(30, lambda minute: [process(sm_pct=None)])
    assert trace.closed == [SUSTAINED]


def test_a_gpu_that_is_silent_for_a_minute_ends_no_incident() -> None:
    trace = Trace().play(15, steady(95.0))
    trace.gpus = [gpu(0, health=Health.LOST)]
    trace.play(1.5, lambda minute: [])
    trace.gpus = 1
    trace.play(10, steady(95.0))
    assert [what for _, what, _ in trace.told] == ["opened"]


def test_more_than_the_fair_share_is_a_violation_while_a_job_waits() -> None:
    trace = Trace(demand=[waiting("bob")], shares=FAIR).play(20, steady(90.0))
    assert FAIR_SHARE in trace.opened
    found = next(f for f in trace.found if f.rule == FAIR_SHARE)
    assert found.expected_pct == 70
    assert found.measured_pct == pytest.approx(90, abs=0.5)


def test_use_of_idle_capacity_while_no_job_waits_is_harmless() -> None:
    trace = Trace().play(30, steady(90.0))
    assert trace.opened == [SUSTAINED]
    assert (trace.known[0].severity, trace.known[0].is_hog) == ("info", False)
    assert "hog" not in trace.texts[SUSTAINED]
    assert trace.texts[SUSTAINED].endswith("no job waits")


def test_use_within_the_own_share_is_no_hog_even_while_others_wait() -> None:
    trace = Trace(gpus=4, demand=[waiting("bob")], shares=FAIR).play(30, steady(95.0))
    assert (trace.known[0].severity, trace.known[0].is_hog) == ("warning", False)
    assert trace.texts[SUSTAINED].startswith("Heavy use outside the queue")


def test_only_the_time_in_which_others_waited_is_that_of_a_hog() -> None:
    trace = Trace().play(60, steady(95.0))
    trace.demand = [waiting(minutes_ago=-60)]
    trace.play(10, steady(95.0))
    trace.demand = ()
    trace.play(30, steady(95.0))
    ((begin, end),) = trace.known[0].hog_spans
    assert end - begin == pytest.approx(600, abs=20)
    assert trace.texts[SUSTAINED].startswith("Detected GPU hog")


def test_use_up_to_the_fair_share_is_not_too_much() -> None:
    trace = Trace(demand=[waiting("bob")], shares=FAIR)
    assert FAIR_SHARE not in trace.play(30, steady(70.0)).opened


def test_a_waiting_user_is_not_harmed_by_own_use() -> None:
    trace = Trace(demand=[waiting("alice")], shares=FAIR).play(30, steady(90.0))
    assert trace.opened == [SUSTAINED]


def test_one_gpu_of_four_is_no_more_than_a_fair_share() -> None:
    trace = Trace(gpus=4, demand=[waiting("bob")], shares=FAIR)
    assert FAIR_SHARE not in trace.play(30, steady(95.0)).opened


def test_three_gpus_of_four_are() -> None:
    def three(minute: float) -> Iterator[ProcessReading]:
        return (process(pid=100 + on, on=on, sm_pct=97.0) for on in range(3))

    trace = Trace(gpus=4, demand=[waiting("bob")], shares={"alice": 67.0}).play(20, three)
    assert trace.opened.count(FAIR_SHARE) == 1
    assert (
        "alice (python, PID 100, and 2 more) has used 73 % of the GPUs" in trace.texts[FAIR_SHARE]
    )


def test_use_of_a_gpu_that_no_job_waits_for_is_harmless() -> None:
    trace = Trace(gpus=2, demand=[waiting("bob", gpu_uuids=(gpu_uuid(1),))])
    trace.play(20, steady(95.0))
    assert trace.known[0].waited_s == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 79), min_size=1, max_size=30))
def test_a_user_below_the_threshold_is_never_accused(shares: list[float]) -> None:
    def wild(minute: float) -> list[ProcessReading]:
        return [process(sm_pct=shares[int(minute) % len(shares)])]

    assert Trace(every_s=30).play(40, wild).told == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(86, 100), min_size=1, max_size=30), st.integers(0, 29))
def test_a_user_above_the_threshold_is_accused_after_the_rule_time(
    shares: list[float], blip: int
) -> None:
    def wild(minute: float) -> list[ProcessReading]:
        is_blip = abs(minute - blip) < 0.3
        return [process(sm_pct=20.0 if is_blip else shares[int(minute) % len(shares)])]

    trace = Trace(every_s=30).play(30, wild)
    assert trace.opened == [SUSTAINED]
    assert trace.told[0][0] <= 13


def test_the_own_share_counts_also_while_the_user_waits() -> None:
    """Alice has a share of 10 % and takes 22 % of the machine."""
    waits = [waiting(name, job_ref=name) for name in ("ann", "alice")]
    trace = Trace(gpus=4, demand=waits, shares={"alice": 10.0}).play(20, steady(90.0))
    assert FAIR_SHARE in trace.opened
    assert next(f for f in trace.found if f.rule == FAIR_SHARE).expected_pct == 10


def test_no_user_exceeds_a_share_that_is_not_known() -> None:
    assert FAIR_SHARE not in Trace(demand=[waiting("bob")]).play(20, steady(90.0)).opened


def test_a_container_of_unknown_owner_is_judged_as_one_and_accuses_no_person() -> None:
    def inside(minute: float) -> list[ProcessReading]:
        return [
            process(pid=pid, sm_pct=47.0, user=None, container="docker 0123456789ab")
            for pid in (1, 2)
        ]

    trace = Trace().play(12, inside)
    assert trace.opened == [SUSTAINED]
    assert (
        "(PID 1, owner unknown, docker 0123456789ab) and 1 more at 94 %" in trace.texts[SUSTAINED]
    )
    assert next(f for f in trace.found if f.rule == SUSTAINED).user is None
