"""`gpucoord incidents`."""

from __future__ import annotations

from typing import Any

import pytest

from gpucoord_site.cli import verbs

SINCE = "2026-03-02T12:00:00Z"
INCIDENT: dict[str, Any] = {
    "id": 7,
    "headline": "python (PID 12, dana) at 95 % on GPU 4",
    "since": SINCE,
    "closed_at": None,
    "host": "box",
    "pid": 12,
    "start_ticks": 34,
    "user": "dana",
}


class Server:
    """Answers as a server with one incident; `ended` is the process that was to end."""

    def __init__(self, jobs: list[dict[str, Any]] | None) -> None:
        self.jobs, self.ended = jobs, ""

    def incident(self, number: int) -> dict[str, Any]:
        return INCIDENT | {"id": number}

    def without_incident(self, number: int) -> dict[str, Any]:
        return {"jobs": self.jobs}

    def end_of_incident(self, incident: dict[str, Any], *, kill: bool) -> dict[str, Any]:
        self.ended = f"{incident['pid']} {incident['start_ticks']} {kill}"
        return incident


def said(server: Any, *options: str) -> str:
    read = verbs.incidents.parser().parse_args(["7", *options])
    return "\n".join(verbs.incident_lines(verbs._incidents(server, read)))


def test_it_names_the_jobs_that_would_start_earlier() -> None:
    job = {"job": 9, "name": "train", "owner": "bob", "start": SINCE, "start_now": None}
    words = said(Server([job]))
    assert "job 9 train (bob): ~2026-03-02 12:00 instead of unknown" in words


@pytest.mark.parametrize(
    ("jobs", "words"), [(None, "unknown"), ([], "no waiting job would start earlier")]
)
def test_it_says_when_no_job_would_start_earlier_or_that_is_unknown(jobs: Any, words: str) -> None:
    assert said(Server(jobs)).endswith(f"if it ended now: {words}")


def test_it_has_exactly_the_process_that_it_was_shown_ended() -> None:
    server = Server([])
    assert "box sends the signal to process 12 now" in said(server, "--kill")
    assert server.ended == "12 34 True"


def test_only_one_incident_is_ended_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.incidents(["--end"]) == 2
    assert "Write the number of the incident" in capsys.readouterr().err
