"""`gpucoord queue`, `history`, `show`, `efficiency`: look at jobs. Needs no Django."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, tables
from gpucoord_site.cli.why import lines as why_lines
from monitor.facts.answers import AnswerField
from scheduler.facts.job_answers import JOB_ANSWERS
from scheduler.facts.units import parse_duration
from scheduler.runner.spec import script_in

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
ORDER = {"stopping": 0, "running": 1, "starting": 2, "queued": 3}


def queue(argv: Sequence[str]) -> int:
    options = queue_parser().parse_args(argv)

    def question(client: Client) -> Json:
        jobs_found = list(
            client.jobs(options.limit, **_filters(options, state=options.state or "open"))
        )
        return {"jobs": sorted(jobs_found, key=order)}

    return connection.tell(options, question, queue_lines)


def history(argv: Sequence[str]) -> int:
    options = history_parser().parse_args(argv)

    def question(client: Client) -> Json:
        chosen = _filters(options, state="finished")
        if options.since:
            chosen["since"] = (tables.now() - options.since).isoformat()
        if options.outcome:
            chosen["outcome"] = options.outcome
        if options.user is None and not options.all:
            chosen["owner"] = "me"
        return {"jobs": list(client.jobs(options.limit, **chosen))}

    return connection.tell(options, question, _history_lines)


def show(argv: Sequence[str]) -> int:
    options = show_parser().parse_args(argv)

    def question(client: Client) -> Json:
        job = client.job(options.job)
        return job | {"why": client.why(options.job)} if job["state"] == "queued" else job

    return connection.tell(options, question, _job_lines)


def efficiency(argv: Sequence[str]) -> int:
    options = efficiency_parser().parse_args(argv)
    return connection.tell(options, lambda client: client.job(options.job), _efficiency_lines)


def _filters(options: Namespace, **filters: Any) -> Json:
    owner = "me" if getattr(options, "mine", False) else options.user
    more = {"owner": owner, "name": options.name, "tag": options.tag, "array": options.array}
    return filters | {name: value for name, value in more.items() if value is not None}


def order(job: Json) -> tuple[int, int, int]:
    """Running jobs first, then by priority; fair share may serve them in another order."""
    return ORDER.get(job["state"], 9), -job["priority"], job["id"]


def queue_lines(answer: Json, width: int = 0) -> Iterator[str]:
    if not answer["jobs"]:
        yield "No running or waiting jobs."
        return
    heads = ("JOB", "OWNER", "STATE", "PRIO", "TIME", "GPUS", "HOST", "NAME", "REASON")
    yield from tables.table(heads, [_queue_row(job) for job in answer["jobs"]], width)


def _queue_row(job: Json) -> tuple[str, ...]:
    waits = job["state"] == "queued"
    return (
        str(job["id"]),
        _owner(job),
        _state(job),
        str(job["priority"]),
        tables.between(job["submitted_at"] if waits else job["started_at"], None),
        _gpus(job),
        job.get("host") or job["requested"].get("host") or "any",
        job["name"],
        (job.get("reason") or "") if waits else "",
    )


def _state(job: Json) -> str:
    if job.get("contact_lost_since"):
        return "contact lost"
    return "waiting" if job["state"] == "queued" else str(job["state"])


def _owner(job: Json) -> str:
    return f"{job['owner']}'s agent" if job.get("agent") else str(job["owner"])


def _gpus(job: Json) -> str:
    number, memory = job["requested"]["gpus"], job["requested"].get("gpu_memory_bytes")
    return f"{number}x{tables.gib(memory)}" if number and memory else str(number)


def _history_lines(answer: Json) -> Iterator[str]:
    if not answer["jobs"]:
        yield "No ended jobs."
        return
    heads = ("JOB", "OWNER", "OUTCOME", "STARTED", "ENDED", "TIME", "GPUS", "NAME")
    yield from tables.table(heads, [_history_row(job) for job in answer["jobs"]])


def _history_row(job: Json) -> tuple[str, ...]:
    return (
        str(job["id"]),
        _owner(job),
        job["outcome"],
        tables.moment(job["started_at"]),
        tables.moment(job["ended_at"]),
        tables.between(job["started_at"], job["ended_at"]),
        _gpus(job),
        job["name"],
    )


def _job_lines(job: Json) -> Iterator[str]:
    for field in JOB_ANSWERS:
        for label, value in _rows(job, field):
            if value not in (None, "", tables.UNKNOWN):
                first, *more = str(value).rstrip("\n").split("\n")
                yield f"{label + ':':<14}{first}"
                yield from (f"  {line}" for line in more)
    if job.get("efficiency"):
        yield f"{'used:':<14}{job['efficiency']}"
    if job.get("held_log"):
        yield f"End of the log of job {job['held_after']}:"
        yield from (f"  {line}" for line in job["held_log"].splitlines())
    if "why" in job:
        yield from why_lines(job["why"])


def _rows(job: Json, field: AnswerField) -> Iterator[tuple[str, Any]]:
    """The row of a value, and those of figures that follow from it."""
    value = job.get(field.name)
    worded = WORDED.get(field.name)
    if field.label:
        yield field.label, worded(job) if worded else tables.worded(field, value)
    if field.name == "ended_at":
        yield "time", tables.between(job["started_at"], job["ended_at"])
    elif field.name == "host":
        yield "engine", _engine(job["attempts"])
        yield "ports", _ports(job)
    elif field.name == "held":
        yield "attempts", len(job["attempts"]) if len(job["attempts"]) > 1 else None


# Values that `gpucoord show` words in its own way, or that follow from several.
WORDED: dict[str, Callable[[Json], Any]] = {
    "id": lambda job: f"{job['id']} ({job['name']}) of {_owner(job)}",
    "state": lambda job: job["outcome"] or job["state"],
    "requested": lambda job: ", ".join(_requested(job)),
    "command": lambda job: _command(job),
    "host": lambda job: job.get("host") or job["requested"].get("host"),
    "contact_lost_since": lambda job: (
        job.get("contact_lost_since")
        and f"since {tables.moment(job['contact_lost_since'])}; it may still run"
    ),
    "left_out": lambda job: ", ".join(f"{n} ({why})" for n, why in (job["left_out"] or {}).items()),
    "array": lambda job: job["array"] and f"{job['array']}, index {job['array_index']}",
    "after": lambda job: ", ".join(map(str, [*job["after"], *job["after_success"]])),
}


def _command(job: Json) -> str | None:
    """Of a script its name and arguments, then its text."""
    script = script_in(job.get("argv") or ())
    if script is None:
        return job["command"] and str(job["command"])
    return f"{shlex.join([script.path, *script.words])}, copied at submission:\n{script.text}"


def _engine(attempts: Sequence[Json]) -> str:
    """The task of another engine, such as Slurm; "" = gpucoord runs the job itself."""
    newest = attempts[-1] if attempts else {}
    if newest.get("engine", "local") == "local":
        return ""
    node = f" on {newest['node']}" if newest["node"] else ""
    return f"{newest['engine']} job {newest['engine_ref'] or tables.UNKNOWN}{node}"


def _ports(job: Json) -> str:
    """Those of a running job; "" = it has none."""
    newest = _last(job)
    if job["state"] == "finished" or newest.get("port") is None:
        return ""
    return f"{newest['port']}-{newest['port'] + newest['ports'] - 1}"


def _requested(job: Json) -> Iterator[str]:
    for name, value in job["requested"].items():
        if name.endswith("_bytes") and value:
            yield f"{name.removesuffix('_bytes').replace('_', ' ')} {tables.gib(value)}"
        elif value not in (None, False):
            yield f"{name.replace('_', ' ')} {'yes' if value is True else value}"


def _efficiency_lines(job: Json) -> Iterator[str]:
    yield f"job {job['id']} ({job['name']}): {job['outcome'] or job['state']}"
    yield f"{'time:':<20}{tables.between(job['started_at'], job['ended_at'])}"
    if job.get("efficiency"):
        yield f"{'GPUs:':<20}{job['efficiency']}"
    elif job["requested"]["gpus"]:
        yield f"{'GPUs:':<20}not known (yet)"
    cpu, peak = job["cpu_s"], job["peak_memory_bytes"]
    yield f"{'CPU time:':<20}{tables.UNKNOWN if cpu is None else tables.clock(cpu)}{_cpu_part(job)}"
    limit = job["requested"].get("memory_bytes")
    of = f" of {tables.gib(limit)}" if limit else ""
    yield f"{'host memory, peak:':<20}{tables.gib(peak)}{of}"
    for use in filter(None, [_last(job).get("gpu_use")]):
        yield f"{'GPU memory, peak:':<20}{tables.gib(use['peak_memory_bytes'])}"
        yield f"{'GPU use, mean:':<20}{tables.percent(use['mean_pct'])}"


def _cpu_part(job: Json) -> str:
    """CPU time per second, which is the number of CPUs in use."""
    attempt = _last(job)
    begin, end = attempt.get("started_at"), attempt.get("ended_at")
    if job["cpu_s"] is None or not begin or not end:
        return ""
    seconds = (tables.parsed(end) - tables.parsed(begin)).total_seconds()
    if seconds < 1:
        return ""
    requested = job["requested"].get("cpus")
    of = f" of {requested:g}" if requested else ""
    return f" ({job['cpu_s'] / seconds:.1f}{of} CPUs in use)"


def _last(job: Json) -> Json:
    jobs_found: Json = job["attempts"][-1] if job["attempts"] else {}
    return jobs_found


def _since(word: str) -> timedelta:
    try:
        return parse_duration(word)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _list_parser(name: str, description: str) -> ArgumentParser:
    parser = connection.parser(name, description)
    add = parser.add_argument
    add("--user", metavar="NAME", help="only jobs of this user")
    add("--name", metavar="TEXT", help="only jobs with this in their name")
    add("--tag", metavar="NAME[=TEXT]", help="only jobs with this tag")
    add("--array", type=connection.count, metavar="JOB", help="only jobs of this array")
    return parser


def queue_parser() -> ArgumentParser:
    text = (
        "List running and waiting jobs, by state, priority and number."
        " `gpucoord why JOB` says the place of a job in the queue."
    )
    parser = _list_parser("queue", text)
    add = parser.add_argument
    add("--mine", action="store_true", help="only your own jobs")
    add("--state", choices=["queued", "starting", "running", "stopping"], help="only this state")
    add(
        "--limit",
        type=connection.count,
        default=1000,
        metavar="N",
        help="at most N jobs (default: 1000)",
    )
    return parser


def history_parser() -> ArgumentParser:
    parser = _list_parser("history", "List ended jobs, newest first: your own, unless --all.")
    add = parser.add_argument
    add("--all", action="store_true", help="jobs of all users")
    add("--since", type=_since, metavar="TIME", help="submitted within this time, such as 7d")
    add(
        "--outcome",
        help="one of succeeded, failed, cancelled, timed_out, lost, preempted and skipped",
    )
    add(
        "--limit",
        type=connection.count,
        default=50,
        metavar="N",
        help="at most N jobs (default: 50)",
    )
    return parser


def show_parser() -> ArgumentParser:
    parser = connection.parser("show", "Show a job, and why it waits.")
    parser.add_argument("job", type=connection.count, metavar="JOB", help="the job's number")
    return parser


def efficiency_parser() -> ArgumentParser:
    parser = connection.parser("efficiency", "Show what a job used of what it requested.")
    parser.add_argument("job", type=connection.count, metavar="JOB", help="the job's number")
    return parser


PARSERS = {
    "queue": queue_parser,
    "history": history_parser,
    "show": show_parser,
    "efficiency": efficiency_parser,
}
