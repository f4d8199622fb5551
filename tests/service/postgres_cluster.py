"""A PostgreSQL server of a test's own, in a folder that goes with it."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PASSWORD = "not:a/secret@all"


def program(name: str) -> str:
    """A PostgreSQL program: Debian keeps them out of the PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return shutil.which(name) or found[-1]


def account() -> str | None:
    """PostgreSQL refuses to run as root: then another account must do it."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@dataclass(frozen=True)
class Server:
    """A running server; `url` is the address of an empty database, with an odd password in it."""

    url: str
    folder: Path
    port: int
    account: str | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, *argv: str) -> None:
        subprocess.run(
            argv, check=True, user=self.account, cwd="/", stdout=subprocess.DEVNULL, timeout=60
        )

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -F"
        self.run(program("pg_ctl"), "-D", str(self.data), "-o", options,
            "-l", str(self.folder / "log"), "-w", "start")  # fmt: skip

    def stop(self) -> None:
        """As after a crash: connections are cut, and nothing is finished."""
        self.run(program("pg_ctl"), "-D", str(self.data), "-m", "immediate", "-w", "stop")


@contextmanager
def cluster() -> Iterator[str]:
    """Run a server; yields the address of an empty database."""
    with server() as running:
        yield running.url


@contextmanager
def server() -> Iterator[Server]:
    """Run a server that the test may stop and start again."""
    who = account()
    folder = Path(tempfile.mkdtemp(prefix="gpucoord-pg-"))
    if who:
        shutil.chown(folder, who)
    port = free_port()
    url = f"postgresql://gpus:not%3Aa%2Fsecret%40all@127.0.0.1:{port}/postgres"
    made = Server(url, folder, port, who)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)

    try:
        made.run(program("initdb"), "-D", str(made.data), "-U", "gpus", "-A", "scram-sha-256", "-N",
            "--pwfile", str(secret), "-E", "UTF8", "--locale", "C.UTF-8")  # fmt: skip
        made.start()
        yield made
    finally:
        if (made.data / "postmaster.pid").exists():
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)
