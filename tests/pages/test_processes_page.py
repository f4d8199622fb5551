from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.readings import Snapshot
from monitor.usage.pages import content
from tests.builders import GIB, NOW, gpu_uuid, process
from tests.pages.conftest import crowd

Browse = Callable[[User], Client]
Seen = Callable[..., Snapshot]


def page(client: Client, query: str = "") -> str:
    response = client.get(f"/processes/{query}")
    assert response.status_code == 200
    return response.content.decode()


def pids(html: str) -> list[int]:
    return [int(pid) for pid in re.findall(r'<tr id="p-(\d+)-', html)]


def test_it_asks_a_stranger_to_log_in(db: None) -> None:
    assert Client().get("/processes/").status_code == 302


def test_an_empty_table_has_a_message(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1)

    assert "No processes on any GPU" in page(as_user(alice))


def test_it_shows_500_processes_biggest_first(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(64, crowd(64, 500))
    html = page(as_user(alice))

    assert len(pids(html)) == 500
    assert "500 on GPUs" in html
    assert pids(html)[0] == 4_200_006


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", [2, 3, 1]),
        ("-memory", [2, 3, 1]),
        ("memory", [1, 3, 2]),
        ("owner", [3, 2, 1]),
        ("-share", [1, 2, 3]),
        ("gpu", [1, 3, 2]),
        ("pid", [1, 2, 3]),
        ("program", [2, 1, 3]),
        ("drop table", [2, 3, 1]),
    ],
)
def test_it_sorts_by_each_column(
    sort: str, order: list[int], alice: User, as_user: Browse, seen: Seen
) -> None:
    three = [
        process(1, user=None, memory_bytes=None, sm_pct=90.0, program="b"),
        process(2, on=1, user="bob", memory_bytes=3 * GIB, sm_pct=50.0, program="a"),
        process(3, user="alice", memory_bytes=2 * GIB, sm_pct=None, program=None),
    ]
    seen(2, three)
    found = pids(page(as_user(alice), f"?sort={sort}" if sort else ""))

    if sort == "gpu":
        assert set(found[:2]) == {1, 3}
    else:
        assert found == order


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?q=VLLM", [2]),
        ("?q=job+7", [2]),
        ("?q=bob", [2]),
        ("?q=own.py", [1]),
        ("?q=secret", []),
        ("?owner=alice", [1]),
        ("?gpu=gpubox:1", [2]),
        ("?owner=alice&gpu=gpubox:1", []),
    ],
)
def test_it_filters_by_the_address_and_never_by_what_it_hides(
    query: str, found: list[int], alice: User, as_user: Browse, seen: Seen
) -> None:
    mine = process(1, command=("python", "own.py"))
    bobs = process(2, on=1, user="bob", program="vllm", command=("x", "secret"), job_ref="7")
    seen(2, [mine, bobs])

    assert pids(page(as_user(alice), query)) == found


def test_it_offers_the_way_back_from_a_filter_that_finds_nothing(
    alice: User, as_user: Browse, seen: Seen
) -> None:
    seen(1, [process()])

    assert "None of the 1 processes match" in page(as_user(alice), "?q=zzz")


def test_others_see_program_and_owner_but_not_the_command(
    alice: User, bob: User, charlie: User, root: User, as_user: Browse, seen: Seen
) -> None:
    job = process(1, user="nobody", job_ref="1", job_owner="bob", command=("python", "--key=k3y"))
    seen(1, [job])

    assert "k3y" in page(as_user(bob))
    assert "k3y" in page(as_user(root))
    for other in (alice, charlie):
        html = page(as_user(other))
        assert "k3y" not in html
        assert ">bob</a>" in html


def test_it_keeps_what_was_typed(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1, [process()])
    html = page(as_user(alice), "?q=%22%3E%3Cb%3E&sort=pid")

    assert 'value="&quot;&gt;&lt;b&gt;"' in html
    assert '<input type="hidden" name="sort" value="pid">' in html


def test_it_adds_up_what_each_owner_holds(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(
        2,
        [
            process(1, memory_bytes=10 * GIB, sm_pct=30.0),
            process(1, on=1, memory_bytes=20 * GIB, sm_pct=50.0),
            process(2, user="bob", memory_bytes=5 * GIB, sm_pct=None),
        ],
    )
    totals = page(as_user(alice)).split('id="totals"')[1]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in totals.split("<tr>")[2:]]

    assert rows[0][:5] == ["alice", "1", "2", "30.0", "80"]
    assert rows[1][:5] == ["bob", "1", "1", "5.00", "–"]


def test_totals_are_of_the_listed_processes(alice: User, as_user: Browse, seen: Seen) -> None:
    seen(1, [process(1), process(2, user="bob")])
    totals = page(as_user(alice), "?owner=bob").split('id="totals"')[1]

    assert "bob" in totals
    assert "alice" not in totals


def test_a_process_that_uses_nothing_shows_since_when(
    alice: User, as_user: Browse, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen(2, [process(1, memory_bytes=40 * GIB), process(2, on=1, memory_bytes=50 * GIB)])
    since = NOW - timedelta(hours=2)
    monkeypatch.setattr(
        content, "idle_processes", lambda host, found, now: {(gpu_uuid(0), 1): since}
    )
    html = page(as_user(alice), "?sort=-idle")

    assert pids(html) == [1, 2]
    assert since.isoformat() in html
