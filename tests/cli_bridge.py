"""Commands of `gpucoord` run in the test's process, against Django's own test client."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client as Browser
from django.utils import timezone

from gpucoord_site.cli import connection
from gpucoord_site.cli.client import Answer, Client
from monitor.models import Agent
from monitor.owners import rows


class DjangoTransport:
    """Answers as the server would."""

    url = "http://127.0.0.1:8000"

    def __init__(self, user: User, agent: Agent | None = None) -> None:
        _, token = rows.create_token(user, timezone.now(), agent=agent)
        self.headers = {"authorization": f"Bearer {token}"}
        self._browser = Browser()

    def request(
        self,
        method: str,
        path: str,
        params: Any = None,
        body: Any = None,
        headers: Any = None,
    ) -> Answer:
        answer = self._browser.generic(
            method,
            path,
            b"" if body is None else json.dumps(body),
            "application/json",
            query_params=params or None,
            headers=self.headers | dict(headers or {}),
        )
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status_code, found, answer.content)

    def close(self) -> None:
        pass


def connect_as(user: User, monkeypatch: pytest.MonkeyPatch, agent: Agent | None = None) -> Client:
    """Let commands talk to the server as this user or agent; returns such a client."""
    transport = DjangoTransport(user, agent)

    def connect(_options: Namespace, _timeout_s: float = 30.0) -> Client:
        client = Client(transport.url, "unused")
        client._http = transport  # type: ignore[assignment]
        return client

    monkeypatch.setattr(connection, "connect", connect)
    return connect(Namespace())
