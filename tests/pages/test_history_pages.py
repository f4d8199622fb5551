from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.simulated import Scenario
from monitor.models import Gpu, ProcessMinute, ProcessUse
from monitor.usage.rows import rollups
from tests.builders import gpu, process, snapshot
from tests.monitor.past import process_use

Browse = Callable[[User], Client]
FULL = {"sm_s": 45, "held_s": 60, "known_s": 30, "memory_byte_s": 600, "peak_memory_bytes": 2**30}


@pytest.fixture
def used(db: None) -> ProcessUse:
    """Alice's process on GPU 0 of gpubox, there in 20 minutes of the last half hour."""
    now = timezone.now()
    begin = now - timedelta(minutes=30)
    snapshots.record_history(snapshot([gpu()], at=begin + timedelta(minutes=m)) for m in range(30))
    rollups.roll_up(now)
    use = process_use(
        Gpu.objects.get(), begin, last_seen_at=now, sm_s=900, held_s=1200, known_s=600
    )
    first = rollups.floor(int(begin.timestamp()), 60)
    ProcessMinute.objects.bulk_create(
        ProcessMinute(use=use, t=first + 60 * m, **FULL) for m in range(20)
    )
    rollups.roll_up_processes(now)
    return use


def page(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status
    return response.content.decode()


def test_sums_of_a_person_are_for_all(used: ProcessUse, bob: User, as_user: Browse) -> None:
    html = page(as_user(bob), "/users/alice/?range=24h")

    assert "<b>0.250</b> GPU-h" in html
    assert "50 %" in html
    assert "Only alice and operators can see single processes." in html
    assert f"/processes/{used.pk}/" not in html


def test_details_are_for_oneself_and_operators(
    used: ProcessUse, alice: User, root: User, as_user: Browse
) -> None:
    for person in (alice, root):
        assert f'href="/processes/{used.pk}/"' in page(as_user(person), "/users/alice/")


def test_a_process_is_shown_to_its_owner_and_operators_alone(
    used: ProcessUse, alice: User, bob: User, root: User, as_user: Browse
) -> None:
    path = f"/processes/{used.pk}/"

    assert "Average utilisation" in page(as_user(alice), path)
    assert "Average utilisation" in page(as_user(root), path)
    assert "belongs to another user" in page(as_user(bob), path, 403)


def test_the_owner_of_a_job_sees_its_process(used: ProcessUse, bob: User, as_user: Browse) -> None:
    ProcessUse.objects.update(user="nobody", job_owner="bob", job_ref="7")

    assert "job 7" in page(as_user(bob), f"/processes/{used.pk}/")


def test_an_unknown_user_name_is_not_found(alice: User, as_user: Browse) -> None:
    page(as_user(alice), "/users/mallory/", 404)
    page(as_user(alice), "/hosts/nowhere/", 404)
    page(as_user(alice), "/processes/77/", 404)


def test_someone_without_any_use_has_a_page_that_says_so(alice: User, as_user: Browse) -> None:
    assert "alice used no GPU in the last 24 h" in page(as_user(alice), "/users/alice/")


@pytest.mark.parametrize("name", ["a/b", "DOMAIN\\eve", "o'neil <b>", "ünal"])
def test_any_name_can_be_linked(name: str, used: ProcessUse, root: User, as_user: Browse) -> None:
    ProcessUse.objects.update(user=name)
    html = page(as_user(root), f"/gpus/{used.gpu_id}/?range=1h")
    link = unescape(html.split('href="/users/')[1].split('"')[0])

    assert "<b>0.250</b> GPU-h" in page(as_user(root), f"/users/{link}")


def test_a_host_shows_its_charts_and_a_strip_per_gpu(
    used: ProcessUse, alice: User, as_user: Browse
) -> None:
    html = page(as_user(alice), "/hosts/gpubox/?range=24h")

    assert html.count('<figure class="chart"') == 6
    assert html.count('class="cell h') == 24
    assert 'class="cell-user">alice' in html


def test_a_host_shows_its_live_figures_first(alice: User, as_user: Browse) -> None:
    snapshots.record(snapshot(1))
    html = page(as_user(alice), "/hosts/gpubox/")

    assert html.index('data-live="h:gpubox"') < html.index(">History<")


def test_the_gpu_page_lists_its_users(used: ProcessUse, bob: User, as_user: Browse) -> None:
    html = page(as_user(bob), f"/gpus/{used.gpu_id}/?range=7d")

    assert "Usage in the last 7 d" in html
    assert 'href="/users/alice/"' in html
    assert "coverage" in html


def test_a_time_of_ones_own_choice_stays_in_the_form(
    used: ProcessUse, alice: User, as_user: Browse
) -> None:
    path = f"/gpus/{used.gpu_id}/?range=custom&since=2026-01-02T03:04Z&until=2026-01-02T05:04Z"
    html = page(as_user(alice), path)

    assert 'value="2026-01-02T0' in html
    assert "No readings in this time" in html
    assert "hx-trigger" not in html.split('id="history"')[1].split(">")[0]


@pytest.mark.parametrize("span", ["10min", "1h", "24h", "7d", "30d", "life", "nonsense"])
@pytest.mark.parametrize("where", ["users/alice", "hosts/gpubox", "gpus/{gpu}", "processes/{use}"])
def test_each_page_has_each_range(
    where: str, span: str, used: ProcessUse, alice: User, as_user: Browse
) -> None:
    path = where.format(gpu=used.gpu_id, use=used.pk)

    assert 'aria-current="true"' in page(as_user(alice), f"/{path}/?range={span}")


def test_rows_of_processes_link_to_what_they_did_where_one_may_see_it(
    alice: User, bob: User, as_user: Browse
) -> None:
    snapshots.record(snapshot([gpu()], [process(1)], host=Scenario(1).host(timezone.now(), "box")))
    use = process_use(Gpu.objects.get(), timezone.now(), pid=1, start_ticks=1001)

    assert f'href="/processes/{use.pk}/"' in page(as_user(alice), "/processes/")
    assert f"/processes/{use.pk}/" not in page(as_user(bob), "/processes/")
