"""The MCP server: its tools over REST, and the protocol."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from mcp.shared.memory import create_connected_server_and_client_session as connected

from gpucoord_site.cli import mcp_server
from gpucoord_site.cli.client import Client, RequestFailed
from gpucoord_site.cli.mcp_server import Tools
from scheduler.models import Job
from tests import jobs_made
from tests.cli_bridge import connect_as

TOOLS = {"gpus", "jobs", "quota", "dry_run", "submit", "job", "why", "wait", "log", "cancel"}


async def test_it_offers_ten_documented_tools() -> None:
    server = mcp_server.server(Client("http://127.0.0.1:1", "unused"))
    async with connected(server._mcp_server) as session:
        tools = (await session.list_tools()).tools

    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.description for tool in tools)


async def test_a_failed_request_reaches_the_agent_as_a_sentence() -> None:
    server = mcp_server.server(Client("http://127.0.0.1:1", "unused"))
    async with connected(server._mcp_server) as session:
        answer = await session.call_tool("gpus", {})

    assert answer.isError
    assert "can't be reached" in answer.content[0].text  # type: ignore[union-attr]


@pytest.fixture
def tools(alice: User, monkeypatch: pytest.MonkeyPatch) -> Tools:
    return Tools(connect_as(alice, monkeypatch))


def test_it_submits_follows_and_cancels(tools: Tools) -> None:
    number = tools.submit("true", gpus=0, name="mine", priority=2, time_limit="5 min")["id"]

    row = Job.objects.get(pk=number)
    assert (row.name, row.priority, row.time_limit_s) == ("mine", 2, 300)
    assert [job["id"] for job in tools.jobs()] == [number]
    assert tools.job(number)["state"] == tools.wait(number, 0.0)["state"] == "queued"
    assert tools.log(number) == ""
    assert tools.why(number)["id"] == number
    assert tools.cancel(number) == {"id": number, "cancelled": True}
    assert tools.wait(number)["outcome"] == "cancelled"


def test_a_dry_run_submits_nothing(tools: Tools) -> None:
    assert "starts_now" in tools.dry_run("true", gpus=0)
    assert not Job.objects.exists()


def test_a_refusal_says_what_is_wrong(tools: Tools) -> None:
    with pytest.raises(RequestFailed, match="gpu_memory"):
        tools.submit("true", gpu_memory="much")


def test_it_lists_jobs_of_all_users_and_the_limits(tools: Tools, bob: User) -> None:
    number = jobs_made.waiting(bob).pk

    assert tools.jobs() == []
    assert [job["id"] for job in tools.jobs(owner="")] == [number]
    assert tools.quota()
    assert tools.gpus() == []
