"""`gpucoord mcp`: a server of the Model Context Protocol (stdio) for AI agents, over REST.

It needs the extra: pip install 'gpucoord[mcp]'. The token of an agent limits what it can do.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.commands import command, complain
from scheduler.facts.job_answers import JOB_ANSWERS

if TYPE_CHECKING:
    from mcp.server.fastmcp import FastMCP

    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
NEEDS_MCP = "gpucoord mcp needs the package mcp: pip install 'gpucoord[mcp]'"
INSTRUCTIONS = """\
gpucoord schedules jobs on the GPUs of a shared server. Look at the GPUs, check a job with dry_run,
submit it, then follow it with wait and log. If a job waits, why says what it waits for. Always
declare gpu_memory and time_limit: jobs with small requests start sooner. Cancel what is not needed.
"""
LONGEST_WAIT_S = 300.0
MOST_LOG = 20_000
MOST_JOBS = 50
SHOWN = tuple(field.name for field in JOB_ANSWERS if field.for_agents)


@command(
    "mcp",
    "Serve the Model Context Protocol on stdin and stdout, for an AI agent.",
    *connection.PLACE,
)
def mcp(options: Namespace) -> int:
    try:
        import mcp  # noqa: F401
    except ImportError:
        return complain(NEEDS_MCP)

    def work(client: Client) -> int:
        # Stdout belongs to the protocol.
        sys.stderr.write(f"gpucoord: MCP server for {client.url}\n")
        server(client).run("stdio")
        return 0

    return connection.run(options, work)


def server(client: Client) -> FastMCP[None]:
    """The server with its tools. Errors of REST reach the agent as sentences."""
    from mcp.server.fastmcp import FastMCP

    made: FastMCP[None] = FastMCP("gpucoord", instructions=INSTRUCTIONS)
    tools = Tools(client)
    for tool in tools.all():
        made.add_tool(tool)
    return made


class Tools:
    """The tools; their names, arguments and docstrings are what the agent reads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> Sequence[Callable[..., Any]]:
        return (
            self.gpus, self.jobs, self.quota, self.dry_run, self.submit,
            self.job, self.why, self.wait, self.log, self.cancel,
        )  # fmt: skip

    def gpus(self) -> list[Json]:
        """List the GPUs with model, state, memory, utilisation and jobs. null means unknown."""
        shown = (
            "index", "host", "name", "state", "health", "memory_total_bytes", "memory_used_bytes",
            "utilization_pct", "jobs", "closed",
        )  # fmt: skip
        return [_part(gpu, shown) for gpu in self._client.gpus()["gpus"]]

    def jobs(self, state: str = "open", owner: str = "me") -> list[Json]:
        """List up to 50 jobs, newest first.

        state: open, queued, running or finished. owner: a user's name, me, or empty for all users.
        """
        filters = {"state": state} | ({"owner": owner} if owner else {})
        return [_part(job, SHOWN) for job in self._client.jobs(MOST_JOBS, **filters)]

    def quota(self) -> Json:
        """Limits of the user and what they use now."""
        return self._client.quota()

    def dry_run(
        self,
        command: str,
        gpus: int = 1,
        gpu_memory: str | None = None,
        time_limit: str | None = None,
    ) -> Json:
        """Say when such a job would start, and why not now. Submits nothing. See submit."""
        job = _given(command=command, gpus=gpus, gpu_memory=gpu_memory, time_limit=time_limit)
        return self._client.what_if(job)

    def submit(
        self,
        command: str,
        gpus: int = 1,
        gpu_memory: str | None = None,
        time_limit: str | None = None,
        cwd: str | None = None,
        name: str | None = None,
        priority: int | None = None,
        after_success: list[int] | None = None,
        variables: dict[str, str] | None = None,
    ) -> Json:
        """Submit a shell line as a job and return its number.

        gpus: 0 for a job without a GPU. gpu_memory: on each GPU, such as 20GiB. time_limit: such as
        2h or 90 min. cwd: an absolute folder. priority: 1 to 3. after_success: jobs to wait for.
        variables: environment variables.
        """
        job = _given(
            command=command, gpus=gpus, gpu_memory=gpu_memory, time_limit=time_limit, cwd=cwd,
            name=name, priority=priority, after_success=after_success, env=variables,
        )  # fmt: skip
        return {"id": self._client.submit(job)}

    def job(self, id: int) -> Json:
        """Show a job: state, outcome, exit code, times and efficiency."""
        return _part(self._client.job(id), SHOWN)

    def why(self, id: int) -> Json:
        """Say why a job waits, its position, the predicted start, and what would start it earlier.

        advice: changes that were planned to help, best first; [] = none does.
        """
        return self._client.why(id)

    def wait(self, id: int, seconds: float = 60.0) -> Json:
        """Wait for a job's end, at most 300 seconds; return the job as it is then."""
        try:
            return _part(self._client.wait(id, max(0.0, min(seconds, LONGEST_WAIT_S))), SHOWN)
        except TimeoutError:
            return self.job(id)

    def log(self, id: int, characters: int = 4000) -> str:
        """The end of a job's output, at most 20000 bytes."""
        output = self._client.log(id, tail=max(1, min(characters, MOST_LOG)))
        return output.data.decode(errors="replace")

    def cancel(self, id: int) -> Json:
        """Cancel a job that this agent submitted."""
        return {"id": id, "cancelled": self._client.cancel(id)}


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _part(answer: Json, names: Sequence[str]) -> Json:
    return {name: answer[name] for name in names if name in answer}
