"""`gpucoord submit -- COMMAND`: run a command as a job, as if it ran here. Needs no Django."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import shlex
import stat
import struct
import sys
import termios
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, environment, local_login, script_files
from gpucoord_site.cli.commands import (
    CLEAN_ENV,
    Argument,
    Command,
    Failed,
    Parser,
    arg,
    clock_time,
    complain,
    number,
    show,
    shown_time,
    variable,
)
from gpucoord_site.cli.environment import SHELL_FUNCTION, captured, storable
from gpucoord_site.cli.script_files import BadScript
from monitor.facts.input_rules import escaped
from scheduler.facts.field_types import MOMENT, Door, Group, JobField, Kind
from scheduler.facts.job_fields import fields_of
from scheduler.facts.jobs import BLOCKING_PRIORITY

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

NOT_PASSED_ON = (
    "standard input is not passed on with --detach; --stdin passes it on, --no-stdin leaves it out"
)
# Commands of sh that are no programs.
BUILT_IN = re.compile(
    r"\.|:|alias|break|cd|command|continue|eval|exec|exit|export|getopts|hash|read|readonly|return"
    r"|set|shift|times|trap|type|ulimit|umask|unset|wait"
)
# A shell line that is one word.
PLAIN_WORD = re.compile(r"[\w./+-]+")
# Shells whose users write `source`; /bin/sh may not have it.
SOURCING = frozenset(("bash", "zsh"))
NO_FOLDER = "The current folder was deleted. Change to another one (cd ~) and submit the job there."
EPILOG = """\
The job's output appears here, and its exit code becomes this command's. Ctrl-C asks whether to
cancel the job; a second Ctrl-C leaves it running. Other exit codes: 124 time limit, 125 gpucoord
failed or refused, 128+N ended by signal N, 130 cancelled or left.
With --array, each line of output begins with the job's index, and the highest exit code counts.
"""


class NotHere(Failed):
    """A folder or a program does not exist. The message says what to do."""


class Submission(Command):
    """`options.words` are those of the command, or of what runs its script."""

    def read(self, parser: Parser, argv: Sequence[str]) -> Namespace:
        options = parser.parse_args(argv)
        options.words = words = words_of(options)
        if options.script:
            return options
        if not words:
            raise ArgumentTypeError("say what to run: gpucoord submit -- python train.py")
        script = script_files.read(
            words,
            copies=not options.no_copy,
            runs_here=is_local(options),
            elsewhere=bool(options.cwd),
        )
        if script is None:
            complain(script_files.unread_options(words))
            return options
        complain("\n".join(script.remarks))
        # Options of the script come before those given.
        options = parser.parse_args([*script.options, *argv])
        options.words = script.argv
        if script.not_copied:
            options.left_out = storable({f"copy of {words[0]}": script.not_copied})
        return options


def words_of(options: Namespace) -> list[str]:
    words: list[str] = options.command
    return words[1:] if words[:1] == ["--"] else words


def _submit(options: Namespace) -> int:
    """Returns the job's exit code, or one of ours."""
    body = body_of(options, options.words)
    return connection.run(options, lambda client: _send(client, options, body))


def _send(client: Client, options: Namespace, body: dict[str, Any]) -> int:
    from gpucoord_site.cli.follow import ArrayFollower, Follower, ending

    if options.dry_run:
        from gpucoord_site.cli.jobs import what_if_lines

        answer = client.what_if(body)
        return show(options, answer, what_if_lines(answer))
    answer = client.submitted(body | _stdin(options))
    job_id = int(answer["id"])
    _name_left_out(answer, body)
    if options.begin:
        complain(f"job {job_id} starts no earlier than {shown_time(options.begin)}")
    if options.detach:
        text = json.dumps({"id": job_id}) if options.json else str(job_id)
        sys.stdout.write(f"{text}\n")
        return 0
    if options.json:
        # The ended job, without its output.
        job = client.wait(job_id)
        show(options, job, ())
        return ending(job)[0]
    follower = ArrayFollower if options.array else Follower
    return follower(client, job_id).follow()


def _name_left_out(answer: dict[str, Any], body: dict[str, Any]) -> None:
    """Name the parts that the server does not give the job, beside those already named."""
    named = body.get("left_out", {})
    by_server = [f"{n} ({why})" for n, why in answer["left_out"].items() if n not in named]
    if by_server:
        complain(f"left out: {', '.join(map(escaped, by_server))}")


