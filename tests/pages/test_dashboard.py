from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.gpus import GpuState
from monitor.facts.readings import OwnerReading, Presence, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot
from tests.pages.conftest import crowd

pytestmark = pytest.mark.usefixtures("only_monitor")
Browse = Callable[[User], Client]
Seen = Callable[..., Snapshot]
DETAIL = f"/gpus/{gpu_uuid(0)}/card/"


def page(client: Client, path: str = "/") -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_it_asks_a_stranger_to_log_in(db: None) -> None:
    response = Client().get("/")

    assert response.status_code == 302
    assert response["Location"] == "/login/?next=/"


def test_it_names_the_user_whom_jobs_yield_to(alice: User, as_user: Browse, seen: Seen) -> None:
    owner = OwnerReading(
        gpu_uuid=gpu_uuid(0),
        presence=Presence.OWNER,
        since=NOW,
        came_at=NOW,
        program="blender",
        user="bob",
    )
    seen(2, owners=(owner,))

    for path in (DETAIL, f"/gpus/{gpu_uuid(0)}/"):
        assert "’s <b>blender</b> has used this GPU since" in page(as_user(alice), path)
    assert "has used this GPU since" not in page(as_user(alice), f"/gpus/{gpu_uuid(1)}/")
    here, nobody = (gpu["guest"] for gpu in as_user(alice).get("/api/gpus/").json()["gpus"])
    assert (here["user"], here["program"], nobody) == ("bob", "blender", None)


def test_it_says_that_it_waits_before_the_first_reading(alice: User, as_user: Browse) -> None:
    html = page(as_user(alice))

    assert "Waiting for the first reading" in html
    assert "Waiting for the first reading" in html


@pytest.mark.parametrize("count", [8, 64])
def test_it_shows_a_row_for_each_gpu_in_the_order_of_their_numbers(
    count: int, alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(count, crowd(count, 20))
    html = page(as_user(alice))

    assert re.findall(r'data-gpu-row="(\d+)"', html) == [str(i) for i in range(count)]
    assert f"{count} of {count} GPUs healthy" in html


@pytest.mark.parametrize(
    ("query", "shown"), [("", "all"), ("?show=free", "free"), ("?show=x", "all")]
)
def test_the_address_keeps_the_filter_of_the_board(
    query: str, shown: str, alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(20)

    html = page(as_user(alice), f"/{query}")

    assert f'id="board" data-show="{shown}" data-viewer="alice"' in html


def test_it_shows_who_is_on_a_gpu_with_program_memory_and_share(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1, [process(user="bob", program="vllm", memory_bytes=12 * GIB, sm_pct=34.0)])
    html = page(as_user(alice), DETAIL)

    assert ">bob</a>" in html
    assert "vllm" in html
    assert '<b data-v="0" data-d="3">12.0</b> GiB' in html
    assert '<b data-v="1">34</b> %' in html


def test_it_shows_no_command_line_not_even_to_an_operator(
    root: User, as_user: Browse, seen: Seen
) -> None:
    seen(1, [process(command=("python", "--token=s3cret"))])

    for path in ("/", DETAIL):
        assert "s3cret" not in page(as_user(root), path)


def test_it_says_who_is_unknown_instead_of_guessing(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1, [process(user=None, program=None, sm_pct=None)])
    html = page(as_user(alice), DETAIL)

    assert "Owner unknown" in html
    assert 'class="unknown" data-v="1"' in html


def test_there_is_no_detail_of_an_unknown_gpu_nor_for_a_stranger(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1)

    assert as_user(alice).get("/gpus/GPU-unknown/card/").status_code == 404
    assert Client().get(DETAIL).status_code == 302


def test_it_says_what_is_missing_without_a_driver(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(0, problem="No NVIDIA driver was found.", remedy="Install it: apt install nvidia-driver")
    html = page(as_user(alice))

    assert "The GPUs can&#x27;t be read" in html
    assert "No NVIDIA driver was found." in html
    assert "apt install nvidia-driver" in html
    # The host is shown all the same.
    assert 'id="line-gpubox"' in html


def test_the_idle_time_of_a_gpu_is_on_its_card_and_in_rest(alice: User, as_user: Browse) -> None:
    since = NOW - timedelta(minutes=7)
    held = gpu(0, state=GpuState.EXTERNAL, state_since=NOW, idle_since=since)
    snapshots.record(snapshot([held, gpu(1, state=GpuState.IDLE, utilization_pct=None)]))

    assert "idle for" in page(as_user(alice), DETAIL)
    lines = as_user(alice).get("/api/gpus/").json()["gpus"]
    assert [line["idle_seconds"] for line in lines] == [420.0, None]


def test_what_happened_is_on_the_page_of_events_only(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1)
    events.add("GPU_LOST", "GPU 0 has fallen off the bus.", now=NOW, severity="error")

    assert "GPU 0 has fallen off the bus." not in page(as_user(alice))
    assert "GPU 0 has fallen off the bus." in page(as_user(alice), "/events/")


def test_it_says_on_each_page_that_figures_are_simulated(
    root: User, as_user: Browse, seen: Seen
) -> None:
    seen(1)
    for path in ("/", "/processes/", f"/gpus/{gpu_uuid()}/"):
        html = page(as_user(root), path)

        assert "<title>[simulated] " in html
        assert 'class="sim-banner"' in html


def test_it_keeps_to_its_content_security_policy(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(2, crowd(2, 5))
    response = as_user(alice).get("/")
    html = response.content.decode()

    assert "script-src 'self'; " in response["Content-Security-Policy"] + "; "
    assert " style=" not in html
    assert " onclick=" not in html
    assert "<style" not in html


def test_it_links_to_the_admin_for_operators_only(alice: User, root: User, as_user: Browse) -> None:
    assert 'href="/admin/"' not in page(as_user(alice))
    assert 'href="/admin/"' in page(as_user(root))


def test_it_takes_the_theme_from_the_cookie(alice: User, as_user: Browse) -> None:
    client = as_user(alice)
    client.cookies["theme"] = "dark"
    assert 'data-theme="dark"' in page(client)

    client.cookies["theme"] = '"><script>'
    assert 'data-theme="auto"' in page(client)


def test_it_reads_little_of_the_database(
    alice: User, as_user: Browse, seen: Seen, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    seen(8, crowd(8, 100))
    client = as_user(alice)
    page(client)

    # Session, user, snapshots, claims, incidents: not a query per GPU or process.
    with django_assert_max_num_queries(7):  # type: ignore[attr-defined]
        page(client)
