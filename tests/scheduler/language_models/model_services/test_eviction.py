"""When a model gives its GPU to waiting jobs, and which model it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.facts.language_models import InstanceFact, InstanceState, Role
from scheduler.facts.plans import Slot
from scheduler.language_models.model_services.policy import (
    Candidate,
    EvictionPolicy,
    Queues,
    may_leave,
    should_evict_for_scripts,
    victims,
)
from tests.builders import GIB, NOW, gpu_uuid

POLICY = EvictionPolicy()
LONG_AGO = NOW - timedelta(hours=1)


def queues(scripts: int, prompts: int = 1, ready: int = 1, script_s: float | None = 45) -> Queues:
    return Queues(scripts=scripts, prompts=prompts, ready=ready, script_s=script_s)


def evicts(found: Queues, boot_s: float = 1e9, **changes: Any) -> bool:
    return should_evict_for_scripts(found, boot_s, EvictionPolicy(**changes)) is not None


def loaded(id_: int = 1, on: int = 0, **changes: Any) -> Candidate:
    own: dict[str, Any] = {
        key: changes.pop(key) for key in ("in_flight", "state", "ready_at") if key in changes
    }
    fixed: dict[str, Any] = {"state": InstanceState.READY, "ready_at": LONG_AGO}
    instance = InstanceFact(
        id=id_, service_id=id_, since=LONG_AGO, job_id=100 + id_, gpu_uuids=(gpu_uuid(on),),
        **(fixed | own),
    )  # fmt: skip
    return Candidate(instance=instance, name=f"model {id_}", **changes)


def slot(index: int, *jobs: int, held: int = 20 * GIB, free: int = 0) -> Slot:
    return Slot(
        gpu_uuid=gpu_uuid(index), host="gpubox", index=index, total_bytes=80 * GIB,
        free_bytes=free, jobs=jobs, held_bytes=(held,) * len(jobs),
    )  # fmt: skip


def is_empty(gpu: Slot) -> bool:
    return not gpu.jobs


def test_more_than_five_jobs_evict_a_model_that_is_idle() -> None:
    assert [evicts(queues(n)) for n in (5, 6)] == [False, True]
    assert not evicts(queues(6, ready=0))
    assert evicts(queues(3), min_script_queue_for_evict=2)


def test_more_than_twenty_jobs_evict_when_no_prompt_waits() -> None:
    assert [evicts(queues(n, prompts=0, ready=0)) for n in (20, 21)] == [False, True]
    assert not evicts(queues(21, prompts=1, ready=0))


def test_a_queue_that_lasts_longer_than_the_boot_evicts() -> None:
    """3 × 45 s ÷ 1 = 135 s."""
    assert [evicts(queues(3), boot_s) for boot_s in (134, 135, 136)] == [True, False, False]
    assert not evicts(queues(3, ready=2), 134)
    assert not evicts(queues(3, ready=0), 1)


def test_an_unknown_run_time_is_the_shipped_one() -> None:
    assert evicts(queues(3, script_s=None), 134)
    assert not evicts(queues(3, script_s=None), 136)


@given(
    scripts=st.integers(0, 200),
    prompts=st.integers(0, 50),
    ready=st.integers(0, 16),
    script_s=st.none() | st.floats(0, 1e6),
    boot_s=st.floats(0, 1e6),
)
def test_exactly_the_three_rules_decide(
    scripts: int, prompts: int, ready: int, script_s: float | None, boot_s: float
) -> None:
    seconds = 45.0 if script_s is None else script_s
    expected = (
        (ready > 0 and scripts > 5)
        or (scripts > 20 and prompts == 0)
        or (ready > 0 and scripts * seconds / ready > boot_s)
    )

    found = queues(scripts, prompts, ready, script_s)
    assert evicts(found, boot_s) == expected


@pytest.mark.parametrize(
    ("one", "policy"),
    [
        (loaded(pin=True), EvictionPolicy(never_evict_brain=False)),
        (loaded(role=Role.BRAIN_PRIMARY), POLICY),
        (loaded(role=Role.BRAIN_SECONDARY), POLICY),
        (loaded(in_flight=1), POLICY),
        (loaded(ready_at=NOW - timedelta(seconds=59)), POLICY),
        (loaded(state=InstanceState.BOOTING), POLICY),
    ],
    ids=["pinned", "primary brain", "secondary brain", "busy", "just loaded", "booting"],
)
def test_it_stays(one: Candidate, policy: EvictionPolicy) -> None:
    assert not may_leave(one, policy, NOW)


def test_brains_and_busy_models_leave_where_the_policy_says_so() -> None:
    assert may_leave(loaded(role=Role.BRAIN_PRIMARY), EvictionPolicy(never_evict_brain=False), NOW)
    assert may_leave(loaded(in_flight=1), EvictionPolicy(prefer_idle_llm_eviction=False), NOW)


def test_the_model_that_is_cheapest_to_reload_leaves() -> None:
    """160 s × 1 an hour is cheaper than 5 s × 100."""
    rare = loaded(1, on=0, reload_s=160, requests_per_hour=1)
    often = loaded(2, on=1, reload_s=5, requests_per_hour=100)

    found = victims([rare, often], [slot(0, 101), slot(1, 102)], 1, is_empty, POLICY, NOW)

    assert found is not None
    assert found.chosen == (rare,)
    assert found.gpu_uuids == (gpu_uuid(0),)


def test_the_smallest_cost_on_one_gpu_counts_together() -> None:
    """Two models on GPU 0 cost more than one on GPU 1."""
    two = [loaded(n, on=0, requests_per_hour=1) for n in (1, 2)]
    one = loaded(3, on=1, requests_per_hour=1.5)

    found = victims([*two, one], [slot(0, 101, 102), slot(1, 103)], 1, is_empty, POLICY, NOW)

    assert found is not None
    assert found.chosen == (one,)


def test_only_as_many_leave_as_the_memory_needs() -> None:
    both = [loaded(1, requests_per_hour=5), loaded(2, requests_per_hour=1)]
    gpu = slot(0, 101, 102, free=30 * GIB)

    found = victims(both, [gpu], 1, lambda one: (one.free_bytes or 0) >= 50 * GIB, POLICY, NOW)

    assert found is not None
    assert [one.name for one in found.chosen] == ["model 2"]


def test_nothing_leaves_a_gpu_that_would_not_be_enough() -> None:
    assert victims([loaded()], [slot(0, 101, 7)], 1, is_empty, POLICY, NOW) is None


def test_nothing_leaves_when_a_gpu_is_free_already() -> None:
    assert victims([loaded()], [slot(0, 101), slot(1)], 1, is_empty, POLICY, NOW) is None


@given(st.data())
def test_a_protected_model_never_leaves_whatever_else_is_loaded(data: st.DataObject) -> None:
    candidates = [
        loaded(
            n,
            on=data.draw(st.integers(0, 3)),
            pin=data.draw(st.booleans()),
            role=data.draw(st.sampled_from(Role)),
            in_flight=data.draw(st.integers(0, 1)),
            requests_per_hour=data.draw(st.floats(0, 100)),
        )
        for n in range(1, data.draw(st.integers(1, 6)) + 1)
    ]
    jobs_on = [
        [one.instance.job_id or 0 for one in candidates if gpu_uuid(n) in one.instance.gpu_uuids]
        for n in range(4)
    ]
    gpus = [slot(n, *jobs) for n, jobs in enumerate(jobs_on)]

    found = victims(candidates, gpus, 1, is_empty, POLICY, NOW)

    for one in found.chosen if found else ():
        assert not one.pin
        assert not one.role.is_brain
        assert not one.instance.is_busy
