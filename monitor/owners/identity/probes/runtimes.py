"""Edge: names and labels of containers, from the sockets of Docker and Podman. Read-only.

The sockets are asked in a thread, so a runtime that hangs does not delay the sampler.
"""

from __future__ import annotations

import pwd
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from monitor.facts import input_rules
from monitor.owners.identity.probes import homes

SOCKETS = (Path("/run/docker.sock"), Path("/run/podman/podman.sock"))
# Labels that name a person, and labels with a path in the home folder of a person.
USER_LABELS = ("gpucoord.user",)
PATH_LABELS = ("devcontainer.local_folder", "com.docker.compose.project.working_dir")
JOB_LABEL = "gpucoord.job"
TIMEOUT_S = 2.0
LONGEST_ANSWER = 1 << 20
MOST_WAITING = 100
MOST_KEPT = 2000
# A runtime that did not know a container or did not answer is asked again after this time.
RETRY_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}", re.ASCII)


class ContainerLabels(Struct, frozen=True):
    """people: uids, and names without account, that the labels name. is_known: they were read.

    job: the job that the label gpucoord.job names, "" = none.
    """

    name: str = ""
    job: str = ""
    people: frozenset[str | int] = frozenset()
    is_known: bool = True


NO_LABELS = ContainerLabels()
PENDING = ContainerLabels(is_known=False)


class ContainerRuntimes:
    """Remembers what the runtimes said. A socket that is absent or closed to us is skipped."""

    def __init__(self, sockets: Sequence[Path] | None = None) -> None:
        self._sockets = SOCKETS if sockets is None else sockets
        self._answers: dict[str, tuple[ContainerLabels, float]] = {}
        self._waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)
        self._requested: set[str] = set()
        self._thread: threading.Thread | None = None

    def labels(self, container_id: str) -> ContainerLabels:
        """The known facts about it; PENDING until the runtimes have answered."""
        labels, until = self._answers.get(container_id, (PENDING, 0.0))
        if time.monotonic() < until:
            return labels
        if not any(socket.exists() for socket in self._sockets):
            return NO_LABELS
        self._ask_later(container_id)
        return labels

    def _ask_later(self, container_id: str) -> None:
        if container_id in self._requested or self._waiting.full():
            return
        self._requested.add(container_id)
        self._waiting.put_nowait(container_id)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="containers", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                container_id = self._waiting.get(timeout=10.0)
            except queue.Empty:
                return
            answer = self._ask(container_id)
            if len(self._answers) >= MOST_KEPT:
                self._answers.clear()
            is_answer = answer is not NO_LABELS
            lives = float("inf") if is_answer else time.monotonic() + RETRY_S
            self._answers[container_id] = (answer, lives)
            self._requested.discard(container_id)

    def _ask(self, container_id: str) -> ContainerLabels:
        # 5 MB of a process that sees no container.
        import httpx

        for socket in self._sockets:
            try:
                answer = inspect(socket, container_id)
            except (httpx.HTTPError, OSError, ValueError):
                continue
            if answer is not None:
                return labels_of(answer)
        return NO_LABELS


def inspect(socket: Path, container_id: str) -> Mapping[str, Any] | None:
    """The runtime's description of a container; None: it has no such container.

    Raises HTTPError, OSError or ValueError.
    """
    import httpx

    transport = httpx.HTTPTransport(uds=str(socket))
    with (
        httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", f"http://runtime/containers/{container_id}/json") as answer,
    ):
        if answer.status_code != 200:
            return None
        data = b""
        for part in answer.iter_bytes():
            data += part
            if len(data) > LONGEST_ANSWER:
                raise ValueError("the answer is too long")
    details = input_rules.parse_json(data)
    if not isinstance(details, dict):
        raise ValueError("the answer is no object")
    return details


def labels_of(answer: Mapping[str, Any]) -> ContainerLabels:
    """The name, and the users in the labels; other parts of the answer are left out."""
    name = str(answer.get("Name") or "").lstrip("/")
    config = answer.get("Config")
    given = config.get("Labels") if isinstance(config, dict) else None
    labels = given if isinstance(given, dict) else {}
    people: set[str | int] = set()
    for label in USER_LABELS:
        if text := str(labels.get(label) or ""):
            people.add(_uid(text))
    for label in PATH_LABELS:
        path = str(labels.get(label) or "")
        if path.startswith("/") and (uid := homes.person_of_path(path)) is not None:
            people.add(uid)
    job = str(labels.get(JOB_LABEL) or "")
    return ContainerLabels(
        name=name if _NAME.fullmatch(name) else "",
        job=job if job.isascii() and job.isdecimal() and len(job) < 19 else "",
        people=frozenset(people),
    )


def _uid(name: str) -> str | int:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return name
