from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucoord_site.service.logs import STOPPED, LogHandler, LogStream

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(reader, writer); the smallest pipe there is."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def _read(reader: int) -> str:
    os.set_blocking(reader, False)
    found = b""
    try:
        while part := os.read(reader, 65536):
            found += part
    except BlockingIOError:
        pass
    return found.decode()


def test_a_line_arrives_as_it_was_written(pipe: tuple[int, int]) -> None:
    assert LogStream(pipe[1]).write("Grüße\n") == 6
    assert _read(pipe[0]) == "Grüße\n"


def test_a_stopped_reader_costs_a_moment_once_and_the_lost_lines_are_counted(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    stream = LogStream(writer)
    began = time.process_time(), time.monotonic()
    for _ in range(2000):
        stream.write(LINE)
    assert time.monotonic() - began[1] < 5

    taken = _read(reader).count(LINE)
    stream.write("after\n")
    told = _read(reader)
    assert told.endswith("after\n")
    assert f"{2000 - taken} log lines were lost: {STOPPED}." in told


def test_a_line_longer_than_the_pipe_is_cut_and_the_next_begins_on_a_new_line(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    stream = LogStream(writer)
    stream.write("y" * 20_000 + "\n")
    first = _read(reader)
    stream.write("next\n")

    assert set(first) == {"y"}
    assert _read(reader).endswith("\nnext\n")


def test_a_reader_that_has_ended_loses_lines_until_there_is_another(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    reader, writer = pipe
    stream = LogStream(writer)
    os.close(reader)

    assert [stream.write(LINE) for _ in range(100)] == [len(LINE)] * 100
    assert "100 log lines were lost: Broken pipe." in _reopened(stream, tmp_path / "log")


def test_a_full_disk_loses_lines_until_there_is_space(tmp_path: Path) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = LogStream(descriptor)

    assert [stream.write(LINE) for _ in range(100)] == [len(LINE)] * 100
    assert "100 log lines were lost: No space left on device." in _reopened(
        stream, tmp_path / "log"
    )
    os.close(descriptor)


def _reopened(stream: LogStream, path: Path) -> str:
    """The text that the stream writes with its next line when its descriptor leads to a file."""
    with path.open("wb") as file:
        os.dup2(file.fileno(), stream.fileno())
    stream.write("after\n")
    text = path.read_text()
    assert text.endswith("after\n")
    return text


def test_the_descriptor_that_others_share_still_waits(pipe: tuple[int, int]) -> None:
    LogStream(pipe[1]).write(LINE)

    assert os.get_blocking(pipe[1])


def test_lines_are_added_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        file.write("before\n")
        file.flush()
        LogStream(file.fileno()).write("line\n")

    assert (tmp_path / "log").read_text() == "before\nline\n"


def test_a_socket_whose_reader_has_stopped_does_not_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = LogStream(ours.fileno())
        began = time.monotonic()
        for _ in range(20_000):
            stream.write(LINE)
        assert time.monotonic() - began < 10
        assert theirs.recv(100) == LINE.encode()


def test_a_descriptor_that_is_closed_is_no_error(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])

    assert LogStream(pipe[1]).write(LINE) == len(LINE)


class Formatter(logging.Formatter):
    """Logs, then fails, as faulty code may."""

    def format(self, record: logging.LogRecord) -> str:
        logging.getLogger("recursive").error("inside")
        if record.msg == "odd":
            raise ValueError("odd")
        return super().format(record)


def test_a_line_that_cannot_be_formatted_is_reported_and_nested_logging_is_dropped(
    pipe: tuple[int, int],
) -> None:
    handler = LogHandler()
    handler.setStream(LogStream(pipe[1]))
    handler.setFormatter(Formatter())
    logger = logging.getLogger("recursive")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.error("good")
        found = _read(pipe[0])
        logger.error("odd")
        found += _read(pipe[0])
    finally:
        logger.removeHandler(handler)
        logger.propagate = True

    assert found == "good\nA log line of recursive could not be made: ValueError\n"
