"""The demo's models: prompts flow, a backlog of scripts evicts one model, and it returns."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.config.settings import Config
from gpucoord_site.demo import jobs as demo
from gpucoord_site.demo.jobs import BACKLOG, LEAVES, STAYS
from gpucoord_site.demo.past import PEOPLE
from gpucoord_site.demo.usage import Activity
from monitor.models import Event
from scheduler.execution.steps.gpu_closures import gpus_of_models
from scheduler.facts.jobs import Outcome
from scheduler.language_models.model_services import rows
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import Job, ModelInstance, ModelService, Prompt
from tests.builders import GIB, gpu_uuid
from tests.pace import LONGEST_S
from tests.processes.service import wait_until
from tests.scheduler.language_models.model_services.model_box import Box
from tests.service.test_demo import Demo

AsUser = Callable[[User], Client]
UUIDS = [gpu_uuid(number) for number in range(8)]


@pytest.fixture
def box(data: Path, settings: Any, root: User) -> Box:
    """Eight GPUs with the demo's models, beside the processes of the scenario."""
    settings.CONFIG = Config(data=data, probe="simulated", node="gpubox", admin_user="root")
    users = {name: User.objects.create(username=name) for name in PEOPLE}
    made = Box(gpus=8)
    made.strangers = {1: 59 * GIB, 2: 66 * GIB, 3: 66 * GIB, 4: 71 * GIB, 5: 54 * GIB, 6: 52 * GIB}
    demo.seed_models(users, UUIDS, data / "home", made.now)
    return made


def ready(name: str) -> ModelInstance | None:
    return ModelInstance.objects.filter(service__name=name, state="ready").first()


@pytest.mark.django_db
def test_a_backlog_evicts_one_model_which_is_loaded_again_for_its_prompts(
    box: Box, data: Path
) -> None:
    for _ in range(4):
        box.step()
    first, stays = ready(LEAVES), ready(STAYS)
    assert first is not None
    assert stays is not None
    assert (first.gpu_uuids, stays.gpu_uuids) == ([UUIDS[6]], [UUIDS[1]])
    users = Activity(data / "home", Random(1))
    users.act(box.now)
    assert Prompt.objects.filter(status="queued").count() == 1
    assert not Job.objects.filter(name__startswith="subtitles").exists()

    box.now += demo.FIRST_BACKLOG_AFTER
    users.act(box.now)
    evicted = [name for _ in range(5) for name in box.step()]

    assert evicted == [LEAVES]
    assert first.job is not None
    box.end(first.job, Outcome.CANCELLED)
    service = ModelService.objects.get(name=LEAVES)
    waiting = Job.objects.filter(name__startswith="subtitles").exclude(state="finished")
    for _ in range(BACKLOG):
        # As the endpoint does while prompts wait.
        rows.request_instance(service.pk, box.now)
        box.step()
        (job,) = waiting.filter(state="starting")
        assert ready(LEAVES) is None
        box.end(job)
    for _ in range(4):
        box.step()
    again = ready(LEAVES)
    assert again is not None
    assert again.pk != first.pk
    assert ready(STAYS) == stays
    assert Event.objects.filter(kind="MODEL_EVICTED").count() == 1
    assert Event.objects.filter(kind="MODEL_READY", text__contains=LEAVES).count() == 2


@pytest.mark.django_db
def test_the_backlog_comes_again_after_a_while_for_later_visitors(box: Box) -> None:
    for _ in range(4):
        box.step()
    at = box.now + demo.FIRST_BACKLOG_AFTER

    assert demo.is_backlog_due(None, at)
    assert not demo.is_backlog_due(at, at + demo.BACKLOG_EVERY - timedelta(seconds=1))
    assert demo.is_backlog_due(at, at + demo.BACKLOG_EVERY)


@pytest.mark.django_db
def test_prompts_do_not_pile_up_when_no_instance_answers_them(box: Box, data: Path) -> None:
    users = Activity(data / "home", Random(1))
    for _ in range(demo.MOST_WAITING + 10):
        users.act(box.now)

    assert Prompt.objects.filter(status="queued").count() == demo.MOST_WAITING


@pytest.mark.django_db
def test_pages_show_the_models_with_their_history(box: Box, as_user: AsUser) -> None:
    for _ in range(4):
        box.step()
    alice = as_user(User.objects.get(username="alice"))
    models = alice.get("/models/").content.decode()
    page = alice.get(f"/models/{LEAVES}/").content.decode()

    assert models.count('data-shape="ok">ready') == 2
    assert "GPU 6: ready" in models
    assert rows.prediction(ModelService.objects.get(name=LEAVES), box.now) is not None
    assert "complete" in page
    assert prompts.summary(LEAVES, box.now - timedelta(hours=24)).requests > 1000


@pytest.mark.django_db
def test_a_small_server_has_the_models_where_there_is_room(
    data: Path, settings: Any, root: User
) -> None:
    settings.CONFIG = Config(data=data, probe="simulated", node="gpubox", admin_user="root")
    users = {name: User.objects.create(username=name) for name in PEOPLE}
    demo.seed_models(users, UUIDS[:1], data / "home", Box().now)

    assert gpus_of_models() == {}
    assert list(ModelService.objects.values_list("on_gpus", flat=True)) == [[], []]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_visitor_sees_the_whole_story(tmp_path: Path) -> None:
    with Demo(tmp_path) as demo_run:

        def events(kind: str) -> list[str]:
            told = "SELECT text FROM monitor_event WHERE kind = ? ORDER BY id"
            return [text for (text,) in demo_run.rows(told, kind) if LEAVES in text]

        wait_until(lambda: events("MODEL_READY"), LONGEST_S, "the model is ready")
        wait_until(lambda: events("MODEL_EVICTED"), LONGEST_S, "the model is evicted")
        wait_until(lambda: len(events("MODEL_READY")) > 1, LONGEST_S, "the model is back")
        ended = "SELECT status, count(*) FROM scheduler_prompt GROUP BY status"
        counts = dict(demo_run.rows(ended))
        assert counts["complete"] > 10
        assert "failed" not in counts
        page = demo_run.page_of_alice(f"/models/{LEAVES}/")
        assert "leaves its GPU" in page
        assert "jobs wait for a GPU" in page
