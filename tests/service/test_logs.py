from __future__ import annotations

import json
import logging
import sys

import pytest

from gpucoord_site.logs import formatter


def _line(style: str, message: str, **extra: object) -> str:
    record = logging.LogRecord("monitor.sampler", logging.WARNING, "", 0, message, (), None)
    vars(record).update(extra)
    return formatter(style).format(record)


def test_a_text_line_says_when_how_bad_what_and_where() -> None:
    line = _line("text", "GPU 2 is lost", gpu="GPU-2")

    assert "warning" in line
    assert "GPU 2 is lost" in line
    assert "[monitor.sampler]" in line
    assert "gpu=GPU-2" in line
    assert "\x1b" not in line or sys.stderr.isatty()


def test_a_json_line_is_one_object() -> None:
    line = json.loads(_line("json", "GPU 2 is lost", gpu="GPU-2"))

    assert line["event"] == "GPU 2 is lost"
    assert (line["level"], line["logger"], line["gpu"]) == ("warning", "monitor.sampler", "GPU-2")
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
