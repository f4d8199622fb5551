"""Gives the items of a batch to a worker, one at a time, and writes down what it answers.

    python -I worker.py FOLDER -- COMMAND [ARGUMENT ...]

The command loads once and prints `{"ready": true}`. Then it reads lines such as
`{"item": "a.wav", "index": 3, "args": {}}` and answers each with `{"output": ...}` or
`{"error": "..."}`. Any number of `{"progress": 0.4}` may come before. Other lines go into the log.

    FOLDER/items.json  the items at hand, written by the service as a whole
    FOLDER/INDEX.TRY   the worker that has taken this try of an item, then also its answer.
                       began 0: it is reserved for when the worker has answered its current item
    FOLDER/lock        held while an item is taken; the kernel releases it when its holder dies

An item stays in items.json until its answer is stored, and then its file is deleted here.
Standard library only: it runs as the job's account.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

LIST, LOCK = "items.json", "lock"
# A longer answer is not JSON of an item, and goes into the log.
LONGEST_LINE = 1024 * 1024
LONGEST_ERROR = 1000
POLL_S, LOOK_S, PROGRESS_EVERY_S = 0.05, 0.2, 0.5
# An item is short if the time between two items counts.
SHORT_S = 1.0
# From the end of its input to SIGTERM, and from that to SIGKILL.
CLOSE_S, GRACE_S = 10.0, 2.0
SAVED, TERMINATED = 85, 128 + signal.SIGTERM
ANSWERS = ("output", "error")


class Program:
    """The worker's process, with a session of its own."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert self._process.stdin and self._process.stdout  # noqa: S101, PT018 - they are pipes
        self._input, self._output = self._process.stdin, self._process.stdout
        # A worker that does not read must not stop this process, which watches its time.
        os.set_blocking(self._input.fileno(), False)
        self._unsent = b""
        self._received = b""
        self.has_ended = False

    def lines(self, timeout_s: float) -> list[bytes]:
        """Waits for output at most so long, and passes on input that did not fit into the pipe."""
        if self.has_ended:
            return []
        unsent = [self._input] if self._unsent else []
        heard, takes, _ = select.select([self._output], unsent, [], max(0.0, timeout_s))
        if takes:
            self._pass_on()
        if not heard:
            return []
        piece = os.read(self._output.fileno(), 65_536)
        self.has_ended = not piece
        *lines, self._received = (self._received + piece).split(b"\n")
        if self.has_ended or len(self._received) > LONGEST_LINE:
            lines.append(self._received)
            self._received = b""
        return [line for line in lines if line]

    def send(self, body: dict[str, Any]) -> None:
        self._unsent += json.dumps(body).encode() + b"\n"
        self._pass_on()

    def _pass_on(self) -> None:
        """Write what the pipe takes."""
        try:
            written = os.write(self._input.fileno(), self._unsent)
        except BlockingIOError:
            return
        except BrokenPipeError:
            written = len(self._unsent)
        self._unsent = self._unsent[written:]

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def end(self, patience_s: float) -> int:
        """End it and what it has started; returns its exit code as a shell shows it."""
        self._input.close()
        for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, GRACE_S)):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                break
            self.signal(number)
        code = self._process.wait()
        self.signal(signal.SIGKILL)
        self._output.close()
        return code if code >= 0 else 128 - code


class Current:
    """The item that the worker has now, or next."""

    def __init__(self, index: int, number: int, text: str) -> None:
        self.index, self.text = index, text
        self.name = f"{index}.{number}"
        self.began, self.began_at = 0.0, 0.0
        self.progress = 0.0


