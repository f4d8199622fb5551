"""A client of gpucoord's REST API; every failure is one sentence. Needs no Django."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

PIECE = 1024 * 1024


class UnableToAsk(Exception):
    """The server can't be reached or does not want to; the message says why, and what to do."""


class NotReachable(UnableToAsk):
    """It may be there again later."""


@dataclass(frozen=True, slots=True)
class Output:
    """A part of a job's log. `state` is the job's when it was read."""

    data: bytes
    next: int
    state: str
    more: bool


class Client:
    """Talks to one server as the token's user."""

    def __init__(self, url: str, token: str, timeout_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self._url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(timeout_s, connect=5.0),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UnableToAsk(f"{url} is not an address: {error}") from None

    def submit(self, body: dict[str, Any]) -> int:
        """The new job's id. Never asked twice: the first may have arrived."""
        answer = self._ask("POST", "/api/jobs/", json=body)
        return int(answer.json()["id"])

    def what_if(self, body: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("POST", "/api/jobs/what-if/", json=body).json()
        return found

    def job(self, job_id: int) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"/api/jobs/{job_id}/").json()
        return found

    def why(self, job_id: int) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"/api/jobs/{job_id}/why/").json()
        return found

    def quota(self, user: str | None = None) -> dict[str, Any]:
        asked = {"user": user} if user else {}
        found: dict[str, Any] = self._ask("GET", "/api/quota/", params=asked).json()
        return found

    def log(self, job_id: int, offset: int) -> Output:
        answer = self._ask(
            "GET", f"/api/jobs/{job_id}/log/", params={"offset": offset, "limit": PIECE}
        )
        following = int(answer.headers["X-Log-Next-Offset"])
        size = int(answer.headers["X-Log-Size"])
        return Output(answer.content, following, answer.headers["X-Job-State"], following < size)

    def cancel(self, job_id: int) -> bool:
        return bool(self._ask("POST", f"/api/jobs/{job_id}/cancel/").json()["cancelled"])

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.UnsupportedProtocol:
            raise UnableToAsk(f"{self._url} is not an address; it starts with http://.") from None
        except httpx.InvalidURL as error:
            raise UnableToAsk(f"{self._url} is not an address: {error}") from None
        except httpx.TimeoutException:
            raise NotReachable(f"gpucoord at {self._url} does not answer.") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise NotReachable(
                f"gpucoord can't be reached at {self._url} ({reason}). Does it run? "
                "Its address is given by --url or GPUCOORD_URL."
            ) from None
        if answer.is_success:
            return answer
        raise _refusal(answer, self._url)


def _refusal(answer: httpx.Response, url: str) -> UnableToAsk:
    try:
        body = answer.json()
        detail = str(body["detail"])
    except (ValueError, KeyError, TypeError):
        kind = NotReachable if answer.status_code >= 500 else UnableToAsk
        return kind(f"{url} answered {answer.status_code}, but not as gpucoord does.")
    if answer.status_code == 401:
        return UnableToAsk(f"The token was refused. {detail}")
    if answer.status_code >= 500:
        return NotReachable(detail)
    fields = [f"{e['field']}: {e['message']}" for e in body.get("errors", ())]
    return UnableToAsk("\n".join(fields) or detail)
