"""Short jobs with known exit codes that are submitted and run all the time, whatever happens.

Each job writes its number to a tally when it runs. So a job that was lost, or ran twice, is seen.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

JOBS_AT_A_TIME = 30
EXIT_CODES = (0, 1, 2, 3, 7, 42, 126)


@dataclass
class Ended:
    """The jobs by number, as REST shows them, and how often each was run."""

    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    runs: Counter[int] = field(default_factory=Counter)

    def faults(self) -> list[str]:
        """Each job that has not run exactly once with its own exit code.

        An attempt that could not start, for example on a full disk, is no run.
        """
        return [text for n, job in sorted(self.jobs.items()) if (text := self._fault(n, job))]

    def _fault(self, n: int, job: dict[str, Any]) -> str:
        seen = (job["state"], job["exit_code"], self.runs[n])
        wanted = ("finished", exit_code(n), 1)
        if seen == wanted:
            return ""
        how = f"{job.get('outcome')}, {job['attempts']} attempts: {job.get('note')}"
        return f"job {job['id']}: {seen}, wanted {wanted} ({how})"


def exit_code(n: int) -> int:
    return EXIT_CODES[n % len(EXIT_CODES)]


class Load:
    """Keeps JOBS_AT_A_TIME jobs open while it runs. `address` may change with a restart."""

    def __init__(self, address: Callable[[], str], token: str, tally: Path) -> None:
        self._address, self._tally = address, tally
        self._http = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=20)
        self._open: dict[int, int] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._next = 0
        self._submitting = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._going, self._round = threading.Event(), threading.Lock()
        self._going.set()
        self.refused = 0

    def __enter__(self) -> Load:
        self._tally.touch(mode=0o666)
        self._tally.chmod(0o666)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._http.close()

    @property
    def submitted(self) -> int:
        return self._next

    @property
    def open_ids(self) -> list[int]:
        return list(self._open.values())

    def finish(self, within_s: float) -> Ended:
        """Submit no more, wait for the end of all jobs, and return them."""
        self._submitting = False
        end = time.monotonic() + within_s
        while self._open and time.monotonic() < end:
            time.sleep(0.2)
        runs = Counter(int(line) for line in self._tally.read_text().split())
        left = {n: {"id": number, "state": "open", "exit_code": None, "attempts": None}
                for n, number in self._open.items()}  # fmt: skip
        return Ended({**self._ended, **left}, runs)

    def pause(self) -> None:
        """No further request until `resume`."""
        self._going.clear()
        with self._round:
            pass

    def resume(self) -> None:
        self._going.set()

    def forget_after(self, highest: int) -> None:
        """Drop jobs with a higher id: the database does not know them any more."""
        known = [*self._open.values(), *(job["id"] for job in self._ended.values())]
        self.forget([number for number in known if number > highest])

    def forget(self, numbers: list[int]) -> None:
        """Drop these jobs, by their ids."""
        self._open = {n: number for n, number in self._open.items() if number not in numbers}
        self._ended = {n: job for n, job in self._ended.items() if job["id"] not in numbers}

    def _run(self) -> None:
        while not self._stop.is_set():
            self._going.wait()
            # The service may be away: then the same requests are made again.
            with self._round, suppress(httpx.HTTPError, ValueError, KeyError):
                self._look()
                while self._submitting and len(self._open) < JOBS_AT_A_TIME:
                    self._submit()
            self._stop.wait(0.5)

    def _submit(self) -> None:
        n = self._next
        command = f"echo {n} >> {self._tally}; sleep {0.2 + n % 5 * 0.3:.1f}; exit {exit_code(n)}"
        answer = self._http.post(
            f"{self._address()}api/jobs/",
            json={"command": command, "gpus": 0, "name": f"load-{n}"},
            headers={"Idempotency-Key": f"load-{n}"},
        )
        if answer.status_code not in (200, 201):
            self.refused += 1
            raise ValueError(answer.text)
        self._open[n] = int(answer.json()["id"])
        self._next += 1

    def _look(self) -> None:
        for n, number in list(self._open.items()):
            answer = self._http.get(f"{self._address()}api/jobs/{number}/")
            if answer.status_code != 200:
                raise ValueError(answer.text)
            job = answer.json()
            if job["state"] == "finished":
                self._ended[n] = {
                    "id": number,
                    "state": "finished",
                    "exit_code": job["exit_code"],
                    "attempts": len(job["attempts"]),
                    "outcome": job["outcome"],
                    "note": job["problem"],
                }
                self._open.pop(n, None)
