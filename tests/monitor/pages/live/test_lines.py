"""The line of a GPU on a dashboard with many GPUs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

from django.utils import timezone

from monitor.facts.gpu_states import GpuState
from monitor.incidents.facts import Badge, Badges
from monitor.pages.live import cards
from monitor.pages.live.lines import gpu_line
from tests.builders import gpu, gpu_uuid, process, snapshot

SPARK = ("M0 1", "M0 2")


def test_texts_of_drivers_and_users_are_escaped() -> None:
    seen = snapshot([gpu(0, name='<b>"x"')], processes=[process(user="<i>'")])
    (card,) = cards.cards([seen])

    html = gpu_line(card, SPARK, several=True)

    assert "<b>" not in html.replace("<b data-v", "")
    assert "&lt;b&gt;&quot;x&quot;" in html
    assert "<i>" not in html


def test_it_has_eight_cells_and_the_values_of_the_live_feed() -> None:
    (card,) = cards.cards([snapshot([gpu(3, utilization_pct=42.0, power_w=None)])])

    html = gpu_line(card, SPARK, several=False)

    assert html.count('role="cell"') == 8
    assert f'data-live="g:{gpu_uuid(3)}"' in html
    assert re.findall(r'<b[^>]* data-v="(\d)"', html) == ["0", "1", "2", "3"]
    assert '<b data-v="0">42</b>' in html
    # Unknown is not zero.
    assert re.search(r'<b class="unknown" data-v="2"[^>]*>–</b> W', html)


def test_a_lost_gpu_stands_out() -> None:
    (card,) = cards.cards([snapshot([gpu(0)])])
    lost = replace(card, state=GpuState.LOST)

    assert 'class="gpu-line trouble"' in gpu_line(lost, SPARK, several=False)
    assert 'class="gpu-line"' in gpu_line(card, SPARK, several=False)


def test_several_owners_are_counted() -> None:
    many = [process(pid=n, user=f"user{n}") for n in range(9)]
    (card,) = cards.cards([snapshot([gpu(0)], processes=many)])

    html = gpu_line(card, SPARK, several=False)

    assert f"+{len(card.further_owners)}</span>" in html


def test_memory_held_idle_is_shown_with_its_duration() -> None:
    since = timezone.now() - timedelta(hours=3, minutes=44)
    held = Badge("held idle", "warning", 7, "erin holds 40 GiB", idle_since=since)
    seen = snapshot([gpu(0)], processes=[process(user="erin")])
    (card,) = cards.cards([seen], Badges(gpus={gpu_uuid(0): held}))

    html = gpu_line(card, SPARK, several=False)

    assert re.search(r'href="/incidents/7/"[^>]*>idle <time [^>]*>3 h</time></a>', html)
