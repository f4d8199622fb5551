from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.facts.gpus import Ailment, Condition, HealthReading
from monitor.facts.readings import InstanceReading, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import LatestSnapshot
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

Browse = Callable[[User], Client]
Seen = Callable[..., Snapshot]
PATH = f"/gpus/{gpu_uuid()}/"


def page(client: Client, path: str = PATH) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_it_asks_a_stranger_to_log_in(db: None) -> None:
    assert Client().get(PATH).status_code == 302


def test_it_does_not_know_a_gpu_that_never_was(alice: User, as_user: Browse) -> None:
    response = as_user(alice).get("/gpus/GPU-nonsense/")

    assert response.status_code == 404
    assert "Page not found" in response.content.decode()


def test_it_shows_facts_and_state(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(2, [process()])
    html = page(as_user(alice))

    assert "NVIDIA H100 80GB HBM3" in html
    assert gpu_uuid() in html
    assert "00000000:01:00.0" in html
    assert "in use" in html


def test_it_tells_unsupported_values_and_failed_calls_apart(
    alice: User, as_user: Browse, db: None
) -> None:
    lacking = ("memory_total_bytes", "memory_used_bytes", "power_limit_w")
    call = "nvmlDeviceGetPowerUsage: Unknown Error"
    odd = gpu(memory_total_bytes=None, unsupported=lacking, failed_calls=(call,), power_w=None)
    snapshots.record(snapshot([odd]))
    html = page(as_user(alice))

    assert "memory total, memory used, power limit" in html
    assert call in html
    assert "stated by an operator" not in html


def test_it_says_that_its_memory_is_stated(alice: User, as_user: Browse, db: None) -> None:
    snapshots.record(snapshot([gpu(unsupported=("memory_total_bytes", "memory_used_bytes"))]))

    assert "stated by an operator" in page(as_user(alice))


def test_it_shows_the_processes_of_this_gpu_only(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(2, [process(1, program="mine"), process(2, on=1, program="elsewhere")])
    html = page(as_user(alice))

    assert "mine" in html
    assert "elsewhere" not in html


def test_it_hides_the_commands_of_others(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1, [process(1, command=("python", "own.py")), process(2, user="bob", command=("sh", "x"))])
    html = page(as_user(alice))

    assert "python own.py" in html
    assert "sh x" not in html
    assert "Only the owner and operators can see the command line" in html


def test_it_charts_the_history_of_the_range_asked_for(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1)
    now = timezone.now()
    past = [snapshot([gpu(utilization_pct=50.0)], at=now - timedelta(minutes=m)) for m in range(20)]
    snapshots.record_history(past)
    html = page(as_user(alice), f"{PATH}?range=1h")

    assert html.count('<figure class="chart"') == 4
    assert "no readings" in html
    assert '<a href="?range=24h">24 h</a>' in html
    assert '<a href="?range=1h" aria-current="true">1 h</a>' in html


def test_it_says_that_nothing_is_known(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1)

    assert "No readings in the last 10 min" in page(as_user(alice), f"{PATH}?range=10min")


@pytest.mark.parametrize("query", ["?range=9y", "?sort=nonsense", "?sort=--", "?range="])
def test_it_takes_a_wrong_query_for_the_default(
    query: str, alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1)

    assert 'aria-current="true">1 h</a>' in page(as_user(alice), PATH + query)


def test_it_keeps_the_page_of_a_gpu_that_is_gone(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1)
    LatestSnapshot.objects.all().delete()
    html = page(as_user(alice))

    assert "not seen" in html
    assert "last seen" in html


def test_it_lists_events_of_this_gpu_only(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(2)
    events.add("GPU_LOST", "This one was lost.", now=NOW, gpu_uuid=gpu_uuid())
    events.add("GPU_LOST", "Another was lost.", now=NOW, gpu_uuid=gpu_uuid(1))
    html = page(as_user(alice))

    assert "This one was lost." in html
    assert "Another was lost." not in html


def test_it_shows_what_the_gpu_can_do(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1)
    html = page(as_user(alice))

    assert "(Hopper)" in html
    assert "<dd>2000</dd>" in html


def test_it_marks_an_estimated_rank(alice: User, as_user: Browse) -> None:
    reading = gpu(name="NVIDIA New", cores=1000, max_sm_clock_mhz=1000, compute_capability="9.0")
    snapshots.record(snapshot([reading], at=timezone.now()))

    assert "(estimated)" in page(as_user(alice))


def test_it_says_why_a_gpu_gets_no_new_work(alice: User, as_user: Browse) -> None:
    ailment = Ailment("SLOWED", Condition.THROTTLED, "The power supply asked it to brake.")
    reading = gpu(condition=Condition.THROTTLED, condition_reason=ailment.text)
    counts = HealthReading(
        gpu_uuid=gpu_uuid(), clock_reasons=0x80, ecc_corrected=3, ailments=(ailment,)
    )
    snapshots.record(snapshot([reading], health=(counts,), at=timezone.now()))
    html = page(as_user(alice))

    assert "throttled" in html
    assert "The power supply asked it to brake." in html
    assert "the power supply (brake)" in html
    assert "3 corrected, – uncorrected" in html
    assert "throttled" in as_user(alice).get("/").content.decode()


def test_it_shows_memory_that_no_listed_process_holds(alice: User, as_user: Browse) -> None:
    held = gpu(0, memory_used_bytes=30 * GIB, orphaned_bytes=12 * GIB)
    snapshots.record(snapshot([held], [process()]))

    assert "12 GiB in use by no visible process" in page(as_user(alice))


def test_it_lists_mig_instances_whose_use_is_unknown(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    instance = InstanceReading(
        gpu_uuid=gpu_uuid(),
        uuid="MIG-7",
        instance=3,
        name="2g.20gb",
        memory_total_bytes=20 * GIB,
        memory_used_bytes=5 * GIB,
    )
    inside = process(instance=3, sm_pct=None, container="docker 0123456789ab")
    seen(1, [inside], instances=(instance,))
    html = page(as_user(alice))

    assert "MIG-7" in html
    assert "5.00 GiB / 20.0 GiB" in html
    assert "The driver does not report utilisation per MIG instance" in html
    assert "docker 0123456789ab" in html
