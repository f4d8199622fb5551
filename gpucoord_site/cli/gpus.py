"""`gpucoord gpus`, `mine`, `end`: GPUs, and your own processes on them. Needs no Django."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, tables
from gpucoord_site.cli.commands import REFUSED, arg, command, complain, count, seconds, show
from gpucoord_site.cli.connection import SERVER, asks
from monitor.facts.input_rules import escaped

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
# A login must not wait for a server that does not answer.
MOTD_S = 1.0
KILL_S = 10.0
# Between two looks of `top` while the server does not answer.
SHORTEST_S = 0.2
MOST_COMMAND = 60


@command(
    "mine",
    "List your own processes on GPUs.",
    *SERVER,
    arg("--motd", "one sentence for each idle process, for a login message; silent otherwise"),
)
def mine(options: Namespace) -> int:
    """With --motd, only idle processes are shown, and errors are silent."""
    if options.motd:
        return _motd(options)
    return connection.tell(options, lambda client: {"processes": client.mine()}, _mine_lines)


def _motd(options: Namespace) -> int:
    from gpucoord_site.cli.client import RequestFailed
    from gpucoord_site.cli.local_login import UnsafeToken

    try:
        with _deadline(MOTD_S), connection.connect(options, MOTD_S) as client:
            processes = client.mine()
        lines = list(motd_lines(processes))
    except (RequestFailed, UnsafeToken, OSError, *connection.WRONG_FORM):
        processes, lines = [], []
    if options.json:
        return show(options, {"processes": processes}, ())
    for line in lines:
        sys.stdout.write(f"{escaped(line)}\n")
    return 0


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    """Interrupt what takes longer, whatever it waits for. Raises TimeoutError.

    Windows has no such timer; the time limits of the connection hold there.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


@command(
    "end",
    "End one of your own processes on a GPU.",
    *SERVER,
    arg("pid PID", "its number, as `gpucoord mine` shows it", type=count),
    arg("--grace SECONDS", "time to SIGKILL", type=seconds, default=10.0),
    arg("--force", "this host has another name there"),
)
def end(options: Namespace) -> int:
    """SIGTERM, and SIGKILL if it has not ended after the grace period."""

    def work(client: Client) -> int:
        refusal = _refusal(client.mine(), options)
        return complain(refusal, REFUSED) if refusal else _end(options)

    return connection.run(options, work)


def _refusal(processes: Sequence[Json], options: Namespace) -> str:
    """Why this process is not ended; "" = it is."""
    pid = options.pid
    process = next((process for process in processes if process["pid"] == pid), None)
    if process is None:
        return f"You have no process {pid} on a GPU. `gpucoord mine` lists yours."
    if job := process["job"]:
        return f"Process {pid} belongs to job {job}: run gpucoord cancel {job}"
    if process["host"] != socket.gethostname() and not options.force:
        return f"Process {pid} runs on {process['host']}; run this command there."
    return ""


def _end(options: Namespace) -> int:
    pid = options.pid
    try:
        # A descriptor stays with this process, even if its number is reused.
        process = os.pidfd_open(pid)
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not _has_ended(process, options.grace):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            if not _has_ended(process, KILL_S):
                return complain(f"Process {pid} has not ended after SIGKILL.", REFUSED)
    except ProcessLookupError:
        pass
    except PermissionError:
        return complain(f"Process {pid} is not of your account; you may not end it.", REFUSED)
    answer = json.dumps({"pid": pid, "ended": True}) if options.json else f"process {pid}: ended"
    sys.stdout.write(f"{answer}\n")
    return 0


def _has_ended(process: int, within_s: float) -> bool:
    import select

    return bool(select.select([process], [], [], within_s)[0])


def gpu_lines(answer: Json) -> Iterator[str]:
    """A line for each GPU, and why a host's GPUs can't be read."""
    for host in answer["hosts"]:
        if host["problem"]:
            yield f"{host['name']}: {host['problem']} {host['remedy'] or ''}".rstrip()
    several = len(answer["hosts"]) > 1
    yield from tables.listing(
        {"GPU": lambda gpu: f"{gpu['host']}:{gpu['index']}" if several else gpu["index"], **GPU},
        answer["gpus"],
        "There are no GPUs.",
    )


def _memory(gpu: Json) -> str:
    return f"{tables.gib(gpu['memory_used_bytes'])} of {tables.gib(gpu['memory_total_bytes'])}"


def _temperature(gpu: Json) -> str:
    value = gpu["temperature_c"]
    return tables.UNKNOWN if value is None else f"{value:.0f} °C"


