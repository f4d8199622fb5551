from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu, ProcessHour
from monitor.owners import rows
from tests.builders import NOW, snapshot
from tests.monitor.past import process_use

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    rows.forget()
    yield
    rows.forget()


def used(name: str, held_s: float) -> None:
    use = process_use(Gpu.objects.get(), NOW, user=name, pid=len(name))
    t = int((NOW - timedelta(hours=5)).timestamp()) // 3600 * 3600
    ProcessHour.objects.create(use=use, t=t, held_s=held_s, known_s=0, sm_s=0, memory_byte_s=0)


def test_colours_go_to_those_with_the_most_use_of_the_last_week() -> None:
    snapshots.record(snapshot(1))
    for n in range(8):
        User.objects.create(username=f"idle{n}")
    used("zoe", 9000)
    rows.refresh(NOW)

    assert rows.look_of("zoe").colour is not None
    seen = [rows.look_of(f"idle{n}") for n in range(8)]
    assert sum(look.colour is not None for look in seen) == 5


def test_an_owner_keeps_the_look_until_colours_are_given_anew() -> None:
    first = rows.look_of("new")
    rows.look_of("newer")

    assert rows.look_of("new") == first
    assert rows.look_of("newer").css != first.css


def test_colours_are_given_anew_after_an_hour() -> None:
    first = rows.refresh(NOW)
    User.objects.create(username="newcomer")

    assert rows.refresh(NOW + timedelta(minutes=50)) is first
    assert "newcomer" in rows.refresh(NOW + timedelta(minutes=70))
