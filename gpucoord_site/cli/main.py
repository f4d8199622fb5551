"""The `gpucoord` command: run a subcommand. Every user error is one sentence."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath

from gpucoord_site.config import secret_variables

# By name: what it does, and `module:function` if it starts without Django.
Commands = dict[str, tuple[str, str | None]]
COMMANDS: Commands = {
    "up": ("start gpucoord here and print its address", None),
    "node": ("start gpucoord on a further host, without pages", None),
    "demo": (
        "try gpucoord with a simulated server; nothing is kept",
        "gpucoord_site.demo.command:demo",
    ),
    "setup": (
        "install the service on this server, as root",
        "gpucoord_site.cli.server:setup",
    ),
    "check": (
        "list what this machine has and what is missing",
        "gpucoord_site.cli.check:check",
    ),
    "submit": (
        "run a command as a job: gpucoord submit -- python train.py",
        "gpucoord_site.cli.submit:submit",
    ),
    "run": (
        "run a command with high priority and wait for it: gpucoord run -- python eval.py",
        "gpucoord_site.cli.submit:run",
    ),
    "shell": (
        "open a shell with a GPU as a job: gpucoord shell",
        "gpucoord_site.cli.shell:shell",
    ),
    "notebook": (
        "open JupyterLab with a GPU as a job: gpucoord notebook",
        "gpucoord_site.cli.shell:notebook",
    ),
    "batch": (
        "run a script for many items: gpucoord batch SCRIPT --input FOLDER",
        "gpucoord_site.cli.batch:batch",
    ),
    "queue": ("list running and waiting jobs", "gpucoord_site.cli.jobs:queue"),
    "show": ("show a job: gpucoord show JOB", "gpucoord_site.cli.jobs:show"),
    "logs": ("print a job's output: gpucoord logs -f JOB", "gpucoord_site.cli.job_actions:logs"),
    "wait": ("wait until jobs have ended", "gpucoord_site.cli.job_actions:wait"),
    "cancel": ("cancel jobs", "gpucoord_site.cli.job_actions:cancel"),
    "hold": ("keep waiting jobs from starting", "gpucoord_site.cli.job_actions:hold"),
    "release": ("let held jobs start", "gpucoord_site.cli.job_actions:release"),
    "requeue": ("put running jobs back into the queue", "gpucoord_site.cli.job_actions:requeue"),
    "resubmit": (
        "submit ended jobs again, with the same request",
        "gpucoord_site.cli.job_actions:resubmit",
    ),
    "priority": (
        "change the priority of waiting jobs: gpucoord priority 2 JOB",
        "gpucoord_site.cli.job_actions:priority",
    ),
    "change": (
        "change limits, memory and tags of waiting jobs",
        "gpucoord_site.cli.job_actions:change",
    ),
    "history": ("list ended jobs", "gpucoord_site.cli.jobs:history"),
    "efficiency": (
        "say what a job used of what it requested",
        "gpucoord_site.cli.jobs:efficiency",
    ),
    "top": ("show GPUs and jobs live", "gpucoord_site.cli.gpus:top"),
    "gpus": ("list the GPUs", "gpucoord_site.cli.gpus:gpus"),
    "mine": ("list your own processes on GPUs", "gpucoord_site.cli.gpus:mine"),
    "end": ("end one of your own processes: gpucoord end PID", "gpucoord_site.cli.gpus:end"),
    "incidents": (
        "list incidents; show one, and what would start without it: gpucoord incidents ID",
        "gpucoord_site.cli.verbs:incidents",
    ),
    "why": ("say why a job waits: gpucoord why JOB", "gpucoord_site.cli.jobs:why"),
    "quota": (
        "say what you may use; change limits: gpucoord quota set USER --share 30",
        "gpucoord_site.cli.verbs:quota",
    ),
    "user": (
        "add and invite users: gpucoord user add NAME",
        "gpucoord_site.cli.verbs:user",
    ),
    "prompt": (
        "ask a language model: gpucoord prompt MODEL TEXT",
        "gpucoord_site.cli.verbs:prompt",
    ),
    "models": (
        "list language models; start and unload them: gpucoord models boot MODEL",
        "gpucoord_site.cli.verbs:models",
    ),
    "report": (
        "print a report of GPU usage and fair share: gpucoord report --last 24h",
        "gpucoord_site.cli.report:report",
    ),
    "clean": (
        "clean up full disks: gpucoord clean --dry-run",
        "gpucoord_site.cli.verbs:clean",
    ),
    "mcp": ("serve AI agents (Model Context Protocol)", "gpucoord_site.cli.mcp_server:mcp"),
    "lock": (
        "lock GPUs for a command: gpucoord lock 0 -- python train.py",
        "gpucoord_site.cli.lock:lock",
    ),
    "container": (
        "run a container inside a job: gpucoord container run IMAGE",
        "gpucoord_site.cli.container:container",
    ),
    "login": (
        "print a link that logs your browser in, once (on the server)",
        "gpucoord_site.cli.server:login",
    ),
    "token": ("make a token for REST: gpucoord token USER", None),
    "join-token": ("make a token that lets a further host join", None),
    "backup": (
        "back up database, secret key and settings: gpucoord backup FILE.tar.gz",
        "gpucoord_site.cli.server:backup",
    ),
    "restore": (
        "put a backup in place: gpucoord restore FILE.tar.gz",
        "gpucoord_site.cli.server:restore",
    ),
    "move-database": (
        "copy all rows from SQLite to PostgreSQL, or back",
        "gpucoord_site.cli.server:move_database",
    ),
    "completion": (
        "print the completion for a shell: gpucoord completion bash",
        "gpucoord_site.cli.completion:completion",
    ),
    "man": ("print the manual page", "gpucoord_site.cli.completion:manual"),
    "version": ("print the version", "gpucoord_site.cli.main:version"),
}
FRONT_PAGE = """\
gpucoord keeps a shared GPU server fair.

