from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.incidents.policy.enforcement import (
    WARNINGS,
    AccusedProcess,
    EnforcementCase,
    EnforcementPolicy,
    Step,
    StepRecord,
    exclusion_reason,
    is_enforceable,
    next_step,
)
from tests.builders import NOW

ALL = EnforcementPolicy(
    enabled=True,
    dry_run=False,
    users=("alice",),
    freeze_minutes=90,
    terminate_minutes=120,
    kill_minutes=5,
)


def case(**changes: Any) -> EnforcementCase:
    who: dict[str, Any] = {
        "host": "gpubox",
        "user": "alice",
        "uid": 1001,
        "program": "python",
        "is_there": True,
    }
    facts: dict[str, Any] = {
        "rule": "sustained",
        "is_hog": True,
        "is_open": True,
        "is_paused": False,
    }
    for name, value in changes.items():
        (facts if name in facts else who)[name] = value
    return EnforcementCase(accused=AccusedProcess(**who), **facts)


def story(policy: EnforcementPolicy, minutes: int, delay: float | None = 0) -> list[str]:
    """The steps minute by minute when warnings arrive after `delay` minutes (None: never)."""
    taken: list[StepRecord] = []
    told = []
    for minute in range(minutes + 1):
        now = NOW + timedelta(minutes=minute)
        taken = [_arrived(found, now, delay) for found in taken]
        step = next_step(case(), taken, policy, now)
        if step:
            told.append(f"{minute} {step}")
            taken.append(_arrived(StepRecord(step=step, at=now), now, delay))
    return told


def _arrived(found: StepRecord, now: Any, delay: float | None) -> StepRecord:
    if found.step not in WARNINGS or delay is None:
        return found
    at = found.at + timedelta(minutes=delay)
    return replace(found, reached_at=at) if at <= now else found


def test_steps_come_in_order_each_after_its_own_time() -> None:
    assert story(ALL, 200) == [
        "0 warn",
        "30 warn_again",
        "45 renice",
        "60 limit",
        "90 freeze",
        "120 terminate",
        "125 kill",
    ]


def test_by_default_no_step_is_taken() -> None:
    assert story(EnforcementPolicy(), 200) == []
    assert story(EnforcementPolicy(enabled=True), 200) == []


def test_a_step_is_left_out_when_it_has_no_time() -> None:
    some = dataclasses.replace(ALL, warn_again_minutes=0, limit_minutes=0, terminate_minutes=0)

    assert story(some, 200) == ["0 warn", "45 renice", "90 freeze"]


def test_nothing_is_done_while_no_warning_has_arrived() -> None:
    assert story(ALL, 10_000, delay=None) == ["0 warn"]


def test_time_counts_from_when_the_warning_arrived() -> None:
    assert story(ALL, 100, delay=20)[:3] == ["0 warn", "50 warn_again", "80 renice"]


def test_after_a_warning_there_is_time_to_react() -> None:
    late = dataclasses.replace(ALL, grace_minutes=20)

    assert story(late, 100)[:3] == ["0 warn", "30 warn_again", "50 renice"]


def test_after_a_downtime_steps_keep_their_distance() -> None:
    warned = [StepRecord(step=s, at=NOW, reached_at=NOW) for s in WARNINGS]
    late = NOW + timedelta(hours=9)
    assert next_step(case(), warned, ALL, late) is Step.RENICE

    taken = [*warned, StepRecord(step=Step.RENICE, at=late)]
    after = [next_step(case(), taken, ALL, late + timedelta(minutes=m)) for m in (0, 14, 15)]
    assert after == [None, None, Step.LIMIT]


def test_after_an_undo_the_plan_starts_again() -> None:
    warned = [StepRecord(step=s, at=NOW, reached_at=NOW) for s in WARNINGS]
    resumed = replace(case(), resumed_at=NOW + timedelta(hours=9))

    steps = [next_step(resumed, warned, ALL, NOW + timedelta(minutes=540 + m)) for m in (0, 45)]
    assert steps == [None, Step.RENICE]


def test_a_warning_that_can_not_be_written_is_tried_again_and_nothing_else_done() -> None:
    refused = [StepRecord(step=Step.WARN, at=NOW, was_refused=True)]

    steps = [next_step(case(), refused, ALL, NOW + timedelta(minutes=m)) for m in (1, 10, 500)]
    assert steps == [None, Step.WARN, Step.WARN]


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "bob"},
        {"user": ""},
        {"uid": None},
        {"uid": 0},
        {"uid": 999},
        {"uid": 65534},
        {"user": "root"},
        {"job_ref": "7"},
        {"rule": "cpu_hog"},
        {"is_hog": False},
        {"container": "docker/abc"},
        {"program": ""},
    ],
)
def test_processes_outside_the_scope_are_exempt(changes: dict[str, Any]) -> None:
    everything = dataclasses.replace(ALL, users=("*",)) if "user" not in changes else ALL

    assert exclusion_reason(case(**changes), everything)
    assert next_step(case(**changes), [], everything, NOW) is None


def test_programs_hosts_and_containers_narrow_the_scope() -> None:
    assert exclusion_reason(case(), dataclasses.replace(ALL, programs=("julia*",)))
    assert exclusion_reason(case(), dataclasses.replace(ALL, hosts=("other",)))
    assert exclusion_reason(case(), dataclasses.replace(ALL, programs=("py*",))) is None
    inside = dataclasses.replace(ALL, containers=("docker/*",))
    assert exclusion_reason(case(container="docker/abc"), inside) is None


@pytest.mark.parametrize("changes", [{"is_open": False}, {"is_paused": True}, {"is_there": False}])
def test_nothing_new_is_done_when_it_is_over_paused_or_gone(changes: dict[str, Any]) -> None:
    assert next_step(case(**changes), [], ALL, NOW) is None


@pytest.mark.parametrize(
    ("changes", "policy", "held"),
    [
        ({}, ALL, True),
        # A process that is off the GPU for a moment stays as it is.
        ({"is_there": False}, ALL, True),
        ({"is_open": False}, ALL, False),
        ({"is_paused": True}, ALL, False),
        ({}, dataclasses.replace(ALL, enabled=False), False),
        ({}, dataclasses.replace(ALL, users=("bob",)), False),
    ],
)
def test_an_incident_is_enforceable_while_it_lasts_and_the_policy_covers_it(
    changes: dict[str, Any], policy: EnforcementPolicy, held: bool
) -> None:
    assert is_enforceable(case(**changes), policy) is held


def test_steps_out_of_order_are_refused_in_the_policy() -> None:
    assert ALL.conflicts() == {}
    assert EnforcementPolicy().conflicts() == {}
    assert set(dataclasses.replace(ALL, limit_minutes=10).conflicts()) == {"limit_minutes"}


taken_steps = st.lists(
    st.builds(
        StepRecord,
        step=st.sampled_from(Step),
        at=st.just(NOW),
        was_refused=st.booleans(),
        reached_at=st.none() | st.just(NOW),
    ),
    unique_by=lambda found: found.step,
)


@settings(max_examples=50)
@given(taken_steps, st.integers(0, 10_000), st.integers(1, 60))
def test_no_action_ever_comes_without_a_warning_that_arrived(
    taken: list[StepRecord], minutes: int, grace: int
) -> None:
    policy = dataclasses.replace(ALL, grace_minutes=grace)
    step = next_step(case(), taken, policy, NOW + timedelta(minutes=minutes))
    arrived = [t for t in taken if t.step in WARNINGS and t.reached_at and not t.was_refused]

    if step not in (None, *WARNINGS):
        assert arrived
        assert minutes >= grace
        assert step not in {found.step for found in taken}
