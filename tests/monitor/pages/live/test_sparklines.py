from __future__ import annotations

import pytest

from monitor.models import Sample
from monitor.pages import views as pages
from tests.builders import NOW, gpu_uuid, snapshot

pytestmark = pytest.mark.django_db


def test_it_draws_the_means_of_the_last_hour_and_nothing_without_samples() -> None:
    from monitor.gpus.rows import snapshot as snapshots

    snapshots.record(snapshot(1))
    empty = pages.draw(gpu_uuid(1), NOW)
    Sample.objects.filter(gpu_id=gpu_uuid(0)).update(t=int(NOW.timestamp()) - 600)
    drawn = pages.draw(gpu_uuid(0), NOW)

    assert empty.line == ""
    assert drawn.line.startswith("M")
