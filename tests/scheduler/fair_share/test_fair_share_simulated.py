from __future__ import annotations

import pytest

from tests.scheduler.fair_box import GPUS, Box


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_gpu_used_without_a_job_counts_as_part_of_ones_third(seed: int) -> None:
    box = Box(outside={"bob": 1}, seed=seed)
    for name in ("alice", "bob", "carol"):
        box.comes(name)
    box.run(24 * 20)

    for name in ("alice", "bob", "carol"):
        assert box.part(name) == pytest.approx(100 / 3, abs=2)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_filled_an_idle_machine_is_not_locked_out_when_another_comes(seed: int) -> None:
    box = Box(seed=seed)
    box.comes("alice")
    box.run(48)
    box.running.clear()
    came, before = box.now, dict(box.took_s)
    box.comes("bob")
    box.serve()

    assert box.have("alice") >= 1
    assert box.have("bob") > box.have("alice")
    box.run(48 + 71)
    assert 40 <= box.part("alice", before) <= 50
    gaps = [start for start, owner in box.starts if owner == "alice" and start >= came]
    assert gaps[0] == came


def test_an_idle_machine_is_all_for_who_wants_it() -> None:
    box = Box()
    box.comes("alice")
    box.run(24)

    assert box.have("alice") == 0 or len(box.starts) >= GPUS
    assert box.part("alice") == 100
    assert box.took_s["alice"] == pytest.approx(24 * 3600 * GPUS)


@pytest.mark.parametrize("seed", [1, 2])
def test_three_people_who_always_want_more_get_a_third_each(seed: int) -> None:
    box = Box(seed=seed)
    for name in ("alice", "bob", "carol"):
        box.comes(name)
    box.run(24 * 10)

    for name in ("alice", "bob", "carol"):
        assert box.part(name) == pytest.approx(100 / 3, abs=2)
