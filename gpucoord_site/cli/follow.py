"""Follow a job from a terminal: why it waits, what it writes, how it ends; Ctrl-C asks."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli.client import Client, NotReachable
from monitor.facts.input_rules import escaped

if TYPE_CHECKING:
    from gpucoord_site.cli.foreign_output import ForeignOutput

SHORTEST_S = 0.1
LONGEST_S = 1.0
CANCELLED = 130
TIMED_OUT = 124
OURS = 125


class Follower:
    """Shows one job. Its output goes to stdout untouched, all that we say to stderr.

    offset: the first byte to show. foreign: changes the output of another user's job.
    """

    longest_s = LONGEST_S

    def __init__(
        self,
        client: Client,
        job_id: int,
        starts_with: str = "submitted",
        offset: int = 0,
        foreign: ForeignOutput | None = None,
    ) -> None:
        self._foreign = foreign
        self._starts_with = starts_with
        self._client = client
        self._id = job_id
        self._title = f"job {job_id}"
        self._pause_s = SHORTEST_S
        self._offset = offset
        self._said = ""
        self._lost = False

    def follow(self) -> int:
        """Follow until the job has ended or the user leaves. Returns the exit code."""
        if self._starts_with:
            self._say(f"{self._title} {self._starts_with}")
        while True:
            try:
                return self._until_the_end()
            except KeyboardInterrupt:
                if not self._asked_to_cancel():
                    return CANCELLED

    def _until_the_end(self) -> int:
        while True:
            try:
                code = self._step()
            except NotReachable as error:
                self._wait_for_server(error)
                continue
            self._lost = False
            if code is not None:
                return code
            time.sleep(self._pause_s)
            self._pause_s = min(self.longest_s, self._pause_s * 1.5)

    def _step(self) -> int | None:
        """Show new output. Returns the exit code after the end and all output; None before."""
        output = self._client.log(self._id, self._offset)
        if output.data:
            self._write(self._foreign.feed(output.data) if self._foreign else output.data)
            self._pause_s = SHORTEST_S
        # It can be before the requested offset: a log that reached its limit was cut.
        self._offset = output.next
        if output.state == "finished" and not output.more:
            self._write(self._foreign.end() if self._foreign else b"")
            return self._end(self._client.job(self._id))
        if output.more:
            self._pause_s = 0.0
        if output.state == "queued":
            self._tell_why(self._client.job(self._id))
        elif not self._offset and not self._said.startswith("started"):
            self._tell_where(self._client.job(self._id))
        return None

    def _write(self, data: bytes) -> None:
        if data:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def _tell_why(self, job: dict[str, Any]) -> None:
        why = " ".join(dict.fromkeys(blocker["text"] for blocker in job["blockers"]))
        if why and why != self._said:
            self._say(f"waits: {why}")
        self._said = why or self._said

    def _tell_where(self, job: dict[str, Any]) -> None:
        if job["state"] not in {"running", "stopping"}:
            return
        self._said = "started"
        number = len(job["gpus"])
        gpus = {0: "without a GPU", 1: "on a GPU"}.get(number, f"on {number} GPUs")
        self._say(f"started {gpus}")

    def _wait_for_server(self, error: NotReachable) -> None:
        if not self._lost:
            self._say(f"{error} The job is not affected; trying again.")
        self._lost = True
        time.sleep(LONGEST_S)

    def _asked_to_cancel(self) -> bool:
        """Ask the user. False: a second Ctrl-C or no terminal; the job continues."""
        try:
            if sys.stdin.isatty():
                self._ask()
                self._pause_s = SHORTEST_S
                return True
        except (KeyboardInterrupt, EOFError):
            sys.stderr.write("\n")
        self._say(f"{self._title} goes on without this terminal")
        return False

    def _ask(self) -> None:
        sys.stderr.write(f"\nCancel {self._title}? [y/N, Ctrl-C leaves it running] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            self._cancel()
            self._say("cancelling")

    def _cancel(self) -> None:
        self._client.cancel(self._id)

    def _end(self, job: dict[str, Any]) -> int:
        code, text = ending(job)
        if text:
            self._say(f"{self._title} {text}")
        return code

    def _say(self, text: str) -> None:
        """Messages go to stderr, so that they are visible when stdout is a file."""
        sys.stderr.write(f"gpucoord: {escaped(text)}\n")
        sys.stderr.flush()


def ending(job: dict[str, Any]) -> tuple[int, str]:
    """The exit code for an ended job, and what to say about it; "" = it succeeded."""
    outcome = job["outcome"]
    if outcome == "succeeded":
        return 0, ""
    problem = f": {job['problem']}" if job["problem"] else ""
    if outcome == "cancelled":
        return CANCELLED, "was cancelled" + (f" by {by}" if (by := job["cancelled_by"]) else "")
    if outcome == "timed_out":
        return TIMED_OUT, "ran into its time limit"
    if job["signal"] is not None:
        return 128 + int(job["signal"]), f"was ended by signal {job['signal']}{problem}"
    if job["exit_code"] is not None:
        code = int(job["exit_code"]) or OURS
        return code, f"failed with exit code {job['exit_code']}{problem}"
    return OURS, f"{outcome}{problem}"
