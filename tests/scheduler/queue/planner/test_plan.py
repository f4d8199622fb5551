from __future__ import annotations

from typing import Any

import pytest

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.queue.wording import text
from tests.builders import GIB, gpu_uuid
from tests.scheduler.placing import Case


def test_it_places_nothing_where_nothing_waits() -> None:
    Case().gpu("a").expect()


def test_it_places_a_job_that_fits() -> None:
    Case().gpu("a", free="40GiB").job(1, wants="20GiB").expect(a=[1])


def test_it_places_an_exact_fit() -> None:
    Case().gpu("a", free="40GiB").job(1, wants="40GiB").expect(a=[1])


def test_it_refuses_one_byte_too_many() -> None:
    Case().gpu("a", free="1000").job(1, wants="1001").expect(waiting={1: "GpuMemory"})


def test_it_fills_a_gpu_with_jobs_that_say_what_they_need() -> None:
    case = Case().gpu("a", free="40GiB").job(1, wants="20GiB").job(2, wants="20GiB")

    case.job(3, wants="1GiB").expect(a=[1, 2], waiting={3: "GpuMemory"})


def test_it_takes_the_gpu_where_least_would_be_left() -> None:
    Case().gpu("a", free="80GiB").gpu("b", free="30GiB").job(1, wants="20GiB").expect(b=[1])


@pytest.mark.parametrize(
    ("beside", "chosen"),
    [
        ({"use_pct": 20.0}, "a"),
        ({"use_pct": 60.0}, "b"),
        ({"use_pct": None}, "b"),
        ({"use_pct": 20.0, "unsettled": True}, "b"),
    ],
)
def test_where_it_fits_about_as_well_it_meets_as_few_others_as_can_be(
    beside: dict[str, Any], chosen: str
) -> None:
    case = Case().gpu("a", free="70GiB", held_by=("zoe/python",), **beside)

    case.gpu("b").job(1, wants="10GiB").expect(**{chosen: [1]})


def test_a_much_better_fit_counts_for_more_than_who_is_there() -> None:
    case = Case().gpu("a", free="50GiB", held_by=("zoe/python",), use_pct=90.0)

    case.gpu("b").job(1, wants="10GiB").expect(a=[1])


def test_one_job_only_starts_where_one_process_only_may_compute() -> None:
    case = Case().gpu("a", lone=True).job(1, wants="10GiB")

    case.job(2, wants="10GiB").expect(a=[1], waiting={2: "GpuTaken"})


def test_jobs_that_come_together_share_no_gpu_while_they_need_not() -> None:
    case = Case().gpu("a").gpu("b").job(1, wants="10GiB").job(2, wants="10GiB")

    case.job(3, wants="10GiB").expect(a=[1, 3], b=[2])


def test_it_gives_a_job_that_declares_nothing_the_emptiest_gpu() -> None:
    Case().gpu("a", free="30GiB").gpu("b", free="80GiB").job(1).expect(b=[1])


def test_it_puts_nothing_beside_a_job_that_declares_nothing() -> None:
    Case().gpu("a").job(1).job(2, wants="1GiB").expect(a=[1], waiting={2: "GpuTaken"})


def test_it_puts_a_job_that_declares_nothing_beside_no_other() -> None:
    Case().gpu("a").job(1, wants="1GiB").job(2).expect(a=[1], waiting={2: "GpuTaken"})


def test_it_wants_some_memory_free_for_a_job_that_declares_nothing() -> None:
    Case().gpu("a", free="1GiB", held_by=("alice/python",)).job(1).expect(waiting={1: "GpuMemory"})


def test_it_gives_an_exclusive_job_an_empty_gpu() -> None:
    case = Case().gpu("a", held_by=("alice/python",)).gpu("b", jobs=(7,)).gpu("c")

    case.job(1, exclusive=True).expect(c=[1])


def test_it_keeps_others_off_an_exclusive_job() -> None:
    Case().gpu("a").job(1, exclusive=True).job(2, wants="1GiB").expect(
        a=[1], waiting={2: "GpuTaken"}
    )


def test_it_gives_an_exclusive_job_enough_memory() -> None:
    case = Case().gpu("a", free="16GiB", total="16GiB").gpu("b")

    case.job(1, exclusive=True, wants="60GiB").expect(b=[1])


def test_it_takes_unknown_memory_for_full() -> None:
    case = Case().gpu("a", free=None).job(1, wants="1GiB").job(2)

    case.expect(waiting={1: "MemoryUnknown", 2: "MemoryUnknown"})


def test_it_lets_an_exclusive_job_on_a_gpu_that_hides_its_memory() -> None:
    Case().gpu("a", free=None).job(1, exclusive=True).expect(a=[1])


def test_it_spares_a_gpu_that_does_not_answer() -> None:
    Case().gpu("a", healthy=False, problem="fell off the bus").job(1).expect(
        waiting={1: "GpuUnhealthy"}
    )


def test_it_places_a_job_on_several_gpus() -> None:
    case = Case().gpu("a", free="10GiB").gpu("b").gpu("c")

    case.job(1, gpus=2, wants="40GiB").expect(b=[1], c=[1])


def test_it_says_how_many_gpus_are_missing() -> None:
    case = Case().gpu("a", free="10GiB").gpu("b").job(1, gpus=2, wants="40GiB")

    case.expect(waiting={1: "GpuCount"})
    assert case.why(1)[0] == "This job asks for 2 GPUs; 1 can take it now."


