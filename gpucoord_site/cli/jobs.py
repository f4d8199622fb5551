"""`gpucoord queue`, `history`, `show`, `efficiency`, `why`: look at jobs. Needs no Django."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import tables
from gpucoord_site.cli.commands import JOB, arg, count, in_words
from gpucoord_site.cli.connection import SERVER, asks
from monitor.facts.formats import AnswerField, sentence_parts
from scheduler.facts.job_answers import JOB_ANSWERS
from scheduler.facts.units import parse_duration
from scheduler.runner.spec import script_in

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
ORDER = {"stopping": 0, "running": 1, "starting": 2, "queued": 3}
BAR = 20


def _queue(client: Client, options: Namespace) -> Json:
    matches = client.jobs(options.limit, **_filters(options, state=options.state or "open"))
    return {"jobs": sorted(matches, key=order)}


def _history(client: Client, options: Namespace) -> Json:
    chosen = _filters(options, state="finished")
    if options.since:
        chosen["since"] = (tables.now() - options.since).isoformat()
    if options.outcome:
        chosen["outcome"] = options.outcome
    if options.user is None and not options.all:
        chosen["owner"] = "me"
    return {"jobs": list(client.jobs(options.limit, **chosen))}


def _show(client: Client, options: Namespace) -> Json:
    job = client.job(options.job)
    return job | {"why": client.why(options.job)} if job["state"] == "queued" else job


def _filters(options: Namespace, **filters: Any) -> Json:
    owner = "me" if getattr(options, "mine", False) else options.user
    more = {"owner": owner, "name": options.name, "tag": options.tag, "array": options.array}
    return filters | {name: value for name, value in more.items() if value is not None}


def order(job: Json) -> tuple[int, int, int]:
    """Running jobs first, then by priority; fair share may serve them in another order."""
    return ORDER.get(job["state"], 9), -job["priority"], job["id"]


def queue_lines(answer: Json, width: int = 0) -> Iterator[str]:
    return tables.listing(QUEUE, answer["jobs"], "No running or waiting jobs.", width)


def _state(job: Json) -> str:
    if job.get("contact_lost_since"):
        return "contact lost"
    return "waiting" if job["state"] == "queued" else str(job["state"])


def _owner(job: Json) -> str:
    return f"{job['owner']}'s agent" if job.get("agent") else str(job["owner"])


def _gpus(job: Json) -> str:
    number, memory = job["requested"]["gpus"], job["requested"].get("gpu_memory_bytes")
    return f"{number}x{tables.gib(memory)}" if number and memory else str(number)


COLUMNS: dict[str, Callable[[Json], object]] = {
    "JOB": lambda job: job["id"],
    "OWNER": _owner,
}
QUEUE = COLUMNS | {
    "STATE": _state,
    "PRIO": lambda job: job["priority"],
    "TIME": lambda job: tables.between(
        job["submitted_at" if job["state"] == "queued" else "started_at"], None
    ),
    "GPUS": _gpus,
    "HOST": lambda job: job.get("host") or job["requested"].get("host") or "any",
    "NAME": lambda job: job["name"],
    "REASON": lambda job: (job.get("reason") or "") if job["state"] == "queued" else "",
}
HISTORY = COLUMNS | {
    "OUTCOME": lambda job: job["outcome"],
    "STARTED": lambda job: tables.moment(job["started_at"]),
    "ENDED": lambda job: tables.moment(job["ended_at"]),
    "TIME": lambda job: tables.between(job["started_at"], job["ended_at"]),
    "GPUS": _gpus,
    "NAME": lambda job: job["name"],
}


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
    if use := _last(job).get("gpu_use"):
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
    attempt: Json = job["attempts"][-1] if job["attempts"] else {}
    return attempt


# `gpucoord why JOB`: why a job waits, when it may start, what would help.


def why_lines(answer: Json) -> Iterator[str]:
    yield f"job {answer['id']} ({answer['name']}): {answer['state']}"
    if answer["state"] != "queued" or not answer["blockers"]:
        yield _local(answer["text"])
    if answer["state"] != "queued":
        return
    yield from _headline(answer)
    yield from _expected_start(answer)
    yield from _advice(answer)
    yield from _reasons(answer)
    if answer["factors"]:
        yield "priority factors:"
        yield from (f"  {_factor(factor)}" for factor in answer["factors"])


def what_if_lines(answer: Json) -> Iterator[str]:
    """The expected start of a job that was not submitted."""
    if answer["starts_now"]:
        yield "it would start now"
    else:
        yield "it would wait"
        yield from _headline(answer)
        yield from _expected_start(answer)
        yield from _reasons(answer)
    if suggestion := answer.get("gpu_memory_suggestion"):
        yield suggestion["text"]
    yield "nothing was submitted"


def _headline(answer: Json) -> Iterator[str]:
    """The main reason, and what lifts it."""
    if first := answer.get("headline"):
        yield _local(f"{first['headline']} {first['next_step']}".strip())


def _reasons(answer: Json) -> Iterator[str]:
    for tier, group in groupby(answer["blockers"], key=lambda blocker: blocker["tier"]):
        yield f"{tier or 'reasons'}:"
        yield from (f"  {line}" for blocker in group for line in _reason(blocker))


def _expected_start(answer: Json) -> Iterator[str]:
    if any(blocker.get("never") for blocker in answer["blockers"]):
        yield "it can't start as it is"
        return
    if answer["position"]:
        yield f"number {answer['position']} in the queue"
    if answer["starts_p50"]:
        late = answer["starts_p90"]
        before = f", in nine of ten cases before {_time(late)}" if late else ""
        yield f"starts ~{_time(answer['starts_p50'])}{before}"
    elif answer["starts_after"]:
        yield f"starts after ~{_time(answer['starts_after'])}"
    else:
        yield "start time unknown"


def _advice(answer: Json) -> Iterator[str]:
    """Changes that were planned to start it earlier."""
    if helps := answer.get("advice"):
        yield "to start it earlier:"
        yield from (_local(f"  {each['text']}") for each in helps)
    else:
        yield "no change of the request would start it earlier"


def _reason(blocker: Json) -> Iterator[str]:
    yield _local(blocker["text"])
    until, gpu = blocker["until"], blocker.get("gpu")
    details = {
        "requested": blocker["requested"],
        "on": None if gpu is None or blocker["available"] else f"GPU {gpu}",
        "available": blocker["available"],
        "held by": blocker["holder"],
        "until": until and _time(until),
    }
    known_details = [f"{word}: {value}" for word, value in details.items() if value]
    yield f"  [{'; '.join([blocker['code'], *known_details])}]"


def _factor(factor: Json) -> str:
    filled = round(BAR * min(1.0, max(0.0, factor["value"])))
    return f"{factor['name']:<12} {'█' * filled}{'·' * (BAR - filled)} {factor['text']}"


def _time(iso: str) -> str:
    """In the time zone of this computer."""
    return _words(datetime.fromisoformat(iso))


def _local(sentence: str) -> str:
    """The sentence with its times in the time zone of this computer."""
    parts = sentence_parts(sentence, datetime.now(UTC))
    return "".join(part if isinstance(part, str) else _words(part) for part in parts)


def _words(moment: datetime) -> str:
    local = moment.astimezone()
    day = f"{local:%a} {local.day} {local:%b}"
    year = "" if local.year == datetime.now(UTC).astimezone().year else f" {local.year}"
    return f"{day}{year} {local:%H:%M %Z}"


FILTERS = (
    arg("--user NAME", "only jobs of this user"),
    arg("--name TEXT", "only jobs with this in their name"),
    arg("--tag NAME[=TEXT]", "only jobs with this tag"),
    arg("--array JOB", "only jobs of this array", type=count),
)
queue = asks(
    "queue",
    "List running and waiting jobs, by state, priority and number."
    " `gpucoord why JOB` says the place of a job in the queue.",
    *SERVER,
    *FILTERS,
    arg("--mine", "only your own jobs"),
    arg("--state", "only this state", choices=["queued", "starting", "running", "stopping"]),
    arg("--limit N", "at most N jobs (default: 1000)", type=count, default=1000),
    ask=_queue,
    lines=queue_lines,
)
history = asks(
    "history",
    "List ended jobs, newest first: your own, unless --all.",
    *SERVER,
    *FILTERS,
    arg("--all", "jobs of all users"),
    arg("--since TIME", "submitted within this time, such as 7d", type=in_words(parse_duration)),
    arg(
        "--outcome=", "one of succeeded, failed, cancelled, timed_out, lost, preempted and skipped"
    ),
    arg("--limit N", "at most N jobs (default: 50)", type=count, default=50),
    ask=_history,
    lines=lambda answer: tables.listing(HISTORY, answer["jobs"], "No ended jobs."),
)
show = asks("show", "Show a job, and why it waits.", *SERVER, JOB, ask=_show, lines=_job_lines)
efficiency = asks(
    "efficiency",
    "Show what a job used of what it requested.",
    *SERVER,
    JOB,
    ask=lambda client, options: client.job(options.job),
    lines=_efficiency_lines,
)
why = asks(
    "why",
    "Say why a job waits, and when it may start.",
    JOB,
    *SERVER,
    ask=lambda client, options: client.why(options.job),
    lines=why_lines,
)
