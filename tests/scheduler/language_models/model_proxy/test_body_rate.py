"""Large bodies of one user do not hold up the streams of others."""

from __future__ import annotations

import pytest

from scheduler.language_models.model_proxy.policy import AT_ONCE, BYTES_PER_S, BodyRate

MIB = 1024**2


def test_a_user_may_send_some_large_bodies_at_once() -> None:
    rate = BodyRate()

    assert [rate.delay(1, 16 * MIB, 0.0) for _ in range(4)] == [0.0] * 4
    assert rate.delay(1, 16 * MIB, 0.0) == pytest.approx(2.0)


def test_a_refused_body_does_not_count() -> None:
    rate = BodyRate()
    rate.delay(1, round(AT_ONCE), 0.0)
    for _ in range(3):
        assert rate.delay(1, 16 * MIB, 0.0) == pytest.approx(2.0)

    assert rate.delay(1, 16 * MIB, 2.0) == 0.0


def test_in_the_long_run_a_user_has_a_steady_rate() -> None:
    rate = BodyRate()
    taken = sum(16 * MIB for second in range(600) if not rate.delay(1, 16 * MIB, second))

    assert taken <= AT_ONCE + 600 * BYTES_PER_S


def test_large_bodies_of_a_user_do_not_delay_another() -> None:
    rate = BodyRate()
    rate.delay(1, round(AT_ONCE), 0.0)

    assert rate.delay(2, 16 * MIB, 0.0) == 0.0
