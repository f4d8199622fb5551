"""Follow a job from a terminal: why it waits, what it writes, how it ends; Ctrl-C asks."""

from __future__ import annotations

import sys
import time
from typing import Any

from gpucoord_site.client import Client, NotReachable

SHORTEST_S = 0.1
LONGEST_S = 1.0
CANCELLED = 130
TIMED_OUT = 124
OURS = 125


class Follower:
    """Shows one job. Its output goes to stdout untouched, all that we say to stderr."""

    def __init__(self, client: Client, job_id: int) -> None:
        self._client = client
        self._id = job_id
        self._pause_s = SHORTEST_S
        self._offset = 0
        self._said = ""
        self._lost = False

    def follow(self) -> int:
        """Until the job has ended or is left; the exit code for the shell."""
        self._say(f"job {self._id} submitted")
        while True:
            try:
                return self._until_the_end()
            except KeyboardInterrupt:
                if not self._asked_to_cancel():
                    return CANCELLED

    def _until_the_end(self) -> int:
        while True:
            try:
                job = self._step()
            except NotReachable as error:
                self._wait_for_server(error)
                continue
            self._lost = False
            if job is not None:
                return self._end(job)
            time.sleep(self._pause_s)
            self._pause_s = min(LONGEST_S, self._pause_s * 1.5)

    def _step(self) -> dict[str, Any] | None:
        """Show what is new; the job once it has ended and all it wrote is shown."""
        output = self._client.log(self._id, self._offset)
        if output.data:
            sys.stdout.buffer.write(output.data)
            sys.stdout.buffer.flush()
            self._pause_s = SHORTEST_S
        # It may be before what was asked for: a log that reached its limit was cut.
        self._offset = output.next
        if output.state == "finished" and not output.more:
            return self._client.job(self._id)
        if output.more:
            self._pause_s = 0.0
        if output.state == "queued":
            self._tell_why(self._client.job(self._id))
        elif not self._offset and not self._said.startswith("started"):
            self._tell_where(self._client.job(self._id))
        return None

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
        """Ask; True = go on following. A second Ctrl-C, or nobody to ask, leaves the job alone."""
        try:
            if sys.stdin.isatty():
                self._ask()
                self._pause_s = SHORTEST_S
                return True
        except (KeyboardInterrupt, EOFError):
            sys.stderr.write("\n")
        self._say(f"job {self._id} goes on without this terminal")
        return False

    def _ask(self) -> None:
        sys.stderr.write(f"\nCancel job {self._id}? [y/N, Ctrl-C leaves it running] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            self._client.cancel(self._id)
            self._say("cancelling")

    def _end(self, job: dict[str, Any]) -> int:
        outcome = job["outcome"]
        if outcome == "succeeded":
            return 0
        problem = f": {job['problem']}" if job["problem"] else ""
        if outcome == "cancelled":
            by = f" by {job['cancelled_by']}" if job["cancelled_by"] else ""
            self._say(f"job {self._id} was cancelled{by}")
            return CANCELLED
        if outcome == "timed_out":
            self._say(f"job {self._id} ran into its time limit")
            return TIMED_OUT
        if job["signal"] is not None:
            self._say(f"job {self._id} was ended by signal {job['signal']}{problem}")
            return 128 + int(job["signal"])
        if job["exit_code"] is not None:
            self._say(f"job {self._id} failed with exit code {job['exit_code']}{problem}")
            return int(job["exit_code"]) or OURS
        self._say(f"job {self._id} {outcome}{problem}")
        return OURS

    def _say(self, text: str) -> None:
        """Where stdout is a file, too, a person sees what happens."""
        sys.stderr.write(f"gpucoord: {text}\n")
        sys.stderr.flush()