Usage: gpucoord COMMAND [--help]

{commands}

Start here: gpucoord demo      (no GPU needed)
Then:       gpucoord up        and open the address that it prints
Read:       gpucoord help TOPIC; `gpucoord help topics` lists the topics
Django's own commands work too (gpucoord changepassword NAME); `gpucoord django-help` lists them.
"""
NEEDS_ALL = (
    "gpucoord {name} is not part of gpucoord-client ({missing} is missing)."
    " It belongs to the whole package, which is installed where the service runs."
)
# Words of other schedulers and of the shell, by the command that does the same here.
ELSEWHERE = {
    **dict.fromkeys(("jobs", "list", "ls", "ps", "status", "squeue", "qstat"), "queue"),
    **dict.fromkeys(("sbatch", "add", "enqueue", "qsub"), "submit"),
    **dict.fromkeys(("kill", "stop", "scancel", "remove", "rm", "delete", "qdel"), "cancel"),
    **dict.fromkeys(("retry", "rerun", "restart"), "resubmit"),
    **dict.fromkeys(("log", "tail", "follow"), "logs"),
    **dict.fromkeys(("info", "job", "describe"), "show"),
    **dict.fromkeys(("gpu", "nvidia-smi", "sinfo"), "gpus"),
    **dict.fromkeys(("start", "serve"), "up"),
    **dict.fromkeys(("srun", "exec"), "run"),
    **dict.fromkeys(("sacct", "past"), "history"),
    "doctor": "check",
    "users": "user",
    "quotas": "quota",
    "incident": "incidents",
}
USAGE_ERROR = 2
OUTPUT_FAILED = 125
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Commands with long-running processes, whose environment other users could read.
LASTING = {"up", "node", "demo"}
# Commands that only talk to a server, from any system.
NOT_CLIENTS = {
    "up", "node", "demo", "setup", "check", "lock", "login", "token", "join-token", "end", "backup",
    "restore", "move-database",
}  # fmt: skip


def main() -> int:
    """`gpucoord COMMAND`; returns its exit code."""
    return _run(sys.argv[1:] or ["help"], COMMANDS)


def manage() -> int:
    """`manage.py COMMAND`: the same, but Django's own commands keep their names."""
    from django.core import management

    own = management.find_commands(management.__path__[0])
    ours = {name: entry for name, entry in COMMANDS.items() if name not in own}
    return _run(sys.argv[1:] or ["help"], ours)


def _run(argv: Sequence[str], ours: Commands) -> int:
    from gpucoord_site.config.file import ConfigError

    _prepare_output()
    try:
        code = _dispatch(argv[0], list(argv[1:]), ours)
        # A full disk or a reader that has gone is noticed here, not at exit. MCP closes its output.
        if not sys.stdout.closed:
            sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"gpucoord can't start with these settings:\n{error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone.
        _discard_output()
        return 141
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"gpucoord: the output can't be written: {error.strerror}.", file=sys.stderr)
        _discard_output()
        return OUTPUT_FAILED


