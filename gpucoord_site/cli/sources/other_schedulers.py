"""Options in scripts for other schedulers, as those of `gpucoord submit` with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from scheduler.facts.units import parse_duration

MARK = re.compile(r"#(?:SBATCH|PBS|BSUB)(?=\s+-)")
# Advice for options that have no equivalent.
INSTEAD = {
    "--output": " The output is in gpucoord logs JOB; for a file too, begin the script with"
    " exec > FILE 2>&1",
    "--partition": " There are no partitions; --host and --model choose GPUs.",
    "--constraint": " Use #GPUCOORD --model.",
}
# Short options of sbatch.
SHORT = {
    "-J": "--job-name", "-t": "--time", "-a": "--array", "-c": "--cpus-per-task", "-d":
    "--dependency", "-b": "--begin", "-D": "--chdir", "-G": "--gpus", "-N": "--nodes",
    "-n": "--ntasks", "-o": "--output", "-e": "--error", "-p": "--partition", "-A": "--account",
}  # fmt: skip
GPUS = re.compile(r"(?:gres/)?gpu(?::[A-Za-z][\w.-]*)?(?::([0-9]{1,4}))?")
MEMORY = re.compile(r"([0-9]{1,9})([KMGT]?)B?", re.IGNORECASE)
TEXT = re.compile(r".+")
INDICES = re.compile(r"[0-9,:%-]+")
NUMBER = re.compile(r"[0-9]{1,5}")
DEPENDENCY = re.compile(r"(afterok|afterany):([0-9]{1,9}(?::[0-9]{1,9})*)")


class BadScript(Exception):
    """The message says what is wrong with the script."""


def mark_of(line: str) -> str:
    """The mark of another scheduler that begins the line; "" = none."""
    match = MARK.match(line)
    return match[0] if match else ""


def translated(mark: str, words: Sequence[str], where: str) -> list[str]:
    """The options of one line. Raises BadScript for one whose meaning gpucoord does not have."""
    if mark != "#SBATCH":
        raise BadScript(
            f"{where}: {mark} lines are not translated. Write #GPUCOORD lines; gpucoord submit"
            " --help lists the options. To ignore the line, put another # before it."
        )
    options: list[str] = []
    for name, value in _pairs(words):
        made = _option(name, value)
        if made is None:
            shown = f"{name}={value}" if value else name
            raise BadScript(
                f"{where}: {mark} {shown} has no option with the same meaning. Remove it, or put"
                f" another # before the line to ignore it.{INSTEAD.get(name, '')}"
            )
        options += made
    return options


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Long names with their values; "" = none."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield SHORT.get(name, name), value


def _option(name: str, value: str) -> list[str] | None:
    """None: gpucoord has nothing with the same meaning."""
    if name in ("--nodes", "--ntasks", "--ntasks-per-node"):
        return [] if value == "1" else None
    if name in OPTIONS:
        made = OPTIONS[name](value)
        return made if made is None or all(made) else None
    return None


def _gpus(value: str) -> list[str] | None:
    if re.fullmatch(r"[0-9]{1,4}", value):
        return ["--gpus", value]
    match = GPUS.fullmatch(value)
    is_plain = match is not None and not re.search(r"gpu:[A-Za-z]", value)
    return ["--gpus", match[1] or "1"] if match is not None and is_plain else None


def _gres(value: str) -> list[str] | None:
    return _gpus(value) if value.startswith("gpu") else None


def _time(value: str) -> list[str] | None:
    """Slurm's minutes, minutes:seconds, h:m:s, days-hours, d-h:m and d-h:m:s."""
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if not all(re.fullmatch("[0-9]{1,5}", part) for part in (*parts, days or "0")):
        return None
    if len(parts) > 3:
        return None
    units = ("h", "min", "s") if dash or len(parts) == 3 else ("min", "s")
    text = " ".join(
        [f"{days}d"] * bool(dash)
        + [f"{int(part)}{unit}" for part, unit in zip(parts, units, strict=False) if int(part)]
    )
    try:
        parse_duration(text)
    except ValueError:
        return None
    return ["--time-limit", text]


def _memory(value: str) -> list[str] | None:
    match = MEMORY.fullmatch(value)
    if match is None or not int(match[1]):
        return None
    return ["--memory", f"{match[1]}{(match[2] or 'M').upper()}iB"]


def _dependency(value: str) -> list[str] | None:
    match = DEPENDENCY.fullmatch(value)
    if match is None:
        return None
    option = "--after-success" if match[1] == "afterok" else "--after"
    return [option, match[2].replace(":", ",")]


def _begin(value: str) -> list[str] | None:
    clock = re.fullmatch(r"([0-9]{1,2}:[0-9]{2})(?::00)?", value)
    moment = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?", value)
    later = re.fullmatch(r"now\+([0-9]{1,6})(seconds?|minutes?|hours?|days?|weeks?)?", value)
    if later:
        return ["--begin", f"in {later[1]} {later[2] or 'seconds'}"]
    return ["--begin", clock[1] if clock else value] if clock or moment else None


def _same(option: str, pattern: re.Pattern[str] = TEXT) -> Callable[[str], list[str] | None]:
    def made(value: str) -> list[str] | None:
        return [option, value] if pattern.fullmatch(value) else None

    return made


OPTIONS: dict[str, Callable[[str], list[str] | None]] = {
    "--gres": _gres,
    "--gpus": _gpus,
    "--gpus-per-node": _gpus,
    "--time": _time,
    "--job-name": _same("--name"),
    "--array": _same("--array", INDICES),
    "--mem": _memory,
    "--cpus-per-task": _same("--cpus", NUMBER),
    "--begin": _begin,
    "--dependency": _dependency,
    "--chdir": _same("--cwd"),
}
