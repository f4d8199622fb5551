from __future__ import annotations

from typing import Any

from monitor.facts.gpus import GpuState
from monitor.facts.incidents import Badge, Badges
from monitor.facts.readings import DiskReading, OwnerReading, Presence
from monitor.pages import cards
from tests.builders import GIB, NOW, gpu, gpu_uuid, host, process, snapshot


def test_each_gpu_keeps_its_place_whatever_its_state() -> None:
    state = [GpuState.IDLE, GpuState.EXTERNAL, GpuState.LOST, GpuState.FAILING]
    readings = [gpu(i, state=s) for i, s in enumerate(state)]
    shown = cards.cards([snapshot(readings[::-1])])

    assert [card.index for card in shown] == [0, 1, 2, 3]


def test_two_cards_are_equal_when_only_figures_moved() -> None:
    before = snapshot([gpu(utilization_pct=1.0)], [process(memory_bytes=GIB, sm_pct=1.0)])
    after = snapshot([gpu(utilization_pct=9.0)], [process(memory_bytes=GIB + 9, sm_pct=7.0)])

    assert cards.cards([before]) == cards.cards([after])


def test_a_new_process_changes_its_card() -> None:
    assert cards.cards([snapshot(1)]) != cards.cards([snapshot(1, [process()])])


def test_a_card_shows_the_five_biggest_and_counts_the_rest() -> None:
    found = [process(pid, memory_bytes=pid * GIB) for pid in range(1, 9)]
    (card,) = cards.cards([snapshot(1, found)])

    assert [row.pid for row in card.rows] == [8, 7, 6, 5, 4]
    assert card.more == 3


def test_a_sixth_process_is_shown_rather_than_counted() -> None:
    (card,) = cards.cards([snapshot(1, [process(pid) for pid in range(1, 7)])])

    assert len(card.rows) == 6
    assert card.more == 0


def test_processes_of_about_the_same_size_keep_their_places() -> None:
    def pids(first: int, second: int) -> list[int]:
        found = [process(1, memory_bytes=first), process(2, memory_bytes=second)]
        return [row.pid for row in cards.cards([snapshot(1, found)])[0].rows]

    assert pids(5 * GIB + 10, 5 * GIB + 20) == pids(5 * GIB + 20, 5 * GIB + 10) == [1, 2]


def test_the_owner_of_a_job_stands_for_the_account_it_runs_as() -> None:
    row = cards.process_row(process(user="nobody", job_ref="7", job_owner="bob"))

    assert row.owner == "bob"


def test_unknown_figures_stay_unknown() -> None:
    reading = gpu(utilization_pct=None, memory_used_bytes=None, power_w=None, temperature_c=None)
    (card,) = cards.cards([snapshot([reading])])

    assert card.values == (None,) * 6


def test_the_fullest_disk_is_shown() -> None:
    disks = (
        DiskReading(mount="/", total_bytes=100, free_bytes=50),
        DiskReading(mount="/data", total_bytes=1000, free_bytes=100),
    )
    (strip,) = cards.strips([snapshot(host=host(disks=disks))])

    assert (strip.disk_mount, strip.disk_pct) == ("/data", 90.0)


def test_every_state_has_a_word_and_a_shape() -> None:
    assert set(cards.STATES) == set(GpuState)


def test_the_card_names_the_user_whom_jobs_yield_to_but_not_a_suspected_one() -> None:
    facts: dict[str, Any] = {"user": "alice", "program": "blender", "since": NOW, "came_at": NOW}
    told = [
        cards.cards([snapshot(1, owners=(OwnerReading(gpu_uuid=gpu_uuid(), presence=p, **facts),))])
        for p in Presence
    ]

    guests = [card.guest for (card,) in told]
    assert [guest and guest.description for guest in guests] == [
        None,
        None,
        "alice's blender",
        "alice's blender",
    ]


def test_a_card_leaves_out_the_maker() -> None:
    (card,) = cards.cards([snapshot([gpu(name="NVIDIA A100-SXM4-80GB")])])

    assert (card.model, card.name) == ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")


def test_a_harmful_incident_needs_attention_but_moves_no_gpu() -> None:
    badges = Badges(
        gpus={
            gpu_uuid(1): Badge("hog", "warning", 1, "", waited_s=60),
            gpu_uuid(2): Badge("heavy use", "info", 2, "", waited_s=900),
        }
    )
    shown = cards.cards([snapshot(3)], badges)

    assert [card.index for card in shown] == [0, 1, 2]
    assert [card.needs_attention for card in shown] == [False, True, False]
