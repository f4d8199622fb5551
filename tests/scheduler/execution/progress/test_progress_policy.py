from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest

from scheduler.execution.policy import (
    LONGEST_MESSAGE,
    Progress,
    has_moved,
    in_log,
    is_news,
    parse,
    run_time,
)
from scheduler.facts.jobs import RunTime
from scheduler.queue.planner.forecast_classes import expected_end
from tests.builders import NOW

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "fraction", "message"),
    [
        ("0.45 second epoch", 0.45, "second epoch"),
        ("45 % second epoch", 0.45, "second epoch"),
        ("45%", 0.45, ""),
        ("3/12 files", 0.25, "files"),
        ("1", 1.0, ""),
        ("7 of many", 1.0, "of many"),
        ("0.2\nmore lines", 0.2, ""),
    ],
)
def test_progress_is_a_fraction_a_percentage_or_a_count(
    text: str, fraction: float, message: str
) -> None:
    assert parse(text) == Progress(fraction, message)


@pytest.mark.parametrize("text", ["", "soon", "-0.5", "nan", "3/0", "0.5x", "1e5"])
def test_anything_else_is_no_progress(text: str) -> None:
    assert parse(text) is None


def test_a_message_is_cut_and_holds_no_control_characters() -> None:
    progress = parse("0.5 a\x1b[31m" + "x" * 1000)

    assert progress is not None
    assert len(progress.message) == LONGEST_MESSAGE
    assert progress.message.isprintable()


def test_the_newest_line_of_a_log_counts() -> None:
    lines = b"loading", b"::gpucoord progress 0.1 a", b"more", b"::gpucoord progress 0.2 b"
    log = b"\n".join([*lines, b"::gpucoord progress ?", b""])

    assert in_log(log) == Progress(0.2, "b")
    assert in_log(b"it says ::gpucoord progress 0.1 in the middle") is None


@pytest.mark.parametrize(
    ("log", "fraction"),
    [
        (b"Epoch 1/20\n", 0.0),
        (b"Epoch 9/20\n", 0.4),
        (b"Epoch 9/20 loss=0.31 acc=0.9\n", 0.45),
        (b"2026-03-02 10:00 INFO epoch [9/20], loss 0.3\n", 0.45),
        (b"Epoch: 9 of 20 done\n", 0.45),
        (b"Epoch 9/20:  50%|#####     | 50/100 [00:10<00:10]", 0.425),
        (
            b"Epoch 8/20: 100%|##########| 100/100\rEpoch 9/20:   0%|          | 0/100 [00:00<?]",
            0.4,
        ),
        (b"Epoch 20/20 loss=0.1\nsaved\n", 1.0),
    ],
)
def test_a_counter_of_epochs_in_the_log_counts(log: bytes, fraction: float) -> None:
    progress = in_log(log)

    assert progress is not None
    assert progress.fraction == pytest.approx(fraction)
    assert re.fullmatch(r"epoch \d+ of 20", progress.message)


@pytest.mark.parametrize(
    "log", [b"Epoch 21/20 x\n", b"epochs: 3/20\n", b"Epoch 3\n", b"Epoch 1/0\n", b" 50%|#| 1/2\n"]
)
def test_other_counters_in_the_log_do_not_count(log: bytes) -> None:
    assert in_log(log) is None


def test_an_explicit_line_counts_before_a_counter_of_epochs() -> None:
    log = b"::gpucoord progress 0.1 a\nEpoch 9/20 loss=1\n"

    assert in_log(log) == Progress(0.1, "a")


def test_a_hostile_log_costs_little_time() -> None:
    began = time.process_time()
    for log in (b"epoch" + b" " * 65_000, b"epoch 1/" * 8_000, b"\r" * 65_000, b"epoch\n" * 10_000):
        in_log(log)

    assert time.process_time() - began < 1


def test_progress_is_stored_at_most_every_two_seconds_and_small_steps_less_often() -> None:
    old, soon, later = Progress(0.1), NOW + timedelta(seconds=1), NOW + timedelta(seconds=3)

    assert is_news(None, old, None, NOW)
    assert not is_news(old, Progress(0.5), NOW, soon)
    assert is_news(old, Progress(0.5), NOW, later)
    assert not is_news(old, Progress(0.101), NOW, later)
    assert is_news(old, Progress(0.101), NOW, NOW + MINUTE)
    assert is_news(Progress(0.999), Progress(1.0), NOW, later)


def test_the_end_follows_from_the_progress() -> None:
    ends = expected_end(NOW, run_time(NOW, Progress(0.25), NOW + MINUTE, None), NOW + MINUTE)

    assert ends is not None
    assert ends.p50 == NOW + 4 * MINUTE
    assert NOW + 4 * MINUTE < ends.p90 < NOW + 6 * MINUTE


def test_without_progress_the_usual_run_time_says_when_it_ends() -> None:
    ends = expected_end(NOW, RunTime(10 * MINUTE, 20 * MINUTE), NOW + MINUTE)

    assert ends is not None
    assert (ends.p50, ends.p90) == (NOW + 10 * MINUTE, NOW + 20 * MINUTE)


def test_nothing_known_is_no_expected_end() -> None:
    assert expected_end(NOW, None, NOW + MINUTE) is None
    assert run_time(NOW, Progress(0.0), NOW + MINUTE, None) is None


def test_progress_predicts_no_run_time_beyond_the_limit() -> None:
    limited = run_time(NOW, Progress(0.25), NOW + MINUTE, None, limit=3 * MINUTE)

    assert limited == RunTime(3 * MINUTE, 3 * MINUTE)


def test_an_overdue_job_never_ends_in_the_past() -> None:
    late = NOW + 60 * MINUTE

    ends = expected_end(NOW, run_time(NOW, Progress(0.5), NOW + MINUTE, None), late)

    assert ends is not None
    assert late < ends.p50 <= ends.p90


def test_an_end_that_hardly_moves_is_not_stored_again() -> None:
    old = expected_end(NOW, RunTime(10 * MINUTE, 20 * MINUTE), NOW)
    same = expected_end(NOW, RunTime(10 * MINUTE, 20 * MINUTE), NOW + MINUTE)
    other = expected_end(NOW, RunTime(15 * MINUTE, 20 * MINUTE), NOW)

    assert not has_moved(old, same, NOW + MINUTE)
    assert has_moved(old, other, NOW)
    assert has_moved(None, other, NOW)
    assert has_moved(other, None, NOW)
