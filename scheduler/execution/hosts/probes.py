"""Edge: the log of a job on another host, read through the service there."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from scheduler.jobs.lifecycle.probes import CHUNK, LogPiece

LONGEST_S = 3.0
LARGEST = 8 * 1024**2
START, SIZE = "X-Log-Start", "X-Log-Size"
# A proxy in the environment leads to the internet, for alert channels; it may not reach the hosts.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Unreachable(OSError):
    """The other host does not answer; the text says why."""


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """A log by byte offset, like a file. Each read is one request.

    ticket: makes a signed text for (offset, limit), which the other host checks. pages: the address
    of its pages; "" = it has none.
    """

    host: str
    address: str
    job_id: int
    number: int
    ticket: Callable[[int, int], str] = field(compare=False)
    pages: str = ""

    def read(self, offset: int = 0, limit: int = CHUNK) -> LogPiece:
        """Raises Unreachable."""
        url = f"{self.address.rstrip('/')}/internal/log/{self.ticket(offset, limit)}/"
        try:
            # The address is that of a registered host.
            with DIRECT.open(url, timeout=LONGEST_S) as answer:
                data = answer.read(LARGEST)
                start, size = int(answer.headers[START]), int(answer.headers[SIZE])
        except urllib.error.HTTPError as error:
            with error:
                raise Unreachable(_refusal(error.code)) from None
        except (OSError, ValueError, TypeError) as error:
            raise Unreachable(str(getattr(error, "reason", error))[:200]) from None
        return LogPiece(start, data, size)

    def tail(self, limit: int = CHUNK) -> LogPiece:
        """The last `limit` bytes. Raises Unreachable."""
        return self.read(-limit, limit)

    def size(self) -> int:
        """Raises Unreachable."""
        return self.read(0, 0).size


def _refusal(code: int) -> str:
    if code == HTTPStatus.FORBIDDEN:
        return "it refused the signature, so its secret_key or its clock differs from this host's"
    return f"it answered {code}"
