"""The `gpucoord` command: run a subcommand. Every user error is one sentence."""

from __future__ import annotations

import errno
import gc
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath

from gpucoord_site.config import file

# By name: what it does, and the module that declares it if it starts without Django.
Commands = dict[str, tuple[str, str | None]]
COMMANDS: Commands = {
    "up": ("start gpucoord here and print its address", None),
    "node": ("start gpucoord on a further host, without pages", None),
    "demo": ("try gpucoord with a simulated server; nothing is kept", "demo.command"),
    "setup": ("install the service on this server, as root", "cli.server"),
    "check": ("list what this machine has and what is missing", "cli.check"),
    "submit": ("run a command as a job: gpucoord submit -- python train.py", "cli.submit"),
    "run": (
        "run a command with high priority and wait for it: gpucoord run -- python eval.py",
        "cli.submit",
    ),
    "shell": ("open a shell with a GPU as a job: gpucoord shell", "cli.shell"),
    "notebook": ("open JupyterLab with a GPU as a job: gpucoord notebook", "cli.shell"),
    "batch": ("run a script for many items: gpucoord batch SCRIPT --input FOLDER", "cli.batch"),
    "queue": ("list running and waiting jobs", "cli.jobs"),
    "show": ("show a job: gpucoord show JOB", "cli.jobs"),
    "logs": ("print a job's output: gpucoord logs -f JOB", "cli.job_actions"),
    "wait": ("wait until jobs have ended", "cli.job_actions"),
    "cancel": ("cancel jobs", "cli.job_actions"),
    "hold": ("keep waiting jobs from starting", "cli.job_actions"),
    "release": ("let held jobs start", "cli.job_actions"),
    "requeue": ("put running jobs back into the queue", "cli.job_actions"),
    "resubmit": ("submit ended jobs again, with the same request", "cli.job_actions"),
    "priority": (
        "change the priority of waiting jobs: gpucoord priority 2 JOB",
        "cli.job_actions",
    ),
    "change": ("change limits, memory and tags of waiting jobs", "cli.job_actions"),
    "history": ("list ended jobs", "cli.jobs"),
    "efficiency": ("say what a job used of what it requested", "cli.jobs"),
    "top": ("show GPUs and jobs live", "cli.gpus"),
    "gpus": ("list the GPUs", "cli.gpus"),
    "mine": ("list your own processes on GPUs", "cli.gpus"),
    "end": ("end one of your own processes: gpucoord end PID", "cli.gpus"),
    "incidents": (
        "list incidents; show one, and what would start without it: gpucoord incidents ID",
        "cli.verbs",
    ),
    "why": ("say why a job waits: gpucoord why JOB", "cli.jobs"),
    "quota": (
        "say what you may use; change limits: gpucoord quota set USER --share 30",
        "cli.verbs",
    ),
    "user": ("add and invite users: gpucoord user add NAME", "cli.verbs"),
    "prompt": ("ask a language model: gpucoord prompt MODEL TEXT", "cli.verbs"),
    "models": (
        "list language models; start and unload them: gpucoord models boot MODEL",
        "cli.verbs",
    ),
    "report": (
        "print a report of GPU usage and fair share: gpucoord report --last 24h",
        "cli.verbs",
    ),
    "clean": ("clean up full disks: gpucoord clean --dry-run", "cli.verbs"),
    "mcp": ("serve AI agents (Model Context Protocol)", "cli.mcp_server"),
    "lock": ("lock GPUs for a command: gpucoord lock 0 -- python train.py", "cli.lock"),
    "container": (
        "run a container inside a job: gpucoord container run IMAGE",
        "cli.container",
    ),
    "login": ("print a link that logs your browser in, once (on the server)", "cli.server"),
    "token": ("make a token for REST: gpucoord token USER", None),
    "join-token": ("make a token that lets a further host join", None),
    "backup": (
        "back up database, secret key and settings: gpucoord backup FILE.tar.gz",
        "cli.server",
    ),
    "restore": ("put a backup in place: gpucoord restore FILE.tar.gz", "cli.server"),
    "move-database": ("copy all rows from SQLite to PostgreSQL, or back", "cli.server"),
    "completion": (
        "print the completion for a shell: gpucoord completion bash",
        "cli.completion",
    ),
    "man": ("print the manual page", "cli.completion"),
    "version": ("print the version", "cli.main"),
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
        file.hide()
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
    try:
        if name == "help":
            return _help(rest)
        if name in ours and (run := declared(name)):
            return run(rest)
        return _django(name, rest)
    except ModuleNotFoundError as error:
        if not is_client_alone():
            raise
        print(NEEDS_ALL.format(name=name, missing=error.name), file=sys.stderr)
        return USAGE_ERROR


def declared(name: str) -> Callable[[list[str]], int] | None:
    """The command as its module declares it; None: it is one of Django."""
    module = COMMANDS[name][1]
    if module is None:
        return None
    made: Callable[[list[str]], int] = getattr(
        importlib.import_module(f"gpucoord_site.{module}"), name.replace("-", "_")
    )
    return made


def _is_off(name: str) -> bool:
    """Whether the command belongs to an extension that is switched off."""
    from gpucoord_site.config.extensions import COMMANDS

    if name not in COMMANDS:
        return False
    from gpucoord_site.config.settings import load_config

    return COMMANDS[name] not in load_config().extensions


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


def _help(words: list[str]) -> int:
    """A chapter of the documentation, or the help of one of Django's commands."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucoord_site.settings")
    text = topic(words)
    if text is None and words[0] in _commands_of_apps():
        return _django("help", words)
    if text is None:
        from gpucoord_site.documentation import library

        name = "-".join(words)
        names = [PurePosixPath(entry.name).name for entry in library.index()]
        close = get_close_matches(name, names, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        sys.stderr.write(
            f"gpucoord: there is no command or topic {name!r}.{hint}"
            " `gpucoord help topics` lists all topics.\n"
        )
        return USAGE_ERROR
    sys.stdout.write(text)
    return 0


def topic(words: Sequence[str]) -> str | None:
    """The chapter of words such as `first job`, or the list of all; None: there is none."""
    from gpucoord_site.documentation import library

    name = "-".join(words)
    if name == TOPICS:
        return "\n".join(_list()) + "\n"
    try:
        return library.source(library.find(name))
    except library.NoChapter:
        return None


def _list() -> Iterator[str]:
    from gpucoord_site.documentation import library

    group = ""
    for entry in library.index():
        if entry.group != group:
            yield f"\n{entry.group}" if group else entry.group
            group = entry.group
        yield f"  {entry.name:<32}  {entry.title}"
