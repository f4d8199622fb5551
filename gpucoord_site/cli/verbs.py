"""Commands of users and operators that ask the server and print its answer: `quota`, `user`,
`models`, `prompt`, `incidents`, `clean`, `report`. They need no Django.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, local_login, tables
from gpucoord_site.cli.commands import (
    USAGE_ERROR,
    arg,
    command,
    complain,
    count,
    in_words,
    number,
    show,
)
from gpucoord_site.cli.connection import SERVER, asks
from monitor.facts.formats import AnswerField
from monitor.facts.incidents import INCIDENT_ANSWERS
from monitor.facts.input_rules import escaped
from scheduler.facts.units import minutes_left, minutes_taken, parse_bytes, size

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
pause = time.sleep

# `gpucoord quota [set USER]`: show a quota and its current usage, or change it.

UNCHANGED = object()
LABELS = {
    "gpu_minutes": "GPU-minutes today",
    "gpus": "GPUs",
    "memory_bytes": "GPU memory",
    "jobs": "running jobs",
    "queued": "waiting jobs",
}
RIGHTS = {
    "entitlement_pct": "entitlement",
    "target_share_pct": "target share",
    "use_pct": "use now",
}


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return in_words(lambda text: None if text == "none" else read(text))


# Of the options that change a limit: the field, how its value is read, and the help.
CHANGES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "share": ("share_pct", number, "percent of the GPUs, as a weight"),
    "gpu-minutes": ("gpu_minutes", number, "GPU-minutes a day"),
    "gpus": ("gpus", count, "GPUs at a time"),
    "jobs": ("jobs", count, "running jobs"),
    "memory": ("memory_bytes", parse_bytes, "GPU memory at a time, such as 80GiB"),
    "queued": ("queued", count, "waiting jobs"),
    "priority": ("priority", count, "highest priority, 1 to 5"),
}


def _limits(options: Namespace) -> Json:
    """The limits that were given."""
    given = {field: getattr(options, f"new_{field}") for field, _, _ in CHANGES.values()}
    return {field: value for field, value in given.items() if value is not UNCHANGED}


def _quota(client: Client, options: Namespace) -> Json:
    if options.action is None:
        return client.quota(options.user)
    return client.set_quota(options.name, **_limits(options))


def _quota_problem(options: Namespace) -> str | None:
    limits = _limits(options)
    if options.action is None:
        return "Limits are changed by `gpucoord quota set USER`." if limits else None
    if options.name is None or options.user is not None:
        return "Write the user behind set: gpucoord quota set USER --share 30"
    return None if limits else "Write a limit to change, such as --share 30 or --gpu-minutes 600."


def quota_lines(answer: Json) -> Iterator[str]:
    yield f"{answer['name']} uses now:"
    for name, label in LABELS.items():
        yield f"  {label:<18} {_of(name, answer[name])}"
    if (left := answer["gpu_minutes_left"]) is not None:
        yield f"  {'still left today':<18} {minutes_left(left):g} GPU-minutes"
    # An older service does not say them.
    for name, label in RIGHTS.items():
        if answer.get(name) is not None:
            yield f"  {label:<18} {answer[name]:.3g} % of the GPUs"
    if answer["share_pct"] is not None:
        reserve = f"{answer['reserved_pct']:g} % of it for priorities 4 and 5"
        share = f"{answer['share_pct']:g} % of the GPUs"
        if answer.get("share_is_limit"):
            share += " at most"
        yield f"  {'share of the quota':<18} {share}, {reserve}"
    if answer["priority"] is not None:
        yield f"  {'highest priority':<18} {answer['priority']}"
    end = datetime.fromisoformat(answer["resets_at"])
    yield f"The day ends {end:%a} {end.day} {end:%b %H:%M} ({answer['zone']})."
    # An older service does not say it.
    yield from answer.get("decided_elsewhere", [])


def _of(name: str, limit: Json) -> str:
    used = _amount(name, limit["used"])
    if limit["most"] is None:
        return f"{used} (no limit)"
    committed = limit["committed"]
    promised = f", {minutes_taken(committed):g} promised to running jobs" if committed else ""
    return f"{used} of {_amount(name, limit['most'])}{promised}"


def _amount(name: str, value: float) -> str:
    if name == "gpu_minutes":
        return f"{minutes_taken(value):g}"
    return str(size(int(value))) if name == "memory_bytes" else f"{value:.0f}"


quota = asks(
    "quota",
    "Say what you may use, and what of it you use now.",
    arg("--user NAME", "show another user (operators only)"),
    arg("action", "change the own quota of a user (operators only)", nargs="?", choices=("set",)),
    arg("name USER", "the user whose quota is changed", nargs="?"),
    *(
        arg(
            f"--{name} N",
            about,
            "limits for set; none = no limit",
            dest=f"new_{field}",
            type=_or_none(read),
            default=UNCHANGED,
        )
        for name, (field, read, about) in CHANGES.items()
    ),
    *SERVER,
    ask=_quota,
    lines=quota_lines,
    check=_quota_problem,
)

# `gpucoord user add|invite NAME`: add users and invite them.


def _user(client: Client, options: Namespace) -> Json:
    if options.action == "invite":
        return client.invite_user(options.name)
    return client.add_user(options.name, options.account, options.like)


def _user_problem(options: Namespace) -> str | None:
    if options.action == "invite" and (options.account or options.like):
        return "--account and --like belong to `gpucoord user add`."
    return None


def user_lines(answer: Json) -> Iterator[str]:
    """Of a new user, or of an invitation."""
    name = answer["name"]
    if "url" in answer:
        until = datetime.fromisoformat(answer["expires_at"]).astimezone()
        yield f"Send this link to {name}. It sets a password once, until {until:%d %b %H:%M}:"
        yield f"  {answer['url']}"
        return
    yield f"The user {name} is added, with the OS account {answer['account']}."
    yield f"Next: `gpucoord user invite {name}` makes a link that sets the password."
    yield "On the server, the OS account logs in without a password."


user = asks(
    "user",
    "Add users and invite them. For superusers.",
    *SERVER,
    arg("action", "invite prints a link to send", choices=("add", "invite")),
    arg("name NAME", "the user's name in gpucoord"),
    arg("--account NAME", "the OS account (default: the same name)"),
    arg("--like USER", "copy the groups and the quota of this user"),
    ask=_user,
    lines=user_lines,
    check=_user_problem,
)

# `gpucoord models [boot|unload MODEL]`: list language models, start and unload them.


def _models(client: Client, options: Namespace) -> Json:
    if options.action is None:
        return client.models()
    return client.change_model(options.model, options.action)


def _models_problem(options: Namespace) -> str | None:
    if (options.action is None) != (options.model is None):
        return "Write boot MODEL or unload MODEL, or nothing to list the models."
    return None


def model_lines(answer: Json) -> Iterator[str]:
    """Of all models, or of the one that was started or unloaded."""
    listed = answer.get("models", [answer] if "name" in answer else [])
    yield from tables.listing(MODEL, listed, "No model services yet. Operators add them.")
    if listed and answer.get("endpoint_problem"):
        yield answer["endpoint_problem"]
    elif listed and answer.get("base_url"):
        yield f"Endpoint: {answer['base_url']}"


def _instance(instance: Json) -> str:
    if not instance["started_boot"]:
        return "waits for a GPU"
    return f"{instance['state']} on {_places(instance)}"


def _places(instance: Json) -> str:
    return ", ".join(f"GPU {index}" for index in instance["gpus"]) or "the CPU"


def _first_token(model: Json) -> str:
    first_s = model["use"]["first_token_s"]
    return "-" if first_s is None else f"{first_s:.2f} s"


MODEL: dict[str, Callable[[Json], object]] = {
    "MODEL": lambda model: model["name"],
    "STATE": lambda model: model["state"],
    "INSTANCES": lambda model: ", ".join(map(_instance, model["instances"])) or "none",
    "IN FLIGHT": lambda model: sum(instance["in_flight"] for instance in model["instances"]),
    "REQUESTS 24H": lambda model: model["use"]["requests"],
    "FIRST TOKEN": _first_token,
}
models = asks(
    "models",
    "List language models; operators start and unload them.",
    *SERVER,
    arg("action", "operators only", nargs="?", choices=("boot", "unload")),
    arg("model MODEL", "the name of the model", nargs="?"),
    ask=_models,
    lines=model_lines,
    check=_models_problem,
)

# `gpucoord prompt MODEL TEXT`: send a prompt to a language model and print its answer.

TYPES = ("parse", "transform", "generate", "execute", "decide")
ENDED = ("complete", "failed")
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
NO_TEXT = "Write the prompt after the model, or send it to the standard input."


@command(
    "prompt",
    "Send a prompt to a language model, print its answer.",
    *SERVER,
    arg("model MODEL", "the name of the model, as on the page of models"),
    arg("text TEXT", "the prompt (default: the standard input)", nargs="*"),
    arg("--type", "purpose of the prompt", choices=TYPES, default="generate"),
    arg("--priority", "5 is served first", type=int, choices=range(1, 6), default=3),
    arg("--no-wait", "print the number of the prompt, do not wait"),
)
def prompt(options: Namespace) -> int:
    """Returns 0, 1 when the prompt failed, or 125 when the request failed."""
    text = " ".join(options.text) or ("" if sys.stdin.isatty() else sys.stdin.read())
    if not text.strip():
        return complain(NO_TEXT, USAGE_ERROR)
    return connection.run(options, lambda client: _send(client, options, text))


def _send(client: Client, options: Namespace, text: str) -> int:
    fields = {"model": options.model, "type": options.type, "priority": options.priority}
    row = client.send_prompt(fields | {"prompt": text})
    if options.no_wait:
        return show(options, row, [f"prompt {row['id']}"])
    row = _ended(client, row)
    if row["status"] == "failed":
        if options.json:
            show(options, row, ())
        return complain(f"prompt {row['id']} failed: {row['error']}", 1)
    return show(options, row, row["result"].split("\n"))


def _ended(client: Client, row: Json) -> Json:
    """The prompt once it has ended. Why it waits goes to stderr, when that changes."""
    reason, pause_s = "", SHORTEST_PAUSE_S
    while row["status"] not in ENDED:
        if row["waits_for"] and row["waits_for"] != reason:
            reason = row["waits_for"]
            complain(f"prompt {row['id']} waits: {reason}")
        pause(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
        row = client.prompt(row["id"])
    return row


# `gpucoord incidents [ID]`: incidents, and what would start earlier without one.


def _worded(field: AnswerField) -> Callable[[Json], object]:
    return lambda row: tables.worded(field, row[field.name])


INCIDENT = {field.label.upper(): _worded(field) for field in INCIDENT_ANSWERS if field.label}


def _incidents(client: Client, options: Namespace) -> Json:
    """The open incidents, or one with the jobs that would start earlier.

    Of these, null = not visible or not known.
    """
    if options.incident is None:
        return client.incidents()
    incident = client.incident(options.incident)
    if options.end or options.kill:
        incident = client.end_of_incident(incident, kill=options.kill)
    without = {"jobs": None} if incident["closed_at"] else client.without_incident(incident["id"])
    return incident | {"without": without["jobs"], "signal": options.end or options.kill}


def _incidents_problem(options: Namespace) -> str | None:
    if options.incident is None and (options.end or options.kill):
        return "Write the number of the incident whose process shall end."
    return None


def incident_lines(answer: Json) -> Iterator[str]:
    """Of all incidents, or of one."""
    if "incidents" not in answer:
        yield from _one_incident(answer)
    else:
        yield from tables.listing(INCIDENT, answer["incidents"], "There are no open incidents.")


def _one_incident(answer: Json) -> Iterator[str]:
    yield f"incident {answer['id']}: {answer['headline']}"
    yield f"since {tables.moment(answer['since'])}"
    if answer["closed_at"]:
        yield f"closed {tables.moment(answer['closed_at'])}"
        return
    if answer["signal"]:
        yield f"{answer['host']} sends the signal to process {answer['pid']} now"
    yield from _without(answer["without"])


def _without(jobs: list[Json] | None) -> Iterator[str]:
    if jobs is None:
        yield "if it ended now: unknown"
    elif not jobs:
        yield "if it ended now: no waiting job would start earlier"
    else:
        yield "if it ended now:"
        for job in jobs:
            before = f"~{tables.moment(job['start_now'])}" if job["start_now"] else "unknown"
            yield (
                f"  job {job['job']} {job['name']} ({job['owner']}):"
                f" ~{tables.moment(job['start'])} instead of {before}"
            )


incidents = asks(
    "incidents",
    "List open incidents, or show one and the jobs that would start earlier.",
    *SERVER,
    arg("incident ID", "show this incident", type=int, nargs="?"),
    arg("--end", "send SIGTERM to its process (operators only)"),
    arg("--kill", "send SIGKILL to its process (operators only)"),
    ask=_incidents,
    lines=incident_lines,
    check=_incidents_problem,
)

# `gpucoord clean`: clean up full file systems, or list what would be deleted.

OPEN = ("waiting", "running")
LOOK_EVERY_S = 0.5
MOST_LINES = 40


def _clean(client: Client, options: Namespace) -> Json:
    """The clean-up once it has ended."""
    run = client.clean(options.path, dry_run=options.dry_run, host=options.host)
    while run["state"] in OPEN:
        pause(LOOK_EVERY_S)
        run = client.cleaning(run["id"])
    return run


def clean_lines(run: Json) -> Iterator[str]:
    for file in run["files"][:MOST_LINES]:
        yield f"{file['result']}: {file['path']} ({file['rule']}, {size(file['bytes'])})"
    more = sum(run["results"].values()) - min(len(run["files"]), MOST_LINES)
    if more > 0:
        yield f"and {more} more"
    for problem in run["problems"]:
        yield f"Problem: {problem}"
    if run["state"] == "failed":
        yield f"Clean-up {run['id']} failed; see the log of gpucoord."
        return
    verb = "would be freed" if run["dry_run"] else "freed"
    yield (
        f"{size(run['freed_bytes'])} {verb}. The rules allow to delete {run['candidates']}"
        f" files ({size(run['candidate_bytes'])})."
    )


clean = asks(
    "clean",
    "Delete old logs, empty databases, stale checkpoints and synced data until the file"
    " systems are below the goal of the policy cleaning. Operators only.",
    *SERVER,
    arg("--dry-run", "only list what would be deleted"),
    arg("--path P", "only this watched folder", default=""),
    arg("--host=", "host (default: the one that answers)", default=""),
    ask=_clean,
    lines=clean_lines,
)

# `gpucoord report`: GPU usage, fair share and violations of a period.

FORMATS = ("text", "json", "csv", "xlsx", "html", "pdf")
BINARY = ("xlsx", "pdf")
TO_FILE = "Write it to a file: add --output FILE."


# Period, scope and format of the report.
CHOICE = (
    arg("--last=", "length such as 24h, 7d or 4w, or day, week or month (default: 24h)"),
    arg("--from TIME", "start of the period instead of --last", dest="begin"),
    arg("--to TIME", "end of the period (default: now)", dest="end"),
    arg("--user NAME", "only this user"),
    arg("--scope=", "one of all, user:NAME, group:NAME, gpu:UUID and host:NAME (default: all)"),
    arg("--format", "format (default: text)", choices=FORMATS, default="text"),
    arg("--json", "the same as --format json", dest="format", action="store_const", const="json"),
    arg("--output -o FILE", "write to this file instead of standard output"),
)  # fmt: skip


@command(
    "report",
    "Print a report of GPU usage, fair share and violations.",
    *CHOICE,
    arg("--tag NAME", "GPU-hours by the values of this tag of jobs, such as project"),
    *connection.PLACE,
)
def report(options: Namespace) -> int:
    """Returns 0, or 125 when the request failed or the file can't be written."""
    from gpucoord_site.cli.client import RequestFailed

    if options.tag:
        return _by_tag(options)
    try:
        if options.format in BINARY and not options.output and sys.stdout.isatty():
            raise RequestFailed(f"A terminal can't show {options.format}. {TO_FILE}")
        with closing(connection.connect(options)) as client:
            write(client.report(query(options)), options.output)
    except BrokenPipeError:
        raise
    except (RequestFailed, local_login.UnsafeToken, OSError) as error:
        return complain(str(error))
    return 0


