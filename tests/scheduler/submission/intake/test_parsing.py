from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.facts.units import (
    parse_capability,
    parse_indices,
    parse_moment,
    parse_numbers,
    parse_signal,
)

# A Monday, 13:00 in Berlin.
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("in 2h", datetime(2026, 3, 2, 14, tzinfo=UTC)),
        ("+90 min", datetime(2026, 3, 2, 13, 30, tzinfo=UTC)),
        ("22:00", datetime(2026, 3, 2, 21, tzinfo=UTC)),
        ("6:15", datetime(2026, 3, 3, 5, 15, tzinfo=UTC)),
        ("13:00", datetime(2026, 3, 3, 12, tzinfo=UTC)),
        ("today 12:00", datetime(2026, 3, 2, 11, tzinfo=UTC)),
        ("Tomorrow 06:00", datetime(2026, 3, 3, 5, tzinfo=UTC)),
        ("2026-03-05 22:00", datetime(2026, 3, 5, 21, tzinfo=UTC)),
        ("2026-03-05T22:00Z", datetime(2026, 3, 5, 22, tzinfo=UTC)),
        ("2026-03-05T22:00+05:30", datetime(2026, 3, 5, 16, 30, tzinfo=UTC)),
    ],
)
def test_it_reads_a_moment_as_people_write_it(text: str, at: datetime) -> None:
    assert parse_moment(text, NOW, BERLIN) == at


def test_a_clock_time_stays_what_it_is_over_the_change_to_summer_time() -> None:
    saturday = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)

    # 06:00 in Berlin is 04:00 in UTC from that night on.
    assert parse_moment("06:00", saturday, BERLIN) == datetime(2026, 3, 29, 4, tzinfo=UTC)


@pytest.mark.parametrize("text", ["soon", "25:00", "12:60", "in a while", "2026-13-01", ""])
def test_it_says_how_to_write_a_moment(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_moment(text, NOW, BERLIN)


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("1,3,5", (1, 3, 5), None),
        ("0-10:5", (0, 5, 10), None),
        ("3, 1-2, 2", (1, 2, 3), None),
        ("0-99%4", tuple(range(100)), 4),
        ("7", (7,), None),
    ],
)
def test_it_reads_indices(text: str, indices: tuple[int, ...], limit: int | None) -> None:
    assert parse_indices(text) == (indices, limit)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-9:0", "1,,2", "0-9%0", "0-9%", "0-9999999", "0-10000", "-3"]
)
def test_it_refuses_what_is_no_range_or_too_many(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|goes up|split"):
        parse_indices(text)


@pytest.mark.parametrize(
    "text", ["0-9999," * 350_000, "0-9999," * 1400, "1," * 1_200_000, "0-1000000:1," * 200, "٣"]
)
def test_hostile_indices_are_refused_within_milliseconds(text: str) -> None:
    began = time.process_time()

    with pytest.raises(ValueError) as refused:
        parse_indices(text)

    assert time.process_time() - began < 0.2
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("text", ["2026-03-02 " * 200_000, "in " + "1h" * 1_000_000, " " * 10**6])
def test_hostile_times_are_refused_within_milliseconds(text: str) -> None:
    began = time.process_time()

    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text, NOW, BERLIN)

    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("text", ["9999-12-31 22:00", "1812-01-01 10:00", "0001-01-01 00:00"])
def test_a_time_that_is_too_far_away_is_called_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range; times between 1970 and 2199"):
        parse_moment(text, NOW, BERLIN)


@pytest.mark.parametrize("text", ["0-99999999999", "99999999", "3,0-10000000000:2"])
def test_an_index_that_is_too_large_is_called_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range; the largest index is 1000000"):
        parse_indices(text)


def test_it_reads_capabilities() -> None:
    assert [parse_capability(text) for text in ("8.0", "9", "12.0")] == [(8, 0), (9, 0), (12, 0)]


@pytest.mark.parametrize("text", ["8.0.1", "new", "8.", "-1", "8,0"])
def test_it_says_how_to_write_a_capability(text: str) -> None:
    with pytest.raises(ValueError, match=r"like 8\.0"):
        parse_capability(text)


def test_it_reads_signals_with_and_without_sig() -> None:
    assert [parse_signal(text) for text in ("usr1", "SIGUSR2")] == ["SIGUSR1", "SIGUSR2"]


@pytest.mark.parametrize("text", ["KILL", "STOP", "USR9", "10"])
def test_it_refuses_signals_that_nobody_can_hear(text: str) -> None:
    with pytest.raises(ValueError, match="choose one of"):
        parse_signal(text)


def test_it_reads_numbers_of_jobs() -> None:
    assert parse_numbers("12, 13 #14,12") == (12, 13, 14)
    assert parse_numbers("") == ()

    with pytest.raises(ValueError, match="2500 are possible"):
        parse_numbers("1," * 10_000)


def test_it_refuses_names_of_jobs() -> None:
    with pytest.raises(ValueError, match="their numbers"):
        parse_numbers("train")


def test_a_moment_that_has_passed_is_taken_as_it_is() -> None:
    assert parse_moment("2026-03-01 10:00", NOW, "UTC") == NOW - timedelta(days=1, hours=2)