GPU: dict[str, Callable[[Json], object]] = {
    "MODEL": lambda gpu: tables.text(gpu["name"]),
    "STATE": lambda gpu: tables.text(gpu["state"]).replace("_", " "),
    "MEMORY": _memory,
    "USE": lambda gpu: tables.percent(gpu["utilization_pct"]),
    "TEMP": _temperature,
    "JOBS": lambda gpu: ",".join(gpu["jobs"]) or tables.UNKNOWN,
    "REMARK": lambda gpu: gpu["closed"] or gpu["condition_reason"] or gpu["problem"] or "",
}


def _command(process: Json) -> str:
    words = " ".join(process["command"] or ()) or process["program"] or "?"
    return words if len(words) <= MOST_COMMAND else f"{words[: MOST_COMMAND - 1]}…"


MINE: dict[str, Callable[[Json], object]] = {
    "PID": lambda process: process["pid"],
    "GPU": lambda process: f"{process['host']}:{process['gpu']}",
    "MEMORY": lambda process: tables.gib(process["memory_bytes"]),
    "USE": lambda process: tables.percent(process["sm_pct"]),
    "IDLE": lambda process: tables.between(process["idle_since"], None),
    "JOB": lambda process: tables.text(process["job"]),
    "COMMAND": _command,
}


def _mine_lines(answer: Json) -> Iterator[str]:
    return tables.listing(MINE, answer["processes"], "You have no processes on GPUs.")


def motd_lines(processes: Sequence[Json]) -> Iterator[str]:
    """A sentence for each process that holds GPU memory idle."""
    for process in processes:
        if process["idle_since"] is None or process["memory_bytes"] is None:
            continue
        idle = (tables.now() - tables.parsed(process["idle_since"])).total_seconds()
        held = f"{process['memory_bytes'] / 1024**3:.0f} GiB on GPU {process['gpu']}"
        since = f"{idle / 3600:.0f} h" if idle >= 3600 else f"{idle / 60:.0f} min"
        job, pid = process["job"], process["pid"]
        how = f"gpucoord cancel {job}" if job else f"gpucoord end {pid}"
        yield f"You hold {held}, idle {since}: {_command(process)} (pid {pid}). End it: {how}"


@command(
    "top",
    "Show GPUs and jobs, updated live.",
    *SERVER,
    arg("--interval SECONDS", "default: 2", type=seconds, default=2.0),
    arg("--once", "print once"),
)
def top(options: Namespace) -> int:
    """GPUs and jobs, again and again until Ctrl-C; once when stdout is no terminal."""

    def work(client: Client) -> int:
        if options.json or options.once or not sys.stdout.isatty():
            return _print_once(client, options)
        return _watch(client, options.interval)

    try:
        return connection.run(options, work)
    except KeyboardInterrupt:
        return 0


def _watch(client: Client, interval: float) -> int:
    """Until Ctrl-C. While the server does not answer, the last lines stay with the reason."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from gpucoord_site.cli.client import NotReachable

    console, lines = Console(), [""]
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                # Half of the lines are for the GPUs at most.
                lines = list(_top_lines(client, console.height - 1, console.width))
            except NotReachable as error:
                lines[0] = f"{escaped(str(error))} Trying again; Ctrl-C ends."
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            time.sleep(max(SHORTEST_S, interval))


def _print_once(client: Client, options: Namespace) -> int:
    if options.json:
        answer = client.gpus() | {"jobs": list(client.jobs(state="open"))}
        return show(options, answer, ())
    sys.stdout.write("\n".join(_top_lines(client, 1000, 120)) + "\n")
    return 0


def _top_lines(client: Client, height: int, width: int) -> Iterator[str]:
    from gpucoord_site.cli import jobs

    matches = sorted(client.jobs(200, state="open"), key=jobs.order)
    running = sum(job["state"] != "queued" for job in matches)
    yield f"gpucoord  {tables.now().astimezone():%H:%M:%S}  {running} running, " + (
        f"{len(matches) - running} waiting   Ctrl-C ends"
    )
    yield ""
    gpu = list(gpu_lines(client.gpus()))
    shown = gpu[: max(4, height // 2)]
    yield from shown
    yield ""
    rest = list(jobs.queue_lines({"jobs": matches}, width))
    yield from rest[: max(3, height - len(shown) - 3)]


gpus = asks(
    "gpus",
    "List the GPUs with their state, memory and jobs.",
    *SERVER,
    ask=lambda client, _: client.gpus(),
    lines=gpu_lines,
)
