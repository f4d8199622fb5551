"""A typed client of gpucoord's REST API for Python programs. Standard library only.

from gpucoord_site.client import connect

with connect() as gpucoord:
    job = gpucoord.submit({"command": "python train.py", "gpu_memory": "20GiB"})
    ended = gpucoord.wait(job)
"""

from __future__ import annotations

from argparse import Namespace

from gpucoord_site.cli import connection
from gpucoord_site.cli.client import Client, NeverReached, NotReachable, Output, RequestFailed

__all__ = ["Client", "NeverReached", "NotReachable", "Output", "RequestFailed", "connect"]


def connect(url: str | None = None, token: str | None = None, timeout_s: float = 30.0) -> Client:
    """A client as the commands have it: GPUCOORD_URL, GPUCOORD_TOKEN, the saved token.

    On the server itself, no token is needed. Raises RequestFailed.
    """
    return connection.connect(Namespace(url=url, token=token), timeout_s)
