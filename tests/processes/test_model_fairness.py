"""One user's flood through the real endpoint, with real model servers, beside another user."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.pace import LONGEST_S
from tests.processes.model_stand import ModelStand, model_stand

pytestmark = [pytest.mark.processes, pytest.mark.slow]
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
# An answer takes 0.4 s, so that two instances with four places each answer 20 a second.
ANSWER = ("--tokens", "4", "--interval-s", "0.1")
REQUESTS, PAUSE_S = 10, 0.05
# A slow machine answers hundreds of prompts until the last request of the other user.
OPEN, QUEUED = 80, 400


async def ask(http: httpx.AsyncClient, token: str) -> float:
    """Seconds until the whole answer."""
    began_s = time.monotonic()
    headers = {"Authorization": f"Bearer {token}"}
    answer = await http.post("/chat/completions", headers=headers, json=HELLO)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began_s


async def p90_of(http: httpx.AsyncClient, token: str) -> float:
    """Of requests one after another."""
    seconds = []
    for _ in range(REQUESTS):
        seconds.append(await ask(http, token))
        await asyncio.sleep(PAUSE_S)
    return sorted(seconds)[round(0.9 * REQUESTS) - 1]


async def flood(http: httpx.AsyncClient, token: str) -> None:
    while True:
        await ask(http, token)


@pytest.mark.parametrize(
    "is_known", [True, pytest.param(False, marks=pytest.mark.long)], ids=["known", "new"]
)
async def test_a_flood_leaves_the_p90_of_another_user_below_1_5_times_alone(
    tmp_path: Path, is_known: bool
) -> None:
    """A new user has sent nothing before the flood, so no place is kept for the first request."""
    with model_stand(tmp_path / "data") as stand:
        for _ in range(2):
            stand.serve(*ANSWER)
        stand.start_endpoint()
        many = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=stand.url, timeout=LONGEST_S, limits=many) as http:
            bob, ada = stand.tokens["bob"], stand.tokens["ada"]
            alone_s = await p90_of(http, bob)
            if not is_known:
                stand.restart_endpoint()
            beside_s = await _beside_a_flood(stand, http, bob, ada)

    assert beside_s <= 1.5 * alone_s, (beside_s, alone_s)


async def _beside_a_flood(stand: ModelStand, http: httpx.AsyncClient, bob: str, ada: str) -> float:
    for _ in range(QUEUED):
        stand.add_prompt()
    requests = [asyncio.create_task(flood(http, ada)) for _ in range(OPEN)]
    # All places are taken, and many requests wait.
    await asyncio.sleep(1.0)
    beside_s = await p90_of(http, bob)
    assert not any(task.done() for task in requests)
    assert "queued" in stand.column("prompt", "status")
    for task in requests:
        task.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    return beside_s