class Feeder:
    """Serves one worker until no item is left for it, or it has to leave."""

    def __init__(self, folder: str, command: list[str], env: dict[str, str]) -> None:
        self._folder = Path(folder)
        self._command = command
        self._job = int(env["GPUCOORD_JOB_ID"])
        self._attempt = int(env["GPUCOORD_ATTEMPT"])
        self._yield_file = env.get("GPUCOORD_YIELD_FILE", "")
        self._progress_file = env.get("GPUCOORD_PROGRESS_FILE", "")
        self._list: dict[str, Any] = {}
        self._read: tuple[int, int] | None = None
        self._is_ready = False
        self._current: Current | None = None
        # Taken early, because the worker would wait for that. Only after a short item: another
        # worker may be free before a long one ends.
        self._next: Current | None = None
        self._last_s = inf
        # Items of the list that a worker is known to have taken.
        self._taken: set[str] = set()
        # Items whose answers are not stored yet, and the number of all answers.
        self._answered: set[str] = set()
        # Those of them that failed: they may be tried again, by this worker.
        self._failed: set[str] = set()
        self._count = 0
        self._told_at = 0.0
        self.is_stopping = False
        self._is_told_to_stop = False
        self._program = Program(command)

    def run(self) -> int:
        """Returns the exit code of the job."""
        while True:
            for line in self._program.lines(self._patience_s()):
                self._hear(line)
            self._look()
            if self._program.has_ended and (code := self._lost()) is not None:
                return code
            if self._is_late():
                self._stop_late()
            if self.is_stopping and not self._is_told_to_stop:
                self._is_told_to_stop = True
                self._program.signal(signal.SIGTERM)
            if self._current is not None:
                if time.monotonic() - self._current.began > SHORT_S:
                    self._return_next()
                continue
            if (reason := self._leaves()) is not None:
                self._return_next()
                self._program.end(CLOSE_S if self._is_ready else 0.0)
                return reason
            if self._is_ready:
                self._take()

    def _patience_s(self) -> float:
        if self._current is None:
            return POLL_S if self._is_ready else LOOK_S
        limit = self._list.get("time_limit_s")
        left = LOOK_S if limit is None else self._current.began + limit - time.monotonic()
        return min(LOOK_S, left)

    def _look(self) -> None:
        """Read the list again if it has changed."""
        path = self._folder / LIST
        try:
            status = path.stat()
            if self._read == (status.st_ino, status.st_mtime_ns):
                return
            body = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        self._read = status.st_ino, status.st_mtime_ns
        # An older list was written for other workers.
        if [self._job, self._attempt] not in body["workers"]:
            return
        self._list = body
        listed = {f"{index}.{number}" for index, number, _ in body["items"]}
        self._failed &= listed
        self._taken &= listed
        for name in self._answered - listed:
            self._answered.discard(name)
            with suppress(OSError):
                (self._folder / name).unlink()

    def _hear(self, line: bytes) -> None:
        body = _message(line)
        if body is None:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        elif not self._is_ready:
            self._is_ready = body.get("ready") is True
            self._report()
        elif self._current is not None and not body.keys().isdisjoint(ANSWERS):
            self._go_on(self._current, {name: body[name] for name in ANSWERS if name in body})
        elif self._current is not None and isinstance(body.get("progress"), (int, float)):
            self._current.progress = min(1.0, max(0.0, body["progress"]))
            self._report()

    def _go_on(self, done: Current, answer: dict[str, Any]) -> None:
        """The worker gets its next item before the answer is written: it waits meanwhile."""
        self._current, self._last_s = None, time.monotonic() - done.began
        item = self._next if self._leaves() is None else None
        if item is not None:
            self._begin(item)
        self._answer(done, answer)
        if item is not None:
            self._write(item, {})
            self._reserve()

    def _take(self) -> None:
        """Send the next item to the worker, if there is one."""
        item = self._next or self._free_item(1)
        if item is not None:
            self._begin(item)
            self._write(item, {})
            self._report()
            self._reserve()

    def _begin(self, item: Current) -> None:
        self._current, self._next = item, None
        item.began, item.began_at = time.monotonic(), time.time()
        self._program.send({"item": item.text, "index": item.index, "args": self._list["args"]})

    def _reserve(self) -> None:
        """Take the next item early, if so many are at hand that no other worker needs it."""
        if self._last_s < SHORT_S:
            self._next = self._free_item(1 + len(self._list["workers"]))

    def _free_item(self, least: int) -> Current | None:
        """Take the first item at hand that no worker has; None: there are fewer than `least`."""
        with self._alone():
            # The file of an item that is not listed any more may be deleted.
            self._look()
            free = filter(self._is_free, self._list.get("items", ()))
            first = list(islice(free, least))
            if len(first) < least:
                return None
            item = Current(*first[0])
            self._write(item, {})
            return item

    def _return_next(self) -> None:
        if self._next is not None:
            self._write(self._next, {"ended": time.time(), "returned": True})
            self._next = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _answer(self, item: Current, body: dict[str, Any]) -> None:
        if "error" in body:
            body = {"error": str(body["error"])[:LONGEST_ERROR]}
        self._write(item, {"ended": time.time(), **body})
        self._answered.add(item.name)
        if "error" in body:
            self._failed.add(item.name)
        self._count += 1
        self._report()

    def _end_current(self, body: dict[str, Any]) -> None:
        """Answer for a worker that cannot."""
        if self._current is not None:
            self._answer(self._current, body)
            self._current = None

    def _write(self, item: Current, answer: dict[str, Any]) -> None:
        """As a whole or not at all."""
        part = self._folder / f"{item.name}.{self._job}"
        body = {"job": self._job, "attempt": self._attempt, "began": item.began_at, **answer}
        part.write_text(json.dumps(body), encoding="utf-8")
        part.replace(self._folder / item.name)

    def _lost(self) -> int | None:
        """The worker has ended; None: it is started again, and its item has failed."""
        code = self._program.end(CLOSE_S)
        current, was_ready = self._current, self._is_ready
        if self.is_stopping:
            self._end_current({"returned": True})
            self._return_next()
            return self._leave_code()
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
        self._end_current({"error": f"The worker ended with {how}."})
        if current is None or not was_ready:
            self._return_next()
            return code or 1
        self._start_again()
        return None

    def _is_late(self) -> bool:
        limit = self._list.get("time_limit_s")
        if self._current is None or limit is None:
            return False
        return time.monotonic() >= self._current.began + float(limit)

    def _stop_late(self) -> None:
        """An item that takes too long fails alone, but the worker must load again."""
        self._program.end(0.0)
        limit = self._list["time_limit_s"]
        self._end_current({"error": f"It took longer than its time limit of {limit:g} s."})
        self._start_again()

    def _start_again(self) -> None:
        self._is_ready = False
        self._program = Program(self._command)

    def _leaves(self) -> int | None:
        """The exit code, if the worker leaves now."""
        if self.is_stopping or self._is_asked_to_yield():
            return self._leave_code()
        if self._job in self._list.get("leave", ()):
            return 0
        if self._next is not None or self._failed or not self._list.get("is_over"):
            return None
        return None if any(map(self._is_free, self._list["items"])) else 0

    def _is_free(self, item: tuple[int, int, str]) -> bool:
        index, number, _ = item
        name = f"{index}.{number}"
        if name not in self._taken and (self._folder / name).exists():
            self._taken.add(name)
        return name not in self._taken

    def _is_asked_to_yield(self) -> bool:
        return bool(self._yield_file) and Path(self._yield_file).exists()

    def _leave_code(self) -> int:
        return SAVED if self._is_asked_to_yield() else TERMINATED

    def _report(self) -> None:
        """Progress of the worker: the part of its share of the batch that is done."""
        now = time.monotonic()
        if not self._progress_file or now - self._told_at < PROGRESS_EVERY_S:
            return
        self._told_at = now
        done, text = float(self._count), "waits for an item"
        if self._current is not None:
            done += self._current.progress
            text = f"item {self._current.index}: {self._current.progress:.0%}"
        share = self._list.get("left", 1) / max(1, len(self._list.get("workers", ())))
        part = done / (self._count + max(1.0, share))
        with suppress(OSError):
            Path(self._progress_file).write_text(f"{part:.5f} {text}", encoding="utf-8")


def _message(line: bytes) -> dict[str, Any] | None:
    """None: it is a line for the log."""
    if not line.startswith(b"{"):
        return None
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_ours = isinstance(body, dict) and not body.keys().isdisjoint(("ready", "progress", *ANSWERS))
    return body if is_ours else None


def main(argv: list[str]) -> int:
    folder, _, *command = argv
    try:
        feeder = Feeder(folder, command, dict(os.environ))
    except OSError as error:
        sys.stderr.write(f"gpucoord: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126

    def stop(*_: object) -> None:
        feeder.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    return feeder.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
