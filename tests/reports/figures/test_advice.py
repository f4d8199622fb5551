"""Each finding of a report leads to a concrete recommendation."""

from __future__ import annotations

from typing import Any

import pytest

from reports.figures.facts import (
    Costs,
    GpuHours,
    PatternFact,
    Recommendation,
    RightSize,
    Totals,
    UserFigures,
    Violation,
)
from reports.figures.policy.advice import recommendations

VIOLATION = Violation(
    program="python", pid=12345, user="alice", processes=1, hours=18.5, above_pct=90,
    expected_pct=30, mean_pct=95, coverage=1, waited_hours=0, gpus=("GPU 2",),
)  # fmt: skip
NIGHTLY = PatternFact(user="alice", text="python (alice) monopolises GPU 2 every night 20:00–06:00")


def user(**changes: Any) -> UserFigures:
    figures = {"user": "alice", "held": 20.0, "used": 20.0, "coverage": 1.0, "efficiency": 1.0}
    return UserFigures(**(figures | {"share_pct": 20.0, "entitled_pct": 30.0} | changes))


def advice(
    *users: UserFigures,
    violations: tuple[Violation, ...] = (),
    patterns: tuple[PatternFact, ...] = (),
    free: float = 0.0,
) -> tuple[Recommendation, ...]:
    totals = Totals(
        gpus=8, gpu_hours=GpuHours(capacity=100, used=100 - free, free=free), people=GpuHours(),
        waited_hours=0, waited_idle_hours=0, energy_kwh=None, idle_energy_kwh=None, costs=Costs(),
    )  # fmt: skip
    return recommendations(violations, users, patterns, totals)


def test_without_a_finding_there_is_no_advice() -> None:
    assert advice(user()) == ()


def test_the_owner_of_a_violation_is_to_be_contacted() -> None:
    (one,) = advice(user(caused_wait_hours=3.0), violations=(VIOLATION,))

    assert (one.kind, one.user) == ("contact", "alice")
    assert one.text.startswith(
        "Contact alice: python used GPU 2 above 90 % for 18.5 h outside the queue, which made jobs"
        " of others wait 3.0 h."
    )


def test_a_recurring_violation_is_answered_with_a_time_window() -> None:
    (_, window) = advice(user(), violations=(VIOLATION,), patterns=(NIGHTLY,))

    assert (window.kind, window.text) == (
        "window",
        f"Agree a time window with alice: {NIGHTLY.text}",
    )
    assert advice(user(), patterns=(NIGHTLY,)) == ()


@pytest.mark.parametrize(
    ("figures", "kind", "words"),
    [
        ({"idle_held": 15.0}, "contact", "15.0 of 20.0 GPU-hours held were idle"),
        ({"booked_empty": 8.0}, "contact", "jobs booked 8.00 GPU-hours without a process"),
        (
            {"share_pct": 45.0, "caused_wait_hours": 6.0},
            "quota",
            "Lower the share or the GPU limit of alice: 45 % of the GPUs held against 30 %",
        ),
        (
            {"share_pct": 29.0, "waited_hours": 9.0},
            "quota",
            "Raise the quota of alice: jobs waited 9.00 h at a share of 29 % while GPUs were free",
        ),
    ],
)
def test_the_figures_of_a_user_lead_to_advice(
    figures: dict[str, Any], kind: str, words: str
) -> None:
    (one,) = advice(user(**figures), free=40)

    assert (one.kind, one.user) == (kind, "alice")
    assert words in one.text


def test_who_is_to_be_contacted_gets_no_lower_share_as_well() -> None:
    above = {"share_pct": 45.0, "caused_wait_hours": 6.0, "idle_held": 15.0}

    assert [one.kind for one in advice(user(**above))] == ["contact"]


def test_a_large_request_is_right_sized() -> None:
    text = "requested 2 GPUs, used 1.0; 80 GiB, peak 11 GiB → 1 GPU, 16 GiB"
    size = RightSize(
        jobs=3, gpus=2, gpus_used=1.0, gpus_advised=1, memory_bytes=None, peak_bytes=None,
        advised_bytes=None, text=text,
    )  # fmt: skip

    assert [(r.kind, r.text) for r in advice(user(right_size=size))] == [
        ("right_size", f"Right-size the jobs of alice: {text}.")
    ]


def test_a_badly_measured_user_is_not_to_be_contacted() -> None:
    assert advice(user(idle_held=15.0, coverage=0.7)) == ()
