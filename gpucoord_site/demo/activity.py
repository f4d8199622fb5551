"""Activity of the demo's users while it runs: they send prompts, and now and then many scripts.

It is a process of its own, which ends with the demo.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from random import Random

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from django.utils import timezone

from gpucoord_site.demo.model_services import is_backlog_due, send_prompt, submit_backlog
from gpucoord_site.demo.past import PEOPLE

# Seconds between two prompts.
SHORTEST_S, LONGEST_S = 1.5, 5.0


@contextmanager
def active(home: Path) -> Iterator[None]:
    """Users are active until the context ends, or this process does."""
    parent = os.pidfd_open(os.getpid())
    pid = os.fork()
    if not pid:
        _run(parent, home)
    os.close(parent)
    child = os.pidfd_open(pid)
    try:
        yield
    finally:
        # The supervisor may have reaped it already.
        with suppress(ProcessLookupError, ChildProcessError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(child)


def _run(parent: int, home: Path) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        dice = Random(settings.CONFIG.simulated_seed)
        users = Activity(home, dice)
        while not select.select([parent], [], [], dice.uniform(SHORTEST_S, LONGEST_S))[0]:
            # The service may be busy with its database; the next turn comes soon.
            with suppress(Exception):
                users.act(timezone.now())
                continue
            connections.close_all()
    finally:
        os._exit(0)


class Activity:
    def __init__(self, home: Path, dice: Random) -> None:
        self._home, self._dice = home, dice
        self._backlog_at: datetime | None = None

    def act(self, now: datetime) -> None:
        """A prompt, and the backlog when it is due."""
        send_prompt(list(User.objects.filter(username__in=PEOPLE)), self._dice, now)
        if is_backlog_due(self._backlog_at, now):
            operator = User.objects.get(username=settings.CONFIG.admin_user)
            if submit_backlog(operator, self._home, now):
                self._backlog_at = now
