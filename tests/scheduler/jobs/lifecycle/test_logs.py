from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs import probes as job_logs
from scheduler.jobs.probes import Decoder, as_displayed, clean
from scheduler.templatetags import job_tags


def decoded(*pieces: bytes, start: int = 0) -> str:
    decoder = Decoder(start)
    return "".join([*map(decoder.feed, pieces), decoder.feed(b"", final=True)])


def test_it_reads_from_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")

    piece = job_logs.read(path, 3, 4)

    assert (piece.start, piece.data, piece.end, piece.size) == (3, b"3456", 7, 10)


def test_beyond_the_end_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123")

    assert job_logs.read(path, 99).data == b""
    assert job_logs.read(path, 99).end == 4


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert job_logs.tail(tmp_path / "none" / "log") == job_logs.LogPiece(0, b"", 0)


def test_it_reads_the_last_part(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")

    assert job_logs.tail(path, 3) == job_logs.LogPiece(7, b"789", 10)


def test_it_takes_colours_and_titles_out() -> None:
    assert decoded(b"\x1b[1;31mred\x1b[0m \x1b]0;a title\x07plain\x1b(B") == "red plain"


def test_a_sequence_may_come_in_pieces() -> None:
    whole = b"a\x1b[1;31mb\x1b]0;title\x1b\\c\x1b(Bd"
    for at in range(len(whole)):
        assert decoded(whole[:at], whole[at:]) == "abcd"


def test_a_character_may_come_in_pieces() -> None:
    assert decoded(b"\xe2", b"\x82", b"\xac") == "€"


def test_a_tail_that_begins_within_a_character_leaves_its_rest_out() -> None:
    assert decoded(b"\x82\xac!", start=7) == "!"


def test_what_is_no_text_becomes_a_replacement() -> None:
    assert decoded(b"\xff\x00\x07ok\x7f") == "\ufffd\ufffd\ufffdok\ufffd"


def test_writing_can_not_be_turned_around() -> None:
    assert clean("user\u202egnp.exe") == "user\ufffdgnp.exe"


def test_a_progress_bar_is_one_line() -> None:
    assert as_displayed("start\n 1%\r50%\r99%\rdone\nnext\r") == "start\ndone\nnext"


def test_lines_of_windows_keep_their_text() -> None:
    assert as_displayed(decoded(b"one\r", b"\ntwo\r\n")) == "one\ntwo\n"


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_in_any_pieces_are_safe_text(data: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    text = decoded(*(data[a:b] for a, b in pairwise(at)))

    assert not job_logs.UNSAFE.search(text)
    # In which pieces they came makes no difference.
    assert as_displayed(text) == as_displayed(decoded(data))


@pytest.mark.timeout(5)
def test_endless_sequences_cost_no_time() -> None:
    for mean in (b"\x1b]", b"\x1b[1;", b"\x1b[\x1b]\x1b", b"\r"):
        assert "\x1b" not in as_displayed(decoded(mean * 30_000))


def test_colours_stay_where_a_page_shows_them_and_nothing_else_does() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[2Kgone \x1b]0;title\x07 \x1b bell\x07"

    shown = job_logs.Decoder(keeps_colours=True).feed(text.encode(), final=True)

    assert "\x1b[1;31mred\x1b[0m" in shown
    plain = shown.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert plain == job_logs.clean(text)


@given(st.text(alphabet="\x1b[0123456789;mKab\x07\r\n", max_size=60))
def test_with_colours_a_log_says_the_same(text: str) -> None:
    shown = job_logs.clean_with_colours(text)

    assert "\x1b" not in job_logs.COLOUR.sub("", shown)
    assert job_logs.COLOUR.findall(shown) == job_logs.COLOUR.findall(text)


def test_lines_before_a_place_are_counted_up_to_a_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a\nb\nc\nd")

    assert [job_logs.lines_before(log, offset) for offset in (0, 2, 5, 7)] == [0, 1, 2, 3]
    assert job_logs.lines_before(log, job_logs.MOST_COUNTED + 1) is None


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        ("\x1b[31mred\x1b[0m", '<span class="a31" data-s="31">red</span>'),
        ("\x1b[1;31mred\x1b[22mthin", '<span class="a1 a31" data-s="1;31">red</span>'
         '<span class="a31" data-s="31">thin</span>'),
        ("\x1b[31m\x1b[32mgreen", '<span class="a32" data-s="32">green</span>'),
        ("\x1b[38;5;9mother", "other"),
        ("\x1b[38;2;1;2;3;4mline", '<span class="a4" data-s="4">line</span>'),
        ("\x1b[mreset", "reset"),
    ],
)  # fmt: skip
def test_colours_become_spans(text: str, html: str) -> None:
    assert job_tags.ansi(text) == html