def _by_tag(options: Namespace) -> int:
    if options.format not in ("text", "json", "csv") or options.scope:
        return complain("A report by tag is text, json or csv, of all users or --user NAME.")
    given = _given(options, tag=options.tag, user=options.user)

    def work(client: Client) -> int:
        if options.format == "csv":
            write(client.report_by_tag_csv(given), options.output)
            return 0
        answer = client.report_by_tag(given)
        is_json = options.format == "json"
        lines = [json.dumps(answer, indent=2)] if is_json else map(escaped, tag_lines(answer))
        write("".join(f"{line}\n" for line in lines).encode(), options.output)
        return 0

    return connection.run(options, work)


def tag_lines(answer: Json) -> Iterator[str]:
    """A line for each value, most GPU-hours first."""
    empty = f"No job with the tag {answer['tag']} had a GPU or ran in this time."
    columns = {answer["tag"].upper(): lambda row: tables.text(row["value"]), **TAG}
    yield from tables.listing(columns, answer["values"], empty)


def _percent(part: float | None) -> str:
    return tables.percent(None if part is None else 100 * part)


TAG: dict[str, Callable[[Json], object]] = {
    "JOBS": lambda row: row["jobs"],
    "USERS": lambda row: row["users"],
    "GPU-HOURS": lambda row: f"{row['gpu_hours_held']:.2f}",
    "USED": lambda row: _percent(row["efficiency"]),
    "MEASURED": lambda row: _percent(row["coverage"]),
}


def query(options: Namespace) -> dict[str, str]:
    """The parameters of GET /api/reports/usage/ that were given."""
    scope = f"user:{options.user}" if options.user else options.scope
    return _given(options, scope=scope, format=options.format)


def _given(options: Namespace, **more: str | None) -> dict[str, str]:
    period = {"last": options.last, "from": options.begin, "to": options.end}
    return {name: value for name, value in (period | more).items() if value}


def write(content: bytes, output: str | None) -> None:
    if output:
        Path(output).write_bytes(content)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
