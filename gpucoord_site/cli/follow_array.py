"""Follow all jobs of an array from a terminal; each line of output begins with the job's index."""

from __future__ import annotations

from typing import Any

from gpucoord_site.cli.client import Client
from gpucoord_site.cli.follow import CANCELLED, LONGEST_S, OURS, SHORTEST_S, Follower, ending

# Longer lines are split.
LONGEST_LINE = 64 * 1024
# One request returns the states of all jobs, so large arrays are polled less often.
JOBS_PER_S = 1000
# Exit codes of jobs that never started.
UNSTARTED = {"cancelled": CANCELLED, "skipped": OURS}


class Lines:
    """Puts a prefix before each line of output that arrives in pieces."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The whole lines so far."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def end(self) -> bytes:
        """The last line, which may lack its end."""
        return self.feed(b"\n") if self._rest else b""


class Member:
    """One job of the array: the part of its log that was shown."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lines = Lines(b"[%d] " % index)
        self.offset = 0
        self.has_started = False


class ArrayFollower(Follower):
    """Shows all jobs of an array. Its exit code is the highest of all jobs."""

    def __init__(self, client: Client, job_id: int) -> None:
        super().__init__(client, job_id)
        self._title = f"array {job_id}"
        self._members: dict[int, Member] = {}
        # Exit codes of the jobs that have ended and whose output is shown.
        self._codes: dict[int, int] = {}

    def _step(self) -> int | None:
        jobs = self._client.array(self._id)
        self.longest_s = max(LONGEST_S, len(jobs) / JOBS_PER_S)
        for job in jobs:
            if job["state"] != "queued" and job["id"] not in self._codes:
                self._show(job)
        if len(self._codes) == len(jobs):
            return self._worst()
        if all(job["state"] in {"queued", "finished"} for job in jobs):
            waiting = next((job["id"] for job in jobs if job["state"] == "queued"), None)
            if waiting is not None:
                self._tell_why(self._client.job(waiting))
        return None

    def _show(self, job: dict[str, Any]) -> None:
        """Show the new output of one job; after all output, how it ended."""
        member = self._members.setdefault(job["id"], Member(job["index"]))
        if not job["has_started"] and job["outcome"] in UNSTARTED:
            # Thousands of jobs can be cancelled at once; only the summary counts them.
            self._codes[job["id"]] = UNSTARTED[job["outcome"]]
            return
        if job["has_started"] and not member.has_started:
            member.has_started = True
            self._say(f"job {job['id']} [{member.index}] started")
        more = True
        while more:
            output = self._client.log(job["id"], member.offset)
            member.offset, more = output.next, output.more
            self._write(member.lines.feed(output.data))
        if output.state == "finished":
            self._write(member.lines.end())
            self._codes[job["id"]] = self._end_of(self._client.job(job["id"]), member)

    def _end_of(self, job: dict[str, Any], member: Member) -> int:
        code, text = ending(job)
        if text:
            self._say(f"job {job['id']} [{member.index}] {text}")
        return code

    def _write(self, data: bytes) -> None:
        super()._write(data)
        if data:
            self._pause_s = SHORTEST_S

    def _worst(self) -> int:
        codes = list(self._codes.values())
        good = codes.count(0)
        self._say(f"{self._title}: {good} of {len(codes)} jobs succeeded")
        return max(codes)

    def _cancel(self) -> None:
        self._client.cancel(self._id, array=True)
