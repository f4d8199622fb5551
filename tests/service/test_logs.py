from __future__ import annotations

import json
import logging
import sys
import time

import pytest
from django.conf import settings

from gpucoord_site.service.logs import ShortRefusals, formatter, masked


def _line(style: str, message: str, **extra: object) -> str:
    record = logging.LogRecord(
        "monitor.gpus.sampling.step", logging.WARNING, "", 0, message, (), None
    )
    vars(record).update(extra)
    return formatter(style).format(record)


def test_a_text_line_says_when_how_bad_what_and_where() -> None:
    line = _line("text", "GPU 2 is lost", gpu="GPU-2")

    assert "warning" in line
    assert "GPU 2 is lost" in line
    assert "[monitor.gpus.sampling.step]" in line
    assert "gpu=GPU-2" in line
    assert "\x1b" not in line or sys.stderr.isatty()


def test_a_json_line_is_one_object() -> None:
    line = json.loads(_line("json", "GPU 2 is lost", gpu="GPU-2"))

    assert line["event"] == "GPU 2 is lost"
    assert (line["level"], line["logger"], line["gpu"]) == (
        "warning",
        "monitor.gpus.sampling.step",
        "GPU-2",
    )
    assert line["timestamp"].endswith("Z")


def test_a_line_of_ours_is_found_by_a_name_that_never_changes() -> None:
    line = json.loads(_line("json", "The sampler hangs", kind="LOOP_HUNG", loop="sampler"))

    assert (line["event"], line["text"]) == ("LOOP_HUNG", "The sampler hangs")
    assert line["loop"] == "sampler"
    assert "kind" not in line


def test_people_read_the_sentence_first() -> None:
    line = _line("text", "The sampler hangs", kind="LOOP_HUNG")

    assert line.index("The sampler hangs") < line.index("kind=LOOP_HUNG")


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ("hello", {"password": "hush"}),
        ("hello", {"api_token": "hush"}),
        ("can't reach postgresql://me:hush@host/name", {}),
        ("got Authorization: Bearer hush", {}),
    ],
)
def test_secrets_are_masked(style: str, message: str, extra: dict[str, object]) -> None:
    line = _line(style, message, **extra)

    assert "hush" not in line
    assert "***" in line


def test_a_fault_carries_its_traceback_in_json() -> None:
    try:
        raise ValueError("postgresql://me:hush@host/name refused")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())

    line = json.loads(formatter("json").format(record))

    assert "ValueError" in line["exception"]
    assert "hush" not in line["exception"]


@pytest.mark.parametrize(
    "text",
    ["a" * 60_000, "a://b:" * 10_000, "Bearer" * 10_000, "Bearer " * 9_000, "a:b@" * 15_000],
)
def test_masking_a_long_hostile_text_takes_milliseconds(text: str) -> None:
    began = time.process_time()

    masked(text)

    assert time.process_time() - began < 0.5


def test_passwords_of_addresses_are_masked_in_any_text() -> None:
    text = "x=a://b:one@c, (postgres://gpu:two@db/x) http://u:thr:ee@h ws://u:four http://u:f@g"

    assert masked(text) == (
        "x=a://b:***@c, (postgres://gpu:***@db/x) http://u:***@h ws://u:four http://u:***@g"
    )


HOSTILE = "a\nb\r\x1b[31m\u202eevil\x9b\ud800\u2028"


@pytest.mark.parametrize("style", ["text", "json"])
def test_control_and_format_characters_are_escaped(style: str) -> None:
    line = _line(style, f"job {HOSTILE} ended", owner=HOSTILE)

    assert not set(HOSTILE) & set("\n\r\x1b\u202e\x9b\ud800\u2028") & set(line)
    assert "\\u202eevil" in line


def test_a_json_line_keeps_the_text_as_it_is() -> None:
    assert json.loads(_line("json", f"job {HOSTILE}"))["event"] == f"job {HOSTILE}"


def test_a_traceback_keeps_its_lines_and_nothing_else() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("m", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    text = formatter("text").format(record)

    assert "Traceback" in text.splitlines()[1]
    assert all(line.startswith("  ") for line in text.splitlines()[1:])
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("logger", "status", "has_traceback"),
    [
        ("django.security.DisallowedHost", 400, False),
        ("django.request", 400, False),
        ("django.request", 500, True),
    ],
)
def test_only_refused_requests_are_logged_without_a_traceback(
    logger: str, status: int, has_traceback: bool
) -> None:
    error = (ValueError, ValueError("refused"), None)
    record = logging.LogRecord(logger, logging.ERROR, "", 0, "failed", (), error)
    record.status_code = status

    assert settings.LOGGING["handlers"]["stderr"]["filters"] == ["short"]
    assert ShortRefusals().filter(record)
    assert ("ValueError" in formatter("text").format(record)) is has_traceback
