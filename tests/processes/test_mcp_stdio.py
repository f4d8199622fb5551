"""`gpucoord mcp` as an AI assistant starts it: over stdio, with an agent's token, on a service."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, kill_jobs, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow]
MOST_TOOLS = 10


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as service:
        yield service
    kill_jobs(service.data)


def _agent_token(service: Service) -> str:
    """Of a new agent, made on the page of the account."""
    with httpx.Client(base_url=service.address, timeout=LONGEST_S, follow_redirects=True) as http:
        _post(http, "/login/", username="admin", password="correct horse")
        page = _post(
            http, "/account/agents/", name="assistant", running_jobs="2", gpu_minutes="600",
            days="30",
        )  # fmt: skip
    match = re.search(r"gpc_[\w-]+", page.text)
    assert match is not None
    return match[0]


def _post(http: httpx.Client, path: str, **fields: str) -> httpx.Response:
    form = http.get("/login/" if path == "/login/" else "/account/").text
    match = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
    assert match is not None
    answer = http.post(path, data=fields | {"csrfmiddlewaretoken": match[1]})
    assert answer.status_code == 200
    return answer


class Agent:
    """An AI assistant with an open session."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def use(self, tool: str, **arguments: Any) -> Any:
        answer = await self.session.call_tool(tool, arguments)
        assert not answer.isError, answer.content
        texts = [part.text for part in answer.content if part.type == "text"]
        if tool == "log":
            return "".join(texts)
        parts = [json.loads(text) for text in texts]
        return parts if tool in ("gpus", "jobs") else parts[0]


@asynccontextmanager
async def _connected(service: Service, token: str) -> AsyncIterator[Agent]:
    env = {"GPUCOORD_URL": service.address, "GPUCOORD_TOKEN": token, "PYTHONPATH": str(ROOT)}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "gpucoord_site", "mcp"], env=env
    )
    async with stdio_client(command) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield Agent(session)


async def test_an_agent_submits_follows_asks_why_and_cancels_over_stdio(service: Service) -> None:
    with httpx.Client(base_url=service.address, timeout=LONGEST_S) as http:
        wait_until(lambda: http.get("/healthz").status_code == 200, LONGEST_S, "a healthy service")
    async with _connected(service, _agent_token(service)) as agent:
        tools = (await agent.session.list_tools()).tools
        assert 0 < len(tools) <= MOST_TOOLS

        gpus = await agent.use("gpus")
        assert {"index", "name", "memory_used_bytes"} <= set(gpus[0])
        dry = await agent.use("dry_run", command="true", gpus=0, time_limit="5 min")
        assert dry["starts_now"] is True

        job = (await agent.use("submit", command="echo marker-$((6 * 7)); exit 3", gpus=0))["id"]
        ended = await agent.use("wait", id=job, seconds=60)
        assert (ended["outcome"], ended["exit_code"]) == ("failed", 3)
        assert (ended["agent"], ended["priority"]) == ("assistant", 1)
        assert await agent.use("log", id=job) == "marker-42\n"

        first = (await agent.use("submit", command="sleep 600", gpus=0))["id"]
        second = (await agent.use("submit", command="true", gpus=0, after_success=[first]))["id"]
        reason = f"It starts after job {first} has succeeded."
        # The scheduler may not have looked at the job yet.
        async with asyncio.timeout(LONGEST_S):
            while reason not in json.dumps(await agent.use("why", id=second)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert {each["id"] for each in await agent.use("jobs")} == {first, second}

        for number in (second, first):
            assert (await agent.use("cancel", id=number))["cancelled"] is True
        assert (await agent.use("wait", id=first, seconds=60))["outcome"] == "cancelled"


async def test_what_an_agent_may_not_do_is_answered_with_a_sentence(service: Service) -> None:
    async with _connected(service, _agent_token(service)) as agent:
        answer = await agent.session.call_tool("submit", {"command": "true", "priority": 5})

    assert answer.isError
    assert "priority" in answer.content[0].text  # type: ignore[union-attr]
