"""`gpucoord lock GPU -- COMMAND`: lock GPUs while a command runs. Needs no Django."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from argparse import ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection
from gpucoord_site.cli.commands import Command, Parser, arg, command, complain, in_words
from monitor.facts.input_rules import escaped
from scheduler.facts.units import parse_bytes
from scheduler.runner.confine import cgroups, locks
from scheduler.runner.confine.locks import HeldLocks, LockRefused

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

# The same exit codes as of `env` and docker.
BUSY, NOT_EXECUTABLE, NOT_FOUND = 75, 126, 127
LOOK_AGAIN_S, TELL_AGAIN_S, LOOK_AGAIN_ANY_S = 0.2, 60.0, 2.0
MOST_GPUS = 1024
DEFAULT_FOLDER = "/tmp"  # noqa: S108 - every account finds it; the files are checked
EPILOG = """\
GPU is the number that nvidia-smi shows; several may be given, and "all" means the whole host.
"any" takes a free GPU, "any:2" two of them: healthy, without jobs, and idle or with as much free
memory as --gpu-memory says. The server knows which, so it must run.
The command sees only these GPUs (CUDA_VISIBLE_DEVICES, unless you have set it).
Its exit code becomes this command's. gpucoord starts no job there meanwhile, and its pages name
the holder.
Background processes of the command keep the GPU, too.
Other exit codes: 75 another process holds it (--no-wait), 125 the lock file can't be used.
"""


class Locking(Command):
    """`options.any` is how many free GPUs are wanted, 0: those of `options.gpus`, None = all."""

    def read(self, parser: Parser, argv: Sequence[str]) -> Namespace:
        at = argv.index("--") if "--" in argv else len(argv)
        options = parser.parse_args(argv[:at])
        options.command = argv[at + 1 :]
        if not options.command:
            raise ArgumentTypeError("say what to run: gpucoord lock 0 -- python train.py")
        options.any = _any(options.gpus)
        options.gpus = [] if options.any else _gpus(options.gpus)
        return options


def _seconds(word: str) -> float:
    seconds = float(word)
    if not 0 <= seconds < math.inf:
        raise ArgumentTypeError(f"{word} is no time to wait")
    return seconds


@command(
    "lock",
    "Have GPUs to yourself while a command runs; wait for them first.",
    arg("gpus GPU", "a number, all, any or any:N", nargs="+"),
    arg(
        "--gpu-memory SIZE",
        "with any: GPUs with this much free memory, such as 20GiB, even if they are in use",
        type=in_words(parse_bytes),
    ),
    *connection.PLACE,
    arg("--json", "print the locked GPUs as JSON on standard error"),
    arg("--shared", "allow other shared locks"),
    arg("--no-wait", "fail if they are taken", dest="wait", action="store_const", const=0.0),
    arg("--wait SECONDS", "longest wait", type=_seconds),
    arg("--folder", "another folder of lock files", type=Path),
    kind=Locking,
    usage="gpucoord lock [options] GPU [GPU ...] -- COMMAND [ARGUMENT ...]",
    epilog=EPILOG,
    formatter_class=RawDescriptionHelpFormatter,
)
def lock(options: Namespace) -> int:
    """Replace this process by the command, which holds the locks. Returns only on failure."""
    from gpucoord_site.config.file import ConfigError

    try:
        if options.any:
            return connection.run(options, lambda client: _lock_any(client, options))
        result = _take(options)
    except ConfigError as error:
        return complain(f"{error} Or say where the lock files are: --folder /tmp.")
    except OSError as error:
        return complain(f"{escaped(locks.describe_error(error))}.")
    if isinstance(result, LockRefused):
        return complain(f"{escaped(locks.describe_refusal(result))}.", BUSY)
    _tell(options, options.gpus)
    return _become(options.command, options.gpus, result)


def _tell(options: Namespace, gpus: Sequence[int] | None) -> None:
    """Say which GPUs are locked; None = all. Standard output is the command's."""
    if options.json:
        sys.stderr.write(f"{json.dumps({'gpus': 'all' if gpus is None else list(gpus)})}\n")
        sys.stderr.flush()


def _take(options: Namespace) -> HeldLocks | LockRefused:
    """Poll for the locks, so that the user sees the current holder while waiting."""
    folder, reported_at, reported = options.folder or _folder(), 0.0, ""
    ends = None if options.wait is None else time.monotonic() + options.wait
    while True:
        if options.gpus is None:
            result = locks.lock_host(folder)
        else:
            result = locks.lock_gpus(folder, options.gpus, alone=not options.shared)
        if isinstance(result, HeldLocks) or (ends is not None and time.monotonic() >= ends):
            return result
        text = escaped(locks.describe_refusal(result))
        if text != reported or time.monotonic() - reported_at > TELL_AGAIN_S:
            complain(f"{text}; waiting")
            reported, reported_at = text, time.monotonic()
        time.sleep(LOOK_AGAIN_S)


