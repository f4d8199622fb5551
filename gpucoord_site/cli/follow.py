"""Follow a job from a terminal: why it waits, what it writes, how it ends; Ctrl-C asks.

Output of another user's job for a terminal: only colours may control it.

A sequence of the terminal could set its title, hide text, or type into it.
"""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections import deque
from itertools import islice
from typing import Any

from gpucoord_site.cli.client import Client, NotReachable
from gpucoord_site.cli.commands import CANCELLED, OURS, TIMED_OUT, complain
from monitor.facts.input_rules import escaped

SHORTEST_S = 0.1
LONGEST_S = 1.0


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
        why = reasons(job)
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
        complain(escaped(text))


def reasons(job: dict[str, Any]) -> str:
    """Why the job waits, each sentence once."""
    return " ".join(dict.fromkeys(blocker["text"] for blocker in job["blockers"]))


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


# Follow all jobs of an array from a terminal; each line of output begins with the job's index.

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
            codes = list(self._codes.values())
            self._say(f"{self._title}: {codes.count(0)} of {len(codes)} jobs succeeded")
            return max(codes)
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

    def _cancel(self) -> None:
        self._client.cancel(self._id, array=True)


# Colours, line ends and tabs stay; a carriage return would overwrite what was printed before.
_KEPT = re.compile(r"\x1b\[[0-9;:]*m|\r?\n|\r|\t")
_NUMBERS = re.compile(r"[0-9]+")
# Of text, background and underline: the numbers after them are a colour.
COLOURS = ("38", "48", "58")
# A line end or a colour of which the rest has not arrived.
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,40})?|\r)\Z")


class ForeignOutput:
    """Takes the output in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def feed(self, data: bytes) -> bytes:
        """The text so far, with its other control characters as \\x1b."""
        text = self._rest + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._rest = unfinished.group() if unfinished else ""
        return _shown(text.removesuffix(self._rest) if self._rest else text)

    def end(self) -> bytes:
        """The rest of the text, at the end of the output."""
        text, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return _shown(text)


def _hides_text(sequence: str) -> bool:
    """Whether one of its numbers is 8, outside of a colour such as 38;5;8 or 38;2;8;8;8."""
    numbers = iter([number.lstrip("0") for number in _NUMBERS.findall(sequence)])
    for number in numbers:
        if number in COLOURS:
            length = 1 if next(numbers, "") == "5" else 3
            deque(islice(numbers, length), maxlen=0)
        elif number == "8":
            return True
    return False


def _shown(text: str) -> bytes:
    parts, at = [], 0
    for kept in _KEPT.finditer(text):
        word = kept.group()
        if _hides_text(word):
            word = ""
        parts += [escaped(text[at : kept.start()]), "\n" if word.startswith("\r") else word]
        at = kept.end()
    return "".join([*parts, escaped(text[at:])]).encode()
