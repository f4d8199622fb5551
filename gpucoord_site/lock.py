"""`gpucoord lock GPU -- COMMAND`: have GPUs to oneself while a command runs. Needs no Django."""

from __future__ import annotations

import math
import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from scheduler.runner import gpu_devices, lock_keeper, locks
from scheduler.runner.locks import Held, Refused

# As `timeout` and `docker` have it: what failed is gpucoord, not the command.
BUSY, OURS, NOT_EXECUTABLE, NOT_FOUND = 75, 125, 126, 127
LOOK_AGAIN_S, TELL_AGAIN_S = 0.2, 60.0
MOST_GPUS = 1024
EPILOG = """\
GPU is the number that nvidia-smi shows; several may be given, and "all" means the whole host.
The command sees only these GPUs (CUDA_VISIBLE_DEVICES, unless you have set it) and its exit code
becomes this command's. gpucoord starts no job there meanwhile, and says who holds the GPU. What it
leaves running in the background keeps the GPU, too.
Exit codes of our own: 75 somebody else holds it (--no-wait), 125 the lock file can't be used.
"""


def main(argv: Sequence[str]) -> int:
    """Becomes the command, which holds the locks until it ends; returns only when it can't."""
    own, command = _split(argv)
    parser = _parser()
    asked = parser.parse_args(own)
    if not command:
        parser.error("say what to run: gpucoord lock 0 -- python train.py")
    try:
        asked.gpus = _gpus(asked.gpus)
    except ArgumentTypeError as error:
        parser.error(str(error))
    from gpucoord_site.config_file import ConfigError

    try:
        held = _take(asked)
    except ConfigError as error:
        return _fail(f"{error} Or say where the lock files are: --folder /tmp.", OURS)
    except OSError as error:
        return _fail(f"{locks.problem(error)}.", OURS)
    if isinstance(held, Refused):
        return _fail(f"{locks.describe(held)}.", BUSY)
    return _become(command, asked.gpus, held)


def _take(asked: Namespace) -> Held | Refused:
    """Ask again and again, so that who holds it by now can be told while we wait."""
    folder, told_at, told = asked.folder or _folder(), 0.0, ""
    ends = None if asked.wait is None else time.monotonic() + asked.wait
    while True:
        taken = _once(folder, asked)
        if isinstance(taken, Held) or (ends is not None and time.monotonic() >= ends):
            return taken
        text = locks.describe(taken)
        if text != told or time.monotonic() - told_at > TELL_AGAIN_S:
            sys.stderr.write(f"gpucoord: {text}; waiting\n")
            sys.stderr.flush()
            told, told_at = text, time.monotonic()
        time.sleep(LOOK_AGAIN_S)


def _once(folder: Path, asked: Namespace) -> Held | Refused:
    if asked.gpus is None:
        return locks.take_host(folder)
    return locks.take(folder, asked.gpus, alone=not asked.shared)


def _become(command: list[str], gpus: list[int] | None, held: Held) -> int:
    for descriptor in held.descriptors:
        os.set_inheritable(descriptor, True)
    lock_keeper.stay()
    environ = dict(os.environ)
    if gpus is not None and "CUDA_VISIBLE_DEVICES" not in environ:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606
    except FileNotFoundError:
        return _fail(f"{command[0]}: there is no such command.", NOT_FOUND)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}.", NOT_EXECUTABLE)


def _folder() -> Path:
    from gpucoord_site.config import load_config

    return load_config().locks


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"gpucoord: {text}\n")
    return code


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our words, and after -- the command's."""
    if "--" not in argv:
        return list(argv), []
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def _gpus(words: Sequence[str]) -> list[int] | None:
    """None = the whole host."""
    if [word.lower() for word in words] == ["all"]:
        return None
    found = {_gpu(part) for word in words for part in word.split(",") if part}
    if not found:
        raise ArgumentTypeError("say which GPU: gpucoord lock 0 -- python train.py")
    here = len(gpu_devices.minors()) or MOST_GPUS
    if (last := max(found)) >= here:
        raise ArgumentTypeError(f"there is no GPU {last} here; the last one is GPU {here - 1}")
    return sorted(found)


def _gpu(word: str) -> int:
    if not word.isdecimal() or not word.isascii():
        raise ArgumentTypeError(f"{word!r} is no GPU's number")
    return int(word) if len(word) < 10 else 10**9


def _seconds(word: str) -> float:
    seconds = float(word)
    if not 0 <= seconds < math.inf:
        raise ArgumentTypeError(f"{word} is no time to wait")
    return seconds


def _parser() -> ArgumentParser:
    from argparse import RawDescriptionHelpFormatter

    parser = ArgumentParser(
        "gpucoord lock",
        usage="gpucoord lock [options] GPU [GPU ...] -- COMMAND [ARGUMENT ...]",
        description="Have GPUs to yourself while a command runs; wait for them first.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("gpus", metavar="GPU", nargs="+", help="a number, or all")
    parser.add_argument("--shared", action="store_true", help="let others share them with you")
    parser.add_argument(
        "--no-wait", dest="wait", action="store_const", const=0.0, help="fail when they are taken"
    )
    parser.add_argument("--wait", type=_seconds, metavar="SECONDS", help="wait no longer than that")
    parser.add_argument("--folder", type=Path, help="where the lock files are, if elsewhere")
    return parser
