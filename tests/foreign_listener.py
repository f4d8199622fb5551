"""A process of an account that is no account of gpucoord; it listens on a port of loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

OTHER = 61_999
LISTEN = """
import os, socket, sys
uid, address = int(sys.argv[1]), sys.argv[2]
os.setgid(uid); os.setuid(uid)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
server = socket.create_server((address, 0), family=family)
print(server.getsockname()[1], flush=True)
while True:
    client = server.accept()[0]
    print(client.recv(65536), flush=True)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    client.close()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as others")


@dataclass(frozen=True, slots=True)
class ForeignListener:
    port: int
    output: IO[str]

    def received(self) -> str:
        """The first bytes of the next connection, as Python writes them."""
        return self.output.readline().strip()


@contextmanager
def foreign_listener(address: str = "127.0.0.1", uid: int = OTHER) -> Iterator[ForeignListener]:
    command = [sys.executable, "-c", LISTEN, str(uid), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path("/")) as process:
        assert process.stdout is not None
        yield ForeignListener(int(process.stdout.readline()), process.stdout)
        process.kill()
