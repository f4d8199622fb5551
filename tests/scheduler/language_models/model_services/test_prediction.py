"""Instances that are needed in an hour, by the requests in the same hour of earlier weeks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from scheduler.language_models.model_services import rows
from scheduler.language_models.model_services.policy import Demand, predict
from scheduler.models import ModelHour, ModelInstance, ModelService
from tests.builders import NOW
from tests.scheduler.language_models.model_services.model_box import Box, service

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


@pytest.mark.parametrize(
    ("weeks", "answer_s", "expected"),
    [
        ((), None, None),
        ((50.0,), 10.0, None),
        ((50.0, 0.0, 0.0, 0.0), 10.0, None),
        ((50.0, 0.0, 40.0, 0.0), 10.0, 1),
        # 3600 requests of 10 s keep 10 places busy; 4 places at 70 % are 2.8.
        ((3600.0, 3600.0), 10.0, 4),
        ((3600.0, 3600.0), 1.0, 1),
        ((99_999.0, 99_999.0), 10.0, 6),
    ],
)
def test_instances_follow_demand_between_least_and_most(
    weeks: tuple[float, ...], answer_s: float | None, expected: int | None
) -> None:
    made = predict(Demand(weeks=weeks, answer_s=answer_s), concurrency=4, least=1, most=6)

    assert (made.instances if made else None) == expected


def busy_hours(row: ModelService, hour: datetime, requests: int = 100) -> None:
    for weeks in (1, 2, 3, 4):
        ModelHour.objects.create(service=row, at=hour - timedelta(weeks=weeks), requests=requests)


@pytest.mark.parametrize(("mode", "instances"), [("off", 0), ("suggest", 0), ("automatic", 1)])
def test_only_automatic_boots_before_the_hour(data: Any, mode: str, instances: int) -> None:
    box = Box()
    # Noon is busy; it boots for two minutes.
    row = service(prediction=mode)
    busy_hours(row, NOW)
    box.now = NOW - timedelta(seconds=100)

    box.step()

    assert ModelInstance.objects.count() == instances


def test_it_does_not_boot_long_before(data: Any) -> None:
    row = service(prediction="automatic")
    busy_hours(row, NOW)

    assert rows.prediction(row, NOW - timedelta(minutes=30)) is None


def test_a_predicted_instance_is_not_unloaded_for_being_idle(data: Any) -> None:
    box = Box()
    row = service(prediction="automatic", keep_alive_s=10)
    busy_hours(row, NOW)
    for _ in range(3):
        box.step()
    box.step(after_s=100)
    box.step()

    assert ModelInstance.objects.get().state == "ready"


def test_the_page_shows_a_suggestion_with_its_reason(root: User, as_user: AsUser) -> None:
    row = service("small", prediction="suggest")
    busy_hours(row, timezone.now().replace(minute=0, second=0, microsecond=0))

    html = as_user(root).get("/models/small/").content.decode()

    assert "1 instance: 100 requests an hour came in this hour of the last 4 weeks" in html
    predicted = as_user(root).get("/api/models/small/").json()["predicted"]
    assert predicted["instances"] == 1