def _lock_any(client: Client, options: Namespace) -> int:
    """Take the best GPUs that are free, and look again until there are enough."""
    folder, reported = options.folder or _folder(), ""
    ends = None if options.wait is None else time.monotonic() + options.wait
    while True:
        candidates = suitable(client.gpus()["gpus"], os.uname().nodename, options.gpu_memory)
        locked, held = _lock_first(folder, candidates, options)
        if len(locked) == options.any:
            client.close()
            _tell(options, locked)
            return _become(options.command, locked, held)
        held.release()
        text = f"{len(candidates)} of {options.any} GPUs are free now"
        if ends is not None and time.monotonic() >= ends:
            return complain(f"{text}.", BUSY)
        if text != reported:
            complain(f"{text}; waiting")
        reported = text
        time.sleep(LOOK_AGAIN_ANY_S)


def _lock_first(
    folder: Path, candidates: Sequence[int], options: Namespace
) -> tuple[list[int], HeldLocks]:
    """Lock as many of these as are wanted, in this order; others may be locked meanwhile."""
    locked: list[int] = []
    descriptors: list[int] = []
    for gpu in candidates:
        if len(locked) == options.any:
            break
        result = locks.lock_gpus(folder, [gpu], alone=not options.shared)
        if isinstance(result, HeldLocks):
            locked.append(gpu)
            descriptors += result.descriptors
    return locked, HeldLocks(descriptors)


def suitable(gpus: Sequence[dict[str, Any]], host: str, memory: int | None) -> list[int]:
    """Indices of this host's free GPUs: those with most free memory first, unknown is not free."""
    local = [gpu for gpu in gpus if gpu["host"] == host]
    if not local and len({gpu["host"] for gpu in gpus}) == 1:
        # The only host, under another name.
        local = list(gpus)
    free = [(room, gpu["index"]) for gpu in local if (room := _room(gpu, memory)) is not None]
    return [index for _, index in sorted(free, key=lambda pair: (-pair[0], pair[1]))]


def _room(gpu: dict[str, Any], memory: int | None) -> int | None:
    """The free memory of a GPU that may be taken; None: it may not."""
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    if used is None or total is None or gpu["closed"] or gpu["jobs"] or gpu["health"] != "ok":
        return None
    is_enough = total - used >= memory if memory else gpu["state"] == "idle"
    return total - used if is_enough else None


def _any(words: Sequence[str]) -> int:
    """How many GPUs "any" or "any:N" asks for; 0: they are named."""
    word = words[0].lower()
    if len(words) > 1 or not word.startswith("any"):
        return 0
    number = word.removeprefix("any").removeprefix(":") or "1"
    if not (number.isascii() and number.isdecimal()) or not 1 <= int(number[:6]) <= MOST_GPUS:
        raise ArgumentTypeError(f"{words[0]!r} must be any or any:N, such as any:2")
    return int(number[:6])


def _become(command: list[str], gpus: list[int] | None, locks_held: HeldLocks) -> int:
    for descriptor in locks_held.descriptors:
        os.set_inheritable(descriptor, True)
    locks.keep_open()
    environ = dict(os.environ)
    if gpus is not None and "CUDA_VISIBLE_DEVICES" not in environ:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606
    except FileNotFoundError:
        return complain(f"{command[0]}: there is no such command.", NOT_FOUND)
    except OSError as error:
        return complain(f"{command[0]}: {error.strerror}.", NOT_EXECUTABLE)


def _folder() -> Path:
    try:
        from gpucoord_site.config.settings import load_config
    except ModuleNotFoundError:
        return _folder_of_client()
    return load_config().locks


def _folder_of_client() -> Path:
    """The same setting, read without the packages that gpucoord-client leaves out."""
    from gpucoord_site.config.file import ConfigError, config_file, read_toml

    path = config_file()
    named = os.environ.get("GPUCOORD_LOCK_FOLDER") or (path and read_toml(path).get("lock_folder"))
    if named and not isinstance(named, str):
        raise ConfigError(f"lock_folder in {path} must be a path.")
    return Path(named or DEFAULT_FOLDER)


def _gpus(words: Sequence[str]) -> list[int] | None:
    """None = the whole host."""
    if [word.lower() for word in words] == ["all"]:
        return None
    gpus = {_gpu(part) for word in words for part in word.split(",") if part}
    if not gpus:
        raise ArgumentTypeError("say which GPU: gpucoord lock 0 -- python train.py")
    here = len(cgroups.minors()) or MOST_GPUS
    if (last := max(gpus)) >= here:
        raise ArgumentTypeError(f"there is no GPU {last} here; the last one is GPU {here - 1}")
    return sorted(gpus)


def _gpu(word: str) -> int:
    if not word.isdecimal() or not word.isascii():
        raise ArgumentTypeError(f"{word!r} is no GPU's number")
    return int(word) if len(word) < 10 else 10**9
