from __future__ import annotations

from datetime import timedelta

from scheduler.limits.throttle.policy.throttle import (
    Mode,
    ModePolicy,
    Override,
    judged,
    mode_multiplier,
)
from tests.builders import NOW

POLICY = ModePolicy()
CALM, DEFENSIVE = Mode.COOPERATIVE, Mode.DEFENSIVE


def after(share: float | None, old: Mode = CALM, override: Override | None = None) -> Mode:
    return judged(old, share, override, POLICY, NOW).mode


def test_it_gets_defensive_above_thirty_percent_of_the_day_and_back_below_twenty() -> None:
    assert [after(share) for share in (0.29, 0.30, 0.31)] == [CALM, CALM, DEFENSIVE]
    assert [after(s, DEFENSIVE) for s in (0.21, 0.20, 0.19)] == [DEFENSIVE, DEFENSIVE, CALM]


def test_nobody_is_a_hog_on_what_is_not_known() -> None:
    assert after(None) is CALM
    assert after(None, DEFENSIVE) is DEFENSIVE


def test_an_operator_decides_until_then() -> None:
    set_by_root = Override(mode=DEFENSIVE, until=NOW + timedelta(hours=1), by="root")
    judgement = judged(CALM, 0.0, set_by_root, POLICY, NOW)
    assert (judgement.mode, judgement.automatic, judgement.reason) == (
        DEFENSIVE,
        CALM,
        "root has set it.",
    )
    assert judged(CALM, 0.0, set_by_root, POLICY, NOW + timedelta(hours=1)).mode is CALM


def test_the_reason_says_the_figures() -> None:
    text = judged(CALM, 0.42, None, POLICY, NOW).reason
    assert text == "Overuse in 42 % of the last 24 h. Normal limits return below 20 %."


def test_what_defensive_does_is_a_policy() -> None:
    assert mode_multiplier(CALM, POLICY) == 1
    assert mode_multiplier(DEFENSIVE, POLICY) == 0.1
    assert mode_multiplier(DEFENSIVE, ModePolicy(defensive_multiplier=0.2)) == 0.2
