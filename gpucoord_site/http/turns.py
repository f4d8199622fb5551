"""Requests of a client wait for each other, so that no client keeps all threads busy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings

Client = tuple[object, ...]


@dataclass(slots=True)
class Place:
    """of: how many requests run or wait."""

    turns: asyncio.Semaphore
    of: int = 0


class Turns:
    """At most `most` requests of a client run at a time. For one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: dict[Client, Place] = {}

    async def take(self, client: Client) -> None:
        """Wait for the turn, which `give_back` ends."""
        place = self._places.setdefault(client, Place(asyncio.Semaphore(self._most)))
        place.of += 1
        try:
            await place.turns.acquire()
        except asyncio.CancelledError:
            self._leave(client, place)
            raise

    def give_back(self, client: Client) -> None:
        place = self._places[client]
        place.turns.release()
        self._leave(client, place)

    def _leave(self, client: Client, place: Place) -> None:
        place.of -= 1
        if place.of == 0:
            del self._places[client]


def client_of(scope: Mapping[str, Any]) -> Client:
    """The client of a request: its token, its session, or else its address.

    Nothing of it is checked here. Requests with neither are counted for each path, so that those
    who log in do not keep others from looking whether the service is well.
    """
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            return (value,)
        if name == b"cookie" and (session := _session().search(value)):
            return (session[1],)
    return (*(scope.get("client") or ("",))[:1], scope.get("path"))


@cache
def _session() -> re.Pattern[bytes]:
    name = re.escape(settings.SESSION_COOKIE_NAME.encode())
    return re.compile(rb"(?:^|;\s*)" + name + rb"=([^;]+)")
