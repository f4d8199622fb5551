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


@contextmanager
def cluster() -> Iterator[str]:
    """Run a server; yields the address of an empty database, with an odd password in it."""
    who = account()
    folder = Path(tempfile.mkdtemp(prefix="gpucoord-pg-"))
    if who:
        shutil.chown(folder, who)
    data, port = folder / "data", free_port()
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)

    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, user=who, cwd="/", stdout=subprocess.DEVNULL, timeout=60)

    try:
        run(program("initdb"), "-D", str(data), "-U", "gpus", "-A", "scram-sha-256", "-N",
            "--pwfile", str(secret), "-E", "UTF8", "--locale", "C.UTF-8")  # fmt: skip
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -F"
        run(program("pg_ctl"), "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w",
            "start")  # fmt: skip
        yield f"postgresql://gpus:not%3Aa%2Fsecret%40all@127.0.0.1:{port}/postgres"
    finally:
        if (data / "postmaster.pid").exists():
            run(program("pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)
