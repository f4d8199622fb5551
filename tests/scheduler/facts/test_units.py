from __future__ import annotations

import time

import pytest

from scheduler.facts.units import parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GiB", 20 * 1024**3),
        ("20 gib", 20 * 1024**3),
        ("20g", 20 * 1024**3),
        ("20GB", 20 * 1000**3),
        ("1.5MiB", 3 * 512 * 1024),
        ("512k", 512 * 1024),
        ("123 B", 123),
        (" 7b ", 7),
    ],
)
def test_it_reads_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90 min", 5400),
        ("1h30m", 5400),
        ("1d 12h", 129600),
        ("1.5 hours", 5400),
        ("1-1:30", 91800),
        ("0:00:30", 30),
        ("2-12:00:00", 216000),
        ("45s", 45),
    ],
)
def test_it_reads_durations_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "much", "1e9", "2 parsecs", "9" * 400, "1:2:3:4"])
def test_it_says_how_to_write_what_it_can_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 20GiB"):
        parse_bytes(text)
    with pytest.raises(ValueError, match="write it like 2h"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["8000", " 8000 ", "1.5"])
def test_a_number_without_a_unit_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit; write it like 20GiB.*KiB, MiB, GiB"):
        parse_bytes(text)
    with pytest.raises(ValueError, match=r"has no unit; write it like 2h.*s, min, h, d or w"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("30:00", '"30:00" has two readings: 30min, or 30h. Write one of them, or 30:00:00.'),
        ("1:30", '"1:30" has two readings: 1min 30s, or 1h 30min. Write one of them, or 1:30:00.'),
    ],
)
def test_two_parts_of_a_clock_are_refused_with_both_readings(text: str, readings: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_duration(text)

    assert str(refused.value) == readings


@pytest.mark.parametrize("text", ["1" * 2_500_000, "1h " * 800_000, "1" * 5000 + "!", " " * 10**6])
def test_it_answers_a_hostile_text_at_once(text: str) -> None:
    began = time.process_time()

    for parse in (parse_bytes, parse_duration):
        with pytest.raises(ValueError) as refused:
            parse(text)
        assert len(str(refused.value)) < 250

    assert time.process_time() - began < 0.2