def test_it_serves_the_higher_priority_first() -> None:
    case = Case().gpu("a").job(1, priority=1).job(2, priority=5)

    case.expect(a=[2], waiting={1: "GpuTaken"})


def test_it_serves_who_came_first_among_equals() -> None:
    case = Case().gpu("a").job(2, after_s=0).job(1, after_s=1)

    case.expect(a=[2], waiting={1: "GpuTaken"})


def test_it_serves_the_lower_id_when_all_else_is_equal() -> None:
    Case().gpu("a").job(2, after_s=0).job(1, after_s=0).expect(a=[1], waiting={2: "GpuTaken"})


def test_it_passes_over_a_job_that_does_not_fit() -> None:
    case = Case().gpu("a", free="10GiB").job(1, wants="40GiB").job(2, wants="5GiB")

    case.expect(a=[2], waiting={1: "GpuMemory"})


def test_it_starts_jobs_without_a_gpu_up_to_their_number() -> None:
    case = Case(cpu_places=3, cpu_jobs=1).job(1, gpus=0).job(2, gpus=0).job(3, gpus=0)

    case.expect(cpu=[1, 2], waiting={3: "CpuPlaces"})


def test_it_starts_jobs_without_a_gpu_when_the_gpus_can_not_be_read() -> None:
    case = Case().gpu("a").closed(Blocker(code=BlockerCode.STALE_READING))

    case.job(1).job(2, gpus=0).expect(cpu=[2], waiting={1: "StaleReading"})


def test_it_says_in_plain_words_who_holds_the_memory() -> None:
    case = Case().gpu("z").gpu("a", free="30GiB", held_by=("alice/python",), jobs=(4,))
    case.job(1, exclusive=True).job(2, wants="60GiB")

    assert case.why(2) == [
        "GPU 1 has 30 GiB of 80 GiB free, this job asks for 60 GiB; "
        "alice/python holds 1 GiB, job 4 has a part of it.",
        "Job 1 has GPU 0 alone.",
    ]


def test_it_names_three_gpus_and_counts_the_rest() -> None:
    case = Case()
    for name in "abcde":
        case.gpu(name, free="10GiB")
    case.gpu("f", free="1GiB", closed=(Blocker(code=BlockerCode.GPU_LOCKED),))

    assert case.job(1, wants="20GiB").why(1)[3:] == [
        "3 other GPUs can't take it: 2 too full, 1 locked."
    ]


def test_a_fourth_gpu_is_named_rather_than_counted() -> None:
    case = Case().gpu(
        "d", free="1GiB", closed=(Blocker(code=BlockerCode.GPU_LOCKED, gpu=0, holder="bob"),)
    )
    for name in "abc":
        case.gpu(name, free="10GiB")

    assert case.job(1, wants="20GiB").why(1)[-2:] == [
        "GPU 0 is locked by bob.",
        "GPU 0 has 1 GiB of 80 GiB free, this job asks for 20 GiB.",
    ]
    assert len(case.why(1)) == 5


def test_it_counts_the_gpus_that_are_not_what_was_asked_for() -> None:
    case = Case().gpu("a", free="10GiB").gpu("b", total="20GiB", free="20GiB")

    (_, blocker) = case.job(1, wants="40GiB").plan().blockers[1]

    assert text(blocker) == "Only 1 of 2 GPUs here match the request (with 40 GiB of memory)."
    assert blocker.code == "GpuUnsuitable"


def test_each_reason_why_a_gpu_is_closed_is_told() -> None:
    closed = tuple(
        Blocker(code=code, gpu=0, holder="olga")
        for code in (BlockerCode.GPU_PAUSED, BlockerCode.GPU_LOCKED)
    )
    case = Case().gpu("a", closed=closed)

    assert case.job(1).why(1) == ["GPU 0 is paused by olga.", "GPU 0 is locked by olga."]


def test_it_has_a_reason_that_stays_while_figures_flicker() -> None:
    keys = {
        Case().gpu("a", free=str(30 * 2**30 + wobble)).job(1, wants="60GiB").plan().blockers[1]
        for wobble in (0, 2**20, 2**29)
    }

    assert len(keys) == 1


def test_it_gives_a_job_the_kind_of_gpu_that_it_asks_for() -> None:
    case = Case().gpu("a", model="NVIDIA A100", capability=(8, 0), power=624.0)
    case.gpu("b", model="NVIDIA H100", capability=(9, 0), power=2000.0).gpu("c")

    case.job(1, kind={"model": "H100"}, wants="9GiB").job(2, kind={"capability": (8, 0)})
    case.job(3, kind={"gpu_uuid": gpu_uuid(2)}).expect(a=[2], b=[1], c=[3])


def test_it_tells_who_asks_for_a_gpu_that_is_not_here() -> None:
    case = Case().gpu("a", model="NVIDIA A100").job(1, kind={"model": "H100"})

    case.expect(waiting={1: "Infeasible"})
    assert case.why(1) == ["It asks for 1 GPU of model H100; of 1 GPUs here none matches."]


def test_it_waits_for_a_gpu_that_does_not_say_what_it_is() -> None:
    Case().gpu("a").job(1, kind={"model": "H100"}).expect(waiting={1: "GpuUnsuitable"})


def test_it_makes_one_heavy_start_at_a_time_on_a_gpu() -> None:
    case = Case().gpu("a", heavy_bytes=30 * GIB).job(1, wants="30GiB").job(2, wants="30GiB")

    case.job(3, wants="10GiB").expect(a=[1, 3], waiting={2: "Ramping"})
