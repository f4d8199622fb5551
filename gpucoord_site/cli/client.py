"""A client of gpucoord's REST API; every failure is one sentence. Standard library only.

Scripts import it as `gpucoord_site.client`. `http.client` starts faster than httpx.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from gpucoord_site.cli import local_login
from gpucoord_site.cli.commands import Failed
from monitor.facts import input_rules
from monitor.owners.probes.listeners import is_on_this_host, needs_privilege, peer_uids

CONNECT_S = 5.0
CLOSED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
PIECE = 1024 * 1024
PAGE = 500
# Between attempts to submit; a restart of the server takes a few seconds.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 0.0)
# Between looks at a job that has not ended.
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.2, 2.0
pause = time.sleep
Json = dict[str, Any]


class RequestFailed(Failed):
    """The request failed; the message says why, and what to do."""


class NotReachable(RequestFailed):
    """The server did not respond; a later request may succeed."""


class NeverReached(NotReachable):
    """The request was not sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Raises ValueError."""
        return input_rules.parse_json(self.content)


class Transport:
    """One connection to the server, kept open between requests."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self.headers = dict(headers)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        try:
            self._parts = urlsplit(self.url)
            self._port = self._parts.port
        except ValueError as error:
            raise RequestFailed(f"{url} is not an address: {error}") from None
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise RequestFailed(f"{url} is not an address; it starts with http://.")

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; body: JSON. Raises NotReachable."""
        address = self._parts.path + path
        if params:
            address += ("&" if "?" in path else "?") + urlencode(params)
        data = None if body is None else json.dumps(body).encode()
        sent = self.headers | dict(headers or {})
        if data is not None:
            sent["Content-Type"] = "application/json"
        elif method != "GET":
            sent["Content-Length"] = "0"
        return self._sent(method, address, data, sent)

    def connect(self) -> None:
        """Raises NeverReached if the server does not listen."""
        self._connected()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _sent(
        self, method: str, address: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        is_reused = self._connection is not None
        try:
            return self._exchange(method, address, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # The server closed an idle connection; the request did not arrive.
            if is_reused and isinstance(error, CLOSED):
                return self._sent(method, address, data, headers)
            raise self._unreachable(error, NotReachable) from None

    def _exchange(
        self, method: str, address: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        connection = self._connection or self._connected()
        connection.request(method, address, body=data, headers=dict(headers))
        response = connection.getresponse()
        content = response.read()
        if response.will_close:
            self.close()
        by_name = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, by_name, content)

    def _connected(self) -> http.client.HTTPConnection:
        is_https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        limit_s = min(CONNECT_S, self._timeout_s)
        connection = kind(self._parts.hostname or "", self._port, timeout=limit_s)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            raise self._unreachable(error, NeverReached) from None
        if not is_https:
            prove(connection.sock, self.url)
        connection.sock.settimeout(self._timeout_s)
        # Small requests are sent at once.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        return connection

    def _unreachable(self, error: Exception, kind: type[NotReachable]) -> NotReachable:
        if isinstance(error, TimeoutError):
            return kind(f"gpucoord at {self.url} does not answer.")
        reason = str(error).strip() or type(error).__name__
        return kind(
            f"gpucoord can't be reached at {self.url} ({reason}). Does it run? "
            "Its address is given by --url or GPUCOORD_URL."
        )


def connected(host: str, port: int, url: str) -> socket.socket:
    """A proven connection without TLS. Raises OSError, or RequestFailed with a sentence."""
    connection = socket.create_connection((host, port), CONNECT_S)
    prove(connection, url)
    connection.settimeout(None)
    return connection


def prove(connection: socket.socket, url: str) -> None:
    """Before a secret is sent to a process of this machine: it must be of the service, by its uid.

    Above port 1023, every account can listen while the service does not. Raises RequestFailed.
    """
    port: int = connection.getpeername()[1]
    try:
        if is_on_this_host(connection) and not needs_privilege(port):
            local_login.check_uids(peer_uids(connection), f"port {port}")
    except local_login.LoginRefused as error:
        connection.close()
        raise RequestFailed(f"Nothing was sent to {url}. {error}") from None


@dataclass(frozen=True, slots=True)
class Output:
    """A part of a job's log. `state` is the job's when it was read."""

    data: bytes
    next: int
    state: str
    more: bool


class Client:
    """REST client for one server, as the user of the token.

    renew: gets another token when the server no longer accepts this one; None = it can't.
    The fields of jobs and answers are those of REST. Methods raise RequestFailed.
    """

    def __init__(
        self,
        url: str,
        token: str,
        timeout_s: float = 30.0,
        *,
        headers: Mapping[str, str] | None = None,
        renew: Callable[[], str | None] | None = None,
    ) -> None:
        self._renew = renew
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        self._http = Transport(url, sent, timeout_s)

    @property
    def url(self) -> str:
        return self._http.url

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request, with the token."""
        return dict(self._http.headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: Mapping[str, Any]) -> int:
        """The number of the new job; of an array, its first.

        Retries if the answer is lost; the key prevents a second job.
        """
        return int(self.submitted(job)["id"])

    def submitted(self, job: Mapping[str, Any]) -> Json:
        """Submit a job; the answer: `id`, `url`, of an array its jobs, and what it left out."""
        return self._post_once("/api/jobs/", job)

    def submit_all(self, jobs: Sequence[Mapping[str, Any]]) -> list[int]:
        """Submit all jobs, or none; their numbers in the same order. Retries as `submit` does."""
        ids: list[int] = self._post_once("/api/jobs/batch/", {"jobs": list(jobs)})["ids"]
        return ids

    def submit_batch(self, batch: Mapping[str, Any]) -> Json:
        """Submit a batch of items; returns it with its `id`."""
        return self._json("POST", "/api/batches/", body=batch)

    def what_if(self, job: Mapping[str, Any]) -> Json:
        """When such a job would start, and why not now. Nothing is submitted."""
        return self._json("POST", "/api/jobs/what-if/", body=job)

    def jobs(self, most: int | None = None, **filters: str | int) -> Iterator[Json]:
        """Jobs, newest first; filters: state, owner, outcome, name, tag, array, since, until."""
        count = 0
        query: dict[str, Any] = {**filters, "limit": min(most or PAGE, PAGE)}
        address: str | None = "/api/jobs/"
        while address is not None:
            page = self._json("GET", address, params=query)
            for job in page["jobs"]:
                yield job
                count += 1
                if count == most:
                    return
            # `next` has the filters.
            address, query = page["next"], {}

    def job(self, job_id: int) -> Json:
        return self._json("GET", f"/api/jobs/{job_id}/")

    def change(self, job_id: int, *, array: bool = False, **fields: Any) -> Json:
        """Change fields of a waiting job; None resets a field. Returns the job."""
        return self._json("PATCH", f"/api/jobs/{job_id}/", params=_all(array), body=fields)

    def clean(self, path: str = "", *, dry_run: bool = True, host: str = "") -> Json:
        """Start a clean-up of disks, or list what it would delete. Returns the run."""
        body = {"path": path, "dry_run": dry_run, "host": host}
        return self._json("POST", "/api/disks/clean/", body=body)

    def cleaning(self, run_id: int) -> Json:
        """A clean-up as it is now."""
        return self._json("GET", f"/api/disks/clean/{run_id}/")

    def why(self, job_id: int) -> Json:
        """The reasons to wait, the predicted start, what would help, and the priority factors."""
        return self._json("GET", f"/api/jobs/{job_id}/why/")

    def models(self) -> Json:
        """The language models with their instances, and the address of the endpoint."""
        return self._json("GET", "/api/models/")

    def change_model(self, name: str, action: str) -> Json:
        """Operators: `boot` starts an instance, `unload` unloads all. Returns the model."""
        return self._json("POST", f"/api/models/{quote(name, safe='')}/{action}/")

    def send_prompt(self, prompt: Mapping[str, Any]) -> Json:
        """Queue a prompt to a language model; fields: model, prompt or messages, type, priority."""
        return self._json("POST", "/api/prompts/", body=prompt)

    def prompt(self, number: int) -> Json:
        """A prompt with its status, and its result once it is complete."""
        return self._json("GET", f"/api/prompts/{number}/")

    def log(
        self,
        job_id: int,
        offset: int = 0,
        *,
        tail: int | None = None,
        attempt: int | None = None,
        limit: int = PIECE,
    ) -> Output:
        """A part of the output from byte `offset` on, or the last `tail` bytes."""
        query = {"offset": offset, "limit": limit} if tail is None else {"tail": tail}
        query |= {} if attempt is None else {"attempt": attempt}
        answer = self._ask("GET", f"/api/jobs/{job_id}/log/", params=query)
        following = int(answer.headers["x-log-next-offset"])
        size = int(answer.headers["x-log-size"])
        return Output(answer.content, following, answer.headers["x-job-state"], following < size)

    def array(self, job_id: int) -> list[Json]:
        """The states of all jobs of its array, in order."""
        jobs: list[Json] = self._json("GET", f"/api/jobs/{job_id}/array/")["jobs"]
        return jobs

    def cancel(self, job_id: int, *, array: bool = False) -> bool:
        """Cancel a job, or all that have not ended of its array. False: it had ended."""
        return bool(self._act(job_id, "cancel", _all(array))["cancelled"])

    def hold(self, job_id: int, reason: str = "", *, array: bool = False) -> Json:
        return self._act(job_id, "hold", _all(array) | ({"reason": reason} if reason else {}))

    def release(self, job_id: int, *, array: bool = False) -> Json:
        return self._act(job_id, "release", _all(array))

    def requeue(self, job_id: int) -> bool:
        """Stop a running job and put it back into the queue. False: it waits already."""
        return bool(self._act(job_id, "requeue", {})["requeued"])

    def resubmit(self, job_id: int, **deleted: Any) -> int:
        """Submit an ended job of your own again; the number of the new job. Retries as `submit`.

        deleted: `env`, `environment` and `stdin_base64`, if the job had them.
        """
        return int(self._post_once(f"/api/jobs/{job_id}/resubmit/", deleted)["id"])

    def wait(self, job_id: int, timeout_s: float | None = None) -> Json:
        """The job once it has ended. Raises TimeoutError."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        seconds = SHORTEST_WAIT_S
        while (job := self.job(job_id))["state"] != "finished":
            left = seconds if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Job {job_id} has not ended within {timeout_s:g} s.")
            pause(min(seconds, left))
            seconds = min(LONGEST_WAIT_S, seconds * 1.5)
        return job

    def quota(self, user: str | None = None) -> Json:
        return self._json("GET", "/api/quota/", params={"user": user} if user else {})

    def set_quota(self, user: str, **limits: Any) -> Json:
        """Change limits of a user's own quota; None = no limit. For operators."""
        return self._json("PATCH", "/api/quota/", body={"user": user, **limits})

    def add_user(self, name: str, account: str | None = None, like: str | None = None) -> Json:
        """A new user without a password. account: its OS account. For superusers."""
        body = {"name": name, "account": account, "like": like}
        return self._json("POST", "/api/users/", body=body)

    def invite_user(self, name: str) -> Json:
        """`url`: the page on which the user sets a password. For superusers."""
        return self._json("POST", f"/api/users/{quote(name, safe='')}/invitation/")

    def report(self, query: dict[str, str]) -> bytes:
        """A usage report in the format of the query."""
        return self._ask("GET", "/api/reports/usage/", params=query).content

    def report_by_tag(self, query: dict[str, str]) -> Json:
        """GPU-hours by the values of a tag: tag, last, from, to, user."""
        return self._json("GET", "/api/reports/tags/", params=query)

    def report_by_tag_csv(self, query: dict[str, str]) -> bytes:
        """The same as a CSV file."""
        return self._ask("GET", "/api/reports/tags/", params=query | {"format": "csv"}).content

    def shares(self) -> Json:
        return self._json("GET", "/api/shares/")

    def gpus(self) -> Json:
        """`hosts` and `gpus` with their newest readings; None = unknown."""
        return self._json("GET", "/api/gpus/")

    def processes(self) -> Json:
        """`hosts` and `processes` on all GPUs."""
        return self._json("GET", "/api/processes/")

    def mine(self) -> list[Json]:
        """Your own processes on GPUs, and since when each is idle."""
        processes: list[Json] = self._json("GET", "/api/mine/")["processes"]
        return processes

    def incidents(self) -> Json:
        """The open `incidents`, the most severe first."""
        return self._json("GET", "/api/incidents/")

    def incident(self, number: int) -> Json:
        return self._json("GET", f"/api/incidents/{number}/")

    def without_incident(self, number: int) -> Json:
        """`jobs` that would start earlier if it ended now; None = not known."""
        return self._json("GET", f"/api/incidents/{number}/without/")

    def end_of_incident(self, incident: Json, *, kill: bool) -> Json:
        """Have exactly the process of this incident end; returns the incident."""
        body = {name: incident[name] or 0 for name in ("pid", "start_ticks")} | {"kill": kill}
        return self._json("POST", f"/api/incidents/{incident['id']}/end/", body=body)

    def close(self) -> None:
        self._http.close()

    def _act(self, job_id: int, action: str, query: Json) -> Json:
        return self._json("POST", f"/api/jobs/{job_id}/{action}/", params=query)

    def _post_once(self, path: str, body: Mapping[str, Any]) -> Json:
        headers = {"Idempotency-Key": os.urandom(16).hex()}
        failed: NotReachable | None = None
        for seconds in PAUSES_S:
            try:
                return self._json("POST", path, body=body, headers=headers)
            except NotReachable as error:
                if failed is None and isinstance(error, NeverReached):
                    raise
                failed = error
                pause(seconds)
        raise NotReachable(f"{failed} The job may have been submitted; look at the list of jobs.")

    def _json(self, method: str, path: str, **options: Any) -> Json:
        """The object of the answer."""
        try:
            answer = self._ask(method, path, **options).json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RequestFailed(f"{self._http.url} answered {path}, but not as gpucoord does.")
        return answer

    def _ask(self, method: str, path: str, **options: Any) -> Answer:
        answer = self._http.request(method, path, **options)
        if answer.status == 401 and self._renew and (token := self._renew()):
            self._http.headers["Authorization"] = f"Bearer {token}"
            answer = self._http.request(method, path, **options)
        if answer.is_success:
            return answer
        raise _refusal(answer, self._http.url)


def _all(array: bool) -> Json:
    return {"array": "true"} if array else {}


def _refusal(answer: Answer, url: str) -> RequestFailed:
    try:
        body = answer.json()
        detail = str(body["detail"])
    except (ValueError, KeyError, TypeError):
        kind = NotReachable if answer.status >= 500 else RequestFailed
        return kind(f"{url} answered {answer.status}, but not as gpucoord does.")
    if answer.status == 401:
        return RequestFailed(f"The token was refused. {detail}")
    if answer.status >= 500:
        return NotReachable(detail)
    try:
        fields = [f"{_place(e)}: {e['message']}" for e in body.get("errors", ())]
    except (KeyError, TypeError, AttributeError):
        fields = []
    return RequestFailed("\n".join(fields) or detail)


def _place(error: Json) -> str:
    """The field; of a request with many jobs also the job, numbered from 0."""
    index = error.get("index")
    return error["field"] if index is None else f"jobs[{index}].{error['field']}"
