"""The row of a GPU on the dashboard's board."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

from django.utils import timezone
from msgspec.structs import replace

from monitor.facts.accounts import ClaimKind, GpuTask
from monitor.facts.gpus import GpuState
from monitor.facts.incidents import Badge, Badges
from monitor.pages import cards
from monitor.pages.cards import Card
from monitor.pages.rendering import gpu_cells, gpu_row
from tests.builders import gpu, gpu_uuid, process, snapshot


def seen(**changes: object) -> Card:
    (card,) = cards.cards([snapshot([replace(gpu(0), **changes)])])  # type: ignore[arg-type]
    return card


def test_texts_of_drivers_and_users_are_escaped() -> None:
    (card,) = cards.cards([snapshot([gpu(0, name='<b>"x"')], processes=[process(user="<i>'")])])

    html = gpu_cells(card)

    assert "<b>" not in html.replace("<b data-v", "")
    assert "&lt;b&gt;&quot;x&quot;" in html
    assert "<i>" not in html
    assert "<host>" not in gpu_row(dataclasses.replace(card, host="<host>"), several=True)


def test_a_row_is_named_by_its_index_and_with_several_hosts_by_its_host_too() -> None:
    card = seen(index=3)

    assert 'data-gpu-row="3"' in gpu_row(card, several=False)
    assert f'data-gpu-row="{card.host}/3"' in gpu_row(card, several=True)


def test_it_has_five_cells_and_the_values_of_the_live_feed() -> None:
    card = seen(utilization_pct=42.0, memory_used_bytes=None)

    html = gpu_cells(card)

    assert html.count('role="cell"') == 5
    assert f'data-live="g:{gpu_uuid(0)}"' in gpu_row(card, several=False)
    assert '<b data-v="0">42</b> %' in html
    # Unknown is not zero.
    assert re.search(r'<b class="unknown" data-v="1"[^>]*>–</b>.* GiB', html)


def test_a_lost_gpu_stands_out_and_is_chosen_by_the_filter_for_trouble() -> None:
    good, lost = seen(state=GpuState.IDLE), seen(state=GpuState.LOST)

    assert 'class="b-cells trouble"' in gpu_cells(lost)
    assert " data-trouble" in gpu_cells(lost)
    assert 'class="b-cells"' in gpu_cells(good)
    assert " data-trouble" not in gpu_cells(good)
    assert " data-free" in gpu_cells(good)
    assert " data-free" not in gpu_cells(lost)


def test_a_job_without_processes_in_the_readings_is_shown_with_its_owner() -> None:
    task = GpuTask(job_ref="7", name="train", owner="dana")
    (card,) = cards.cards([snapshot([gpu(0, state=GpuState.LOST)])], tasks={gpu_uuid(0): (task,)})

    html = gpu_cells(card)

    assert ">dana</a>" in html
    assert "processes unknown" not in html


def test_owners_are_named_and_further_ones_counted() -> None:
    many = [process(pid=n, user=f"user{n}") for n in range(9)]
    (card,) = cards.cards([snapshot([gpu(0)], processes=many)])

    html = gpu_cells(card)

    assert ">user0</a>" in html
    assert f"+{len(card.further_owners)}</span>" in html
    assert "user8" in html.split("data-owners=")[1].split(">")[0]


def test_memory_held_idle_is_shown_with_its_duration() -> None:
    since = timezone.now() - timedelta(hours=3, minutes=44)
    held = Badge("held idle", "warning", 7, "erin holds 40 GiB", idle_since=since)
    seen = snapshot([gpu(0)], processes=[process(user="erin")])
    (card,) = cards.cards([seen], Badges(gpus={gpu_uuid(0): held}))

    html = gpu_cells(card)

    assert re.search(r'href="/incidents/7/"[^>]*>idle <time [^>]*>3 h</time></a>', html)
    assert " data-trouble" in html


def test_it_names_what_runs_with_progress_and_end() -> None:
    ends = timezone.now() + timedelta(hours=1)
    train = GpuTask(job_ref="12", name="train", owner="alice", progress=0.43, ends_at=ends)
    model = GpuTask(job_ref="13", name="qwen", owner="llm", kind=ClaimKind.LLM)

    job = gpu_cells(dataclasses.replace(seen(), tasks=(train, model)))
    alone = gpu_cells(dataclasses.replace(seen(), tasks=(model,)))

    assert re.search(r'href="/jobs/12/">train</a> 43 % · ends ~<time.*</time> · 1 more', job)
    assert 'href="/models/qwen/">qwen</a></span>' in alone


def test_without_a_job_the_largest_program_is_named() -> None:
    (card,) = cards.cards([snapshot([gpu(0)], processes=[process(program="torchrun")])])

    assert ">torchrun</span>" in gpu_cells(card)
