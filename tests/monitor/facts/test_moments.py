from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from monitor.facts.formats import in_utc, in_zone, sentence_parts

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def test_moments_of_a_sentence_are_found_in_their_zone() -> None:
    text = "The day ends Tue 03 Mar 00:00 (Europe/Berlin). It was read Sun 1 Mar 05:00 (UTC)."

    parts = list(sentence_parts(text, NOW))

    assert parts[::2] == ["The day ends ", ". It was read ", "."]
    assert parts[1::2] == [
        datetime(2026, 3, 3, tzinfo=ZoneInfo(BERLIN)),
        datetime(2026, 3, 1, 5, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    "text", ["Mon 31 Feb 10:00 (UTC)", "Mon 2 Mar 25:00 (UTC)", "Mon 2 Mar 10:00 (../etc/passwd)"]
)
def test_what_is_no_moment_stays_text(text: str) -> None:
    assert list(sentence_parts(text, NOW)) == [text]


def test_a_moment_after_the_new_year_is_in_the_next_year() -> None:
    now = datetime(2026, 12, 31, 12, tzinfo=UTC)

    assert datetime(2027, 1, 2, 8, tzinfo=UTC) in sentence_parts("at Sat 2 Jan 08:00 (UTC).", now)


@pytest.mark.parametrize(
    "written",
    [
        "2027-03-02 21:30 UTC",
        "2027-03-02 22:30 (Europe/Berlin)",
        "2027-03-02T21:30+00:00",
        "2027-03-02T22:30:00.000000+01:00",
    ],
)
def test_a_dated_moment_of_a_text_is_found(written: str) -> None:
    parts = list(sentence_parts(f"root exempted user alice until {written}: a demo", NOW))

    at = datetime(2027, 3, 2, 21, 30, tzinfo=UTC)
    assert parts == ["root exempted user alice until ", at, ": a demo"]


@pytest.mark.parametrize(
    "text",
    [
        "until 2027-03-02 22:30 CET",
        "until 2027-02-30 22:30 UTC",
        "until 2027-03-02 22:30 (../etc/passwd)",
        "until 2027-03-02 22:30 (Berlin)",
        "run 2027-03-02T22:30, lr 1e-3",
    ],
)
def test_a_date_without_a_known_zone_or_day_stays_text(text: str) -> None:
    assert list(sentence_parts(text, NOW)) == [text]


def test_a_stored_text_says_a_moment_in_utc_and_it_is_read_back() -> None:
    at = datetime(2027, 3, 2, 22, 30, tzinfo=ZoneInfo(BERLIN))

    assert in_utc(at) == "2027-03-02 21:30 UTC"
    assert list(sentence_parts(in_utc(at), NOW))[1] == at


def test_a_stored_text_says_a_moment_in_the_zone_of_its_report_and_it_is_read_back() -> None:
    at = datetime(2027, 3, 2, 21, 30, tzinfo=UTC)

    assert in_zone(at, BERLIN) == "2027-03-02 22:30 (Europe/Berlin)"
    assert list(sentence_parts(in_zone(at, BERLIN), NOW))[1] == at