def _prepare_output() -> None:
    """Closed streams (`>&-`) take everything; characters that a terminal does not have are "?"."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Python must not complain at exit about output that can't be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(name: str, rest: list[str], ours: Commands) -> int:
    if sys.platform != "linux" and name not in client_commands():
        print(
            f"gpucoord {name} needs Linux; this is {sys.platform}."
            " Run the service on a Linux machine, and use gpucoord submit and its like from here.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    if name in LASTING:
        secret_variables.hide()
    name = {"--version": "version", "-V": "version"}.get(name, name)
    if name in {"help", "--help", "-h"} and not rest:
        print(front_page(), end="")
        return 0
    if name == "help" and rest[0] in ours:
        name, rest = rest[0], ["--help"]
    if not is_client_alone() and _is_off(name):
        text = f"gpucoord {name} is switched off on this machine (setting `extensions`)."
        print(text, file=sys.stderr)
        return USAGE_ERROR
    if is_client_alone() and name not in ours and name != "help":
        return _unknown(name)
    target = ours.get(name, ("", None))[1]
    try:
        if name == "help":
            return _help(rest)
        if target:
            module, function = target.split(":")
            return int(getattr(importlib.import_module(module), function)(rest) or 0)
        return _django(name, rest)
    except ModuleNotFoundError as error:
        if not is_client_alone():
            raise
        print(NEEDS_ALL.format(name=name, missing=error.name), file=sys.stderr)
        return USAGE_ERROR


def _is_off(name: str) -> bool:
    """Whether the command belongs to an extension that is switched off."""
    from gpucoord_site.config.extensions import COMMANDS

    if name not in COMMANDS:
        return False
    from gpucoord_site.config.settings import load_config

    return COMMANDS[name] not in load_config().extensions


def _help(words: list[str]) -> int:
    """A chapter of the documentation, or the help of one of Django's commands."""

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    if not is_topic(words) and words[0] in _commands_of_apps():
        return _django("help", words)
    return print_topic(words)


def is_client_alone() -> bool:
    """Whether only the package gpucoord-client is installed."""
    return importlib.util.find_spec("gpucoord_site.asgi") is None


def _django(name: str, rest: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    # Loaded modules stay: looking for garbage would take a tenth of the start (see apps.py).
    gc.disable()
    from django.core.management import ManagementUtility

    if name == "django-help":
        name, rest = "help", []
    if name in COMMANDS or name == "help" or name in _commands_of_apps():
        ManagementUtility(["gpucoord", name, *rest]).execute()
        return 0
    return _unknown(name)


def _unknown(name: str) -> int:
    close = [ELSEWHERE[name]] if name in ELSEWHERE else get_close_matches(name, COMMANDS, 1)
    hint = "`gpucoord help` lists them."
    if close:
        hint = f"Did you mean {close[0]}? ({COMMANDS[close[0]][0]})"
    print(f"gpucoord: there is no command {name!r}. {hint}", file=sys.stderr)
    return USAGE_ERROR


def _commands_of_apps() -> dict[str, str]:
    """All management commands; before the apps are loaded Django lists its own only."""
    import django
    from django.core.management import get_commands

    django.setup()
    return get_commands()


def client_commands() -> set[str]:
    """The commands that run on any system."""
    return (COMMANDS.keys() - NOT_CLIENTS) | {"--version", "-V", "help", "--help", "-h"}


def front_page() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, (text, _) in COMMANDS.items())
    return FRONT_PAGE.format(commands="\n".join(lines))


def version(_rest: Sequence[str] = ()) -> int:
    import platform

    from gpucoord_site import __version__

    print(f"gpucoord {__version__} (Python {platform.python_version()})")
    return 0


# `gpucoord help TOPIC`: a chapter of the documentation, as the pages below /docs/ show it.

TOPICS = "topics"


def print_topic(argv: Sequence[str]) -> int:
    """Print the chapter of the words, such as `first job`. Returns 2 if there is none."""
    from gpucoord_site.documentation import library

    topic = "-".join(argv)
    if topic == TOPICS:
        sys.stdout.write("\n".join(_list()) + "\n")
        return 0
    try:
        text = library.source(library.find(topic))
    except library.NoChapter:
        names = [PurePosixPath(entry.name).name for entry in library.index()]
        close = get_close_matches(topic, names, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        sys.stderr.write(
            f"gpucoord: there is no command or topic {topic!r}.{hint}"
            " `gpucoord help topics` lists all topics.\n"
        )
        return 2
    sys.stdout.write(text)
    return 0


def is_topic(words: Sequence[str]) -> bool:
    from gpucoord_site.documentation import library

    topic = "-".join(words)
    try:
        library.find(topic)
    except library.NoChapter:
        return topic == TOPICS
    return True


def _list() -> Iterator[str]:
    from gpucoord_site.documentation import library

    group = ""
    for entry in library.index():
        if entry.group != group:
            group = entry.group
            yield f"\n{group}" if group != library.index()[0].group else group
        yield f"  {entry.name:<32}  {entry.title}"
