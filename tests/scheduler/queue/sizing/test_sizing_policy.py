from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.queue.planner.sizing import (
    MIB,
    RUNS,
    GpuMinute,
    GpuUse,
    HostRun,
    MemorySuggestion,
    SizingPolicy,
    efficiency,
    fingerprint,
    host_needs,
    nearest_rank,
    right_size,
    suggest,
    summarise,
    together,
)
from tests.builders import GIB

POLICY = SizingPolicy()


def minute(t: int = 0, **changes: Any) -> GpuMinute:
    facts: dict[str, Any] = {
        "gpu_uuid": "GPU-0", "t": t, "sm_s": 30.0, "held_s": 60.0, "known_s": 60.0,
        "memory_bytes": 4 * GIB, "joules": 600.0,
    }  # fmt: skip
    return GpuMinute(**(facts | changes))


def test_the_same_command_with_other_numbers_is_the_same_kind_of_job() -> None:
    one = fingerprint(1, ["python", "train.py", "--lr", "3e-4", "--epochs=10"])

    assert one == fingerprint(1, ["python", "train.py", "--lr", "0.01", "--epochs=200"])


@pytest.mark.parametrize(
    "other",
    [
        (2, ["python", "train.py", "--lr", "1"]),
        (1, ["python", "eval.py", "--lr", "1"]),
        (1, ["python", "train.py", "--lr", "1", "--fp16"]),
        (1, ["python", "train.py --lr", "1"]),
    ],
    ids=["owner", "script", "option", "word boundary"],
)
def test_another_owner_or_command_is_another_kind_of_job(other: tuple[int, list[str]]) -> None:
    assert fingerprint(1, ["python", "train.py", "--lr", "1"]) != fingerprint(*other)


def test_the_peak_is_that_of_the_gpu_with_most_memory() -> None:
    minutes = [minute(memory_bytes=4 * GIB), minute(gpu_uuid="GPU-1", memory_bytes=6 * GIB)]

    assert summarise(minutes, 120.0).peak_memory_bytes == 6 * GIB


def test_a_job_that_uses_half_of_the_time_of_its_gpu_has_used_half() -> None:
    use = summarise([minute(0), minute(60)], 120.0)

    assert (use.sm_s, use.mean_pct, use.p95_pct, use.joules) == (60.0, 50.0, 50.0, 1200.0)


def test_time_without_any_process_on_the_gpu_counts_as_unused() -> None:
    assert summarise([minute()], 240.0).mean_pct == 12.5


def test_too_little_measured_time_tells_nothing_of_the_use() -> None:
    use = summarise([minute(known_s=10.0)], 60.0)

    assert (use.sm_s, use.mean_pct, use.p95_pct) == (None, None, None)
    assert use.coverage_pct == pytest.approx(100 / 6)
    assert use.peak_memory_bytes == 4 * GIB


def test_a_job_that_was_never_seen_on_its_gpu_is_unknown() -> None:
    assert summarise([], 60.0) == GpuUse(gpu_s=60.0)


def test_energy_is_unknown_when_a_minute_of_it_is() -> None:
    assert summarise([minute(), minute(60, joules=None)], 120.0).joules is None


def test_nothing_is_suggested_after_too_few_runs() -> None:
    assert suggest([GIB] * 4, POLICY, None) is None


def test_the_suggestion_is_the_95th_percentile_of_the_peaks_and_a_tenth() -> None:
    peaks = [GIB * n for n in range(20, 0, -1)]

    assert suggest(peaks, POLICY, None) == MemorySuggestion(
        memory_bytes=-(-round(19 * GIB * 1.1) // MIB) * MIB, peak_bytes=20 * GIB, runs=20
    )


def test_only_the_newest_runs_count() -> None:
    suggestion = suggest([GIB] * 20 + [70 * GIB] * 20, POLICY, None)

    assert suggestion is not None
    assert suggestion.peak_bytes == GIB


def test_no_more_is_suggested_than_such_a_gpu_has() -> None:
    suggestion = suggest([79 * GIB] * 5, POLICY, 80 * GIB)

    assert suggestion is not None
    assert suggestion.memory_bytes == 80 * GIB


def test_a_job_for_two_models_gets_enough_for_either() -> None:
    small, large = (MemorySuggestion(memory_bytes=n, peak_bytes=n, runs=3) for n in (1, 2))

    assert together({"A100": small, "H100": large}) == large


def test_runs_on_one_model_tell_nothing_of_another() -> None:
    known = MemorySuggestion(memory_bytes=1, peak_bytes=1, runs=3)

    assert together({"A100": known, "H100": None}) is None


@given(st.lists(st.integers(1, 80 * GIB), min_size=5, max_size=60))
def test_a_suggestion_is_enough_for_nineteen_of_twenty_of_its_runs(peaks: list[int]) -> None:
    suggestion = suggest(peaks, POLICY, None)

    assert suggestion is not None
    newest = peaks[:RUNS]
    enough = sum(peak <= suggestion.memory_bytes for peak in newest)
    assert enough >= 0.95 * len(newest)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_one_of_the_values(values: list[float], pct: float) -> None:
    assert nearest_rank(values, pct) in values


def test_the_efficiency_line_names_request_peak_and_use() -> None:
    use = GpuUse(gpu_s=60, mean_pct=34.4, peak_memory_bytes=11 * GIB)

    assert efficiency(use, 80 * GIB) == "Requested 80 GiB, peak 11 GiB; GPU 34 % used."
    assert efficiency(use, None).startswith("No memory requested, peak 11 GiB")
    assert efficiency(GpuUse(gpu_s=60), 80 * GIB) == ""


@pytest.mark.parametrize(
    ("requested", "peak", "text"),
    [
        (64 * GIB, 30 * GIB, "A request of 33 GiB would have been enough."),
        (32 * GIB, 30 * GIB, ""),
        (2 * GIB, GIB // 2, "A request of 1 GiB would have been enough."),
        (None, 30 * GIB, ""),
        (64 * GIB, None, ""),
        (64 * GIB, 0, ""),
    ],
)
def test_a_request_that_is_much_too_large_gets_a_hint(
    requested: int | None, peak: int | None, text: str
) -> None:
    assert right_size(requested, peak) == text


def host_run(gib: float | None, cpus: float | None = 1.0, took_s: float = 100.0) -> HostRun:
    peak = None if gib is None else round(gib * GIB)
    return HostRun(took_s=took_s, peak_bytes=peak, cpu_s=None if cpus is None else cpus * took_s)


def test_host_memory_and_cpus_come_from_the_newest_runs() -> None:
    runs = [host_run(4, 1.52), host_run(2, 1.0), host_run(3, 1.2)]

    assert host_needs(runs) == (4.5 * GIB, 1.6)
    # Older runs do not count.
    assert host_needs([host_run(1)] * 20 + [host_run(60, 8)] * 20) == (1.25 * GIB, 1.0)


def test_few_short_or_unmeasured_runs_tell_nothing() -> None:
    assert host_needs([host_run(4)] * 2) == (None, None)
    assert host_needs([host_run(4, took_s=2)] * 9) == (None, None)
    assert host_needs([host_run(None, None)] * 9) == (None, None)
    assert host_needs([host_run(None, 2.0)] * 9) == (None, 2.0)
