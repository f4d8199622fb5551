"""Followed logs: one that cannot be read stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from scheduler.execution.probes import RemoteLog
from scheduler.jobs.consumers import JobView, LogTails
from scheduler.jobs.probes import LogPiece
from tests.pace import LONGEST_S

pytestmark = pytest.mark.django_db(transaction=True)


class BrokenLog(RemoteLog):
    def read(self, offset: int = 0, limit: int = 0) -> LogPiece:
        raise RuntimeError("cannot be read")


def _view(log: Path | RemoteLog) -> JobView:
    return JobView("facts", "running", False, 1, log, lambda _reads, _viewer: "")


async def test_a_log_that_cannot_be_read_stops_no_other(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")
    views = {1: _view(BrokenLog("elsewhere", "", 1, 1, lambda *_: "")), 2: _view(log)}

    def load(_: Iterable[int]) -> Mapping[int, JobView]:
        return views

    tails, changed = LogTails(load), asyncio.Event()
    async with tails.follow(1, asyncio.Event()), tails.follow(2, changed) as tail:
        async with asyncio.timeout(LONGEST_S):
            while tail.end < 4:
                changed.clear()
                await changed.wait()
            with log.open("ab") as more:
                more.write(b"two\n")
            while tail.end < 8:
                changed.clear()
                await changed.wait()

    assert tail.piece(0).data == b"one\ntwo\n"
    told = [record for record in caplog.records if "job 1 can't be read" in record.getMessage()]
    assert len(told) == 1
