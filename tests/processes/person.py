"""Users with OS accounts of their own, and a user at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import pwd
import re
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.pace import LONGEST_S, Stopwatch
from tests.processes.service import Service

# Accounts run the client with the system's Python, as the one of the tests may be closed to them.
PYTHON = "/usr/bin/python3"
USERADD = "/usr/sbin/useradd"
needs_accounts = pytest.mark.skipif(
    os.geteuid() != 0 or not (Path(PYTHON).exists() and Path(USERADD).exists()),
    reason="only root makes accounts, with useradd",
)


def as_account(account: pwd.struct_passwd) -> dict[str, Any]:
    """Arguments of subprocess with which root starts a process of this account."""
    return {
        "user": account.pw_uid,
        "group": account.pw_gid,
        "extra_groups": [],
        "cwd": account.pw_dir,
    }


def command(*words: str) -> list[str]:
    return [PYTHON, "-m", "gpucoord_site", *words]


def environment(account: pwd.struct_passwd, service: Service, client: Path) -> dict[str, str]:
    """As after a login, with the port of this service."""
    return {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SHELL": "/bin/sh",
        "TERM": "vt100",
        "PS1": "",
        "PYTHONPATH": str(client),
        "GPUCOORD_URL": service.address,
    }


class Person:
    """A user at a terminal that runs a command; account: the OS account, None = this one."""

    def __init__(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        *,
        rows: int = 24,
        columns: int = 80,
        account: pwd.struct_passwd | None = None,
    ) -> None:
        self._side, side = pty.openpty()
        self.resize(rows, columns)
        change = {} if account is None else as_account(account)
        self.process = subprocess.Popen(
            argv, env=env, stdin=side, stdout=side, stderr=side, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **change,
        )  # fmt: skip
        os.close(side)
        self.text = ""

    def until(self, text: str) -> None:
        watch = Stopwatch()
        while text not in self.text:
            assert not watch.has_run(30), f"{text!r} is not in {self.text!r}"
            self._read()

    def sees_a_prompt(self) -> None:
        watch = Stopwatch()
        while not self.text.endswith(("$ ", "# ")):
            assert not watch.has_run(30), f"no prompt in {self.text!r}"
            self._read()

    def _read(self) -> None:
        """The output of the next moment. The command must not have ended."""
        if not select.select([self._side], [], [], 0.2)[0]:
            return
        try:
            self.text += os.read(self._side, 65536).decode(errors="replace")
        except OSError:
            raise AssertionError(f"the command ended: {self.text!r}") from None

    def types(self, keys: str) -> None:
        os.write(self._side, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        """The exit code. The terminal is read, so that the command never waits for it."""
        watch = Stopwatch()
        while self.process.poll() is None:
            assert not watch.has_run(30), self.text
            if select.select([self._side], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self._side, 65536).decode(errors="replace")
                except OSError:
                    break
        code = self.process.wait(LONGEST_S)
        self._close()
        return code

    def kill(self) -> None:
        """End the command if it still runs, as after a failed test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LONGEST_S)
        self._close()

    def _close(self) -> None:
        if self._side >= 0:
            os.close(self._side)
            self._side = -1

    @property
    def number(self) -> int:
        return int(re.findall(r"job (\d+)", self.text)[0])
