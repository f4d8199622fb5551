"""The limit of REST requests of each user."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpucoord_site.http import clients
from gpucoord_site.http.clients import RateLimit
from monitor.owners import rows


def test_a_minutes_worth_is_accepted_at_once_and_then_the_steady_rate() -> None:
    limit = RateLimit()

    assert [limit.delay(1, 60, 0.0) for _ in range(60)] == [0.0] * 60
    assert limit.delay(1, 60, 0.0) == pytest.approx(1.0)
    assert limit.delay(1, 60, 0.5) == pytest.approx(0.5)
    assert limit.delay(1, 60, 1.0) == 0.0
    assert limit.delay(1, 60, 1.0) == pytest.approx(1.0)


def test_each_user_has_a_rate_of_their_own() -> None:
    limit = RateLimit()
    limit.delay(1, 1, 0.0)

    assert limit.delay(1, 1, 0.0) > 0
    assert limit.delay(2, 1, 0.0) == 0.0


@given(st.integers(1, 50), st.lists(st.floats(0, 30), max_size=100))
def test_no_minute_has_more_than_twice_the_rate(per_minute: int, pauses: list[float]) -> None:
    limit, now, accepted = RateLimit(), 0.0, []
    for pause in pauses:
        now += pause
        if limit.delay(1, per_minute, now) == 0.0:
            accepted.append(now)

    for start in accepted:
        assert sum(start <= at < start + 60 for at in accepted) <= 2 * per_minute


@given(st.integers(1, 50), st.lists(st.floats(0, 30), min_size=1, max_size=100))
def test_a_client_that_waits_as_long_as_required_is_accepted(
    per_minute: int, pauses: list[float]
) -> None:
    limit, now = RateLimit(), 0.0
    for pause in pauses:
        now += pause
        if delay := limit.delay(1, per_minute, now):
            assert limit.delay(1, per_minute, now + delay + 1e-6) == 0.0
            return


@pytest.fixture
def one_a_minute(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_limit", RateLimit())
    settings.CONFIG = replace(settings.CONFIG, requests_per_minute=1)


@pytest.mark.django_db
@pytest.mark.usefixtures("one_a_minute")
def test_more_requests_get_429_with_the_time_to_wait(alice: User, bob: User) -> None:
    def get(user: User) -> Any:
        _, token = rows.create_token(user, timezone.now())
        return Client().get("/api/jobs/", headers={"authorization": f"Bearer {token}"})

    assert get(alice).status_code == 200
    refused = get(alice)

    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert refused["Content-Type"] == "application/problem+json"
    assert "1 requests a minute" in refused.json()["detail"]
    assert get(bob).status_code == 200


@pytest.mark.django_db
@pytest.mark.usefixtures("one_a_minute")
def test_a_browser_counts_too_and_pages_do_not(alice: User) -> None:
    client = Client()
    client.force_login(alice, "django.contrib.auth.backends.ModelBackend")

    assert [client.get("/api/jobs/").status_code for _ in range(2)] == [200, 429]
    assert client.get("/jobs/").status_code == 200


@pytest.mark.django_db
def test_0_is_no_limit(alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_limit", RateLimit())
    settings.CONFIG = replace(settings.CONFIG, requests_per_minute=0)
    client = Client()
    client.force_login(alice, "django.contrib.auth.backends.ModelBackend")

    assert {client.get("/api/jobs/").status_code for _ in range(5)} == {200}