def body_of(options: Namespace, words: Sequence[str]) -> dict[str, Any]:
    """One word with spaces is a shell line, as `sh -c` takes it; more words run as they are."""
    if options.script:
        command: dict[str, Any] = {"script_args": named_values(words)}
    else:
        command = _command(words, is_here=is_local(options))
    fields = {field.name: getattr(options, field.name, None) for field in fields_of(Door.OPTION)}
    fields |= {
        "blocking": None if options.detach else True,
        "env": dict(options.env) or None,
        "cwd": _folder(options.cwd) if options.cwd else None,
    }
    # A flag that is not given is False.
    given = {n: v for n, v in fields.items() if v is not None and v is not False}
    surroundings = _surroundings(options)
    if surroundings:
        _check_here(options, words)
    return command | surroundings | given


def _command(words: Sequence[str], *, is_here: bool) -> dict[str, Any]:
    if len(words) > 1:
        return {"argv": list(words)}
    shell = _shell_of(words[0]) if is_here else None
    return {"argv": [shell, "-c", words[0]]} if shell else {"command": words[0]}


def _shell_of(line: str) -> str | None:
    """The shell that a line needs: for `source`, or a function that bash exported; None: any."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    if f"{SHELL_FUNCTION}{first}%%" in os.environ:
        return environment.program_path("bash")
    own = os.environ.get("SHELL", "")
    is_used = first == "source" and os.path.basename(own) in SOURCING  # noqa: PTH119
    return own if is_used and os.access(own, os.X_OK) else None


def _check_here(options: Namespace, words: Sequence[str]) -> None:
    """Refuse a folder or a program that this machine lacks. Raises NotHere.

    Another host, or an environment that is not captured, may have it.
    """
    if options.host or options.clean_env or options.script:
        return
    folder = _folder(options.cwd or ".")
    if not os.path.isdir(folder):  # noqa: PTH112
        raise NotHere(f"{folder} is no folder. Create it: mkdir -p {shlex.quote(folder)}")
    word = words[0]
    if len(words) == 1 and (not PLAIN_WORD.fullmatch(word) or BUILT_IN.fullmatch(word)):
        return
    if f"{SHELL_FUNCTION}{word}%%" in os.environ and len(words) == 1:
        return
    path = dict(options.env).get("PATH", os.environ.get("PATH"))
    if "/" in word and not os.path.exists(os.path.join(folder, word)):  # noqa: PTH110, PTH118
        raise NotHere(f"{word} does not exist in {folder}. Look for it: ls -l {shlex.quote(word)}")
    if "/" not in word and not environment.program_path(word, path):
        raise NotHere(
            f"{shlex.quote(word)} is in no folder of PATH. Activate its environment, or write its"
            f" whole path; command -v {shlex.quote(word)} finds it."
        )


def named_values(words: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words. Of a name that comes more than once, the values are the lines of a list."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadScript(f"{shlex.quote(word)} is no argument; write NAME=VALUE")
        values[name] = f"{values[name]}\n{value}" if name in values else value
    return dict(values)


def _surroundings(options: Namespace) -> dict[str, Any]:
    """Folder, umask and environment of this shell, if the server is on this machine.

    Other servers have other folders and programs.
    """
    if not is_local(options):
        return {}
    umask = os.umask(0o077)
    os.umask(umask)
    surroundings: dict[str, Any] = {"umask": f"{umask:03o}", "limits": environment.soft_limits()}
    if not options.cwd:
        surroundings["cwd"] = _folder(".")
    surroundings["left_out"] = getattr(options, "left_out", {})
    if not options.clean_env:
        here = environment_here(options)
        surroundings |= here | {"left_out": surroundings["left_out"] | here["left_out"]}
    group, why_not = environment.chosen_group()
    if group and not why_not:
        surroundings["group"] = group
    elif group:
        complain(f"left out: the group {group} ({why_not})")
        surroundings["left_out"] |= {f"group {group}": why_not}
    return surroundings


def environment_here(options: Namespace) -> dict[str, Any]:
    """The environment of this shell, and what is left out of it, which it says.

    Raises EnvironmentTooLarge.
    """
    here = captured(os.environ, dict(options.env))
    complain(here.sentence())
    return {"environment": here.variables, "left_out": storable(here.missed)}


def _folder(path: str) -> str:
    """The absolute path, without following links. Raises NotHere.

    The shell expands ~ and $HOME in its own words, but not in a `#GPUCOORD` line or --cwd=~/run.
    """
    try:
        return os.path.abspath(os.path.expandvars(os.path.expanduser(path)))  # noqa: PTH100, PTH111
    except FileNotFoundError:
        raise NotHere(NO_FOLDER) from None


def _stdin(options: Namespace) -> dict[str, str]:
    """Standard input for the job. With --detach it is not read, unless --stdin is given."""
    passes_on = not options.detach if options.stdin is None else options.stdin
    if passes_on:
        data = read()
        return {"stdin_base64": base64.b64encode(data).decode()} if data else {}
    if options.stdin is None and has_data():
        complain(NOT_PASSED_ON)
    return {}


def is_local(options: Namespace) -> bool:
    given = connection.given_url(options)
    return given is None or local_login.local_port(given) is not None


def job_arguments(*, leaves_out: Sequence[str] = ()) -> Iterator[Argument]:
    """The options of a job and of the connection, for a command that submits one."""
    about = "one word with spaces is a shell line; or a script file"
    yield arg("command COMMAND", about, nargs="...")
    for group in Group:
        for field in fields_of(Door.OPTION, group):
            if field.name not in leaves_out:
                yield Argument([field.option], _settings(field), group.value[1] or "")
    yield CLEAN_ENV
    yield from connection.PLACE


def _settings(field: JobField) -> dict[str, Any]:
    """Arguments of `add_argument` for the option."""
    words = field.short_help.replace("%", "%%")
    if field.type.kind is Kind.FLAG:
        return {"action": "store_true", "help": words}
    read = clock_time if field.type is MOMENT else int if field.type.json is int else str
    more = OF_KIND.get(field.type.kind, {"type": read})
    return {"metavar": field.type.metavar, "help": words, **more}


def _numbers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ArgumentTypeError(f"{shlex.quote(text)} names no jobs; write their numbers: 12,13")
    return [int(word) for word in words]


# How the value of an option is read, by the kind of the field.
OF_KIND: dict[Kind, dict[str, Any]] = {
    Kind.VARIABLES: {"action": "append", "default": [], "type": variable},
    Kind.TAGS: {"action": "append"},
    Kind.JOBS: {"type": _numbers},
    Kind.NUMBER: {"type": number},
}
ARGUMENTS = (
    *job_arguments(),
    arg(
        "--stdin",
        "pass standard input on, at most 1 MiB (default: yes, but not with --detach)",
        action=BooleanOptionalAction,
        default=None,
    ),
    arg(
        "--no-copy",
        "run a script in place, as it is at the start (default: a shell script is copied)",
    ),
    connection.JSON,
    arg("--dry-run", "only say when it would start, and why not now"),
)


def _submission(name: str, *arguments: Argument, **defaults: Any) -> Submission:
    usage = f"gpucoord {name} [options] -- COMMAND [ARGUMENT ...]"
    settings = {"usage": usage, "epilog": EPILOG, "defaults": defaults}
    about = "Run a command as a job and show its output."
    return Submission(name, about, (*ARGUMENTS, *arguments), _submit, settings)


submit = _submission("submit", arg("--detach -d", "only print the job's number"))
# It always follows the job, with priority 4 unless another is given.
run = _submission("run", detach=False, priority=BLOCKING_PRIORITY)


# The standard input that `gpucoord submit` passes on to the job.

STDIN = 0
MOST_BYTES = 1024**2
TOO_LARGE = (
    "Standard input has more than 1 MiB. Write it to a file that the job reads, or leave it out"
    " with --no-stdin."
)
# After this time, the user is told that the command reads standard input.
PATIENCE_S = 2.0


class TooLarge(Failed):
    """The message says what to do."""


def read() -> bytes:
    """All of a pipe or a file; b"" for a terminal and for anything else. Raises TooLarge."""
    if not _is_readable():
        return b""
    if not select.select([STDIN], [], [], PATIENCE_S)[0]:
        complain("reading standard input; --no-stdin leaves it out")
    data = bytearray()
    while piece := os.read(STDIN, MOST_BYTES):
        data += piece
        if len(data) > MOST_BYTES:
            raise TooLarge(TOO_LARGE)
    return bytes(data)


def has_data() -> bool:
    """Whether a pipe or a file has unread data."""
    if not _is_readable():
        return False
    try:
        answer = fcntl.ioctl(STDIN, termios.FIONREAD, struct.pack("i", 0))
    except OSError:
        return False
    return bool(struct.unpack("i", answer)[0] > 0)


def _is_readable() -> bool:
    try:
        mode = os.fstat(STDIN).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
