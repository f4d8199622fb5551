"""Options in scripts for other schedulers, as those of `gpucoord submit` with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpucoord_site.cli.sources import lsf, pbs
from gpucoord_site.cli.sources.foreign_words import (
    IN_THE_LOG,
    NO_QUEUES,
    NUMBER,
    Made,
    Option,
    after,
    same,
    time_limit,
)
from gpucoord_site.cli.sources.script_files import BadScript

# Advice for options that have no equivalent.
INSTEAD = {
    "--output": IN_THE_LOG,
    "--partition": NO_QUEUES,
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
INDICES = re.compile(r"[0-9,:%-]+")
DEPENDENCY = re.compile(r"(afterok|afterany):([0-9:]+)")


def translated(mark: str, words: Sequence[str], where: str) -> list[str]:
    """The options of one line. Raises BadScript for one whose meaning gpucoord does not have."""
    pairs, made_of, instead = DIALECTS[mark]
    options: list[str] = []
    for name, value in pairs(words):
        made = made_of(name, value)
        if made is None:
            sign = "=" if name.startswith("--") else " "
            shown = f"{name}{sign}{value}" if value else name
            raise BadScript(
                f"{where}: {mark} {shown} has no option with the same meaning. Remove it, or put"
                f" another # before the line to ignore it.{instead.get(name, '')}"
            )
        options += made
    return options


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Long names of Slurm with their values; "" = none."""
    for name, value in _short_pairs(words):
        yield SHORT.get(name, name), value


def _short_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options of one letter, whose value may follow without a space, and long ones."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("--") and len(word) > 2:
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _word_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options of LSF, words with one -, each followed by its value."""
    rest = list(words)
    while rest:
        name = rest.pop(0)
        yield name, rest.pop(0) if rest and not rest[0].startswith("-") else ""


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
    if dash:
        return time_limit([days, *parts], ("d", "h", "min", "s"))
    return time_limit(parts, ("h", "min", "s") if len(parts) == 3 else ("min", "s"))


def _memory(value: str) -> list[str] | None:
    match = MEMORY.fullmatch(value)
    if match is None or not int(match[1]):
        return None
    return ["--memory", f"{match[1]}{(match[2] or 'M').upper()}iB"]


def _dependency(value: str) -> list[str] | None:
    match = DEPENDENCY.fullmatch(value)
    return after(match[1], match[2].split(":")) if match else None


def _begin(value: str) -> list[str] | None:
    clock = re.fullmatch(r"([0-9]{1,2}:[0-9]{2})(?::00)?", value)
    moment = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?", value)
    later = re.fullmatch(r"now\+([0-9]{1,6})(seconds?|minutes?|hours?|days?|weeks?)?", value)
    if later:
        return ["--begin", f"in {later[1]} {later[2] or 'seconds'}"]
    return ["--begin", clock[1] if clock else value] if clock or moment else None


OPTIONS: dict[str, Option] = {
    "--gres": _gres,
    "--gpus": _gpus,
    "--gpus-per-node": _gpus,
    "--time": _time,
    "--job-name": same("--name"),
    "--array": same("--array", INDICES),
    "--mem": _memory,
    "--cpus-per-task": same("--cpus", NUMBER),
    "--begin": _begin,
    "--dependency": _dependency,
    "--chdir": same("--cwd"),
}
Pairs = Callable[[Sequence[str]], Iterator[tuple[str, str]]]


def _by_table(table: Mapping[str, Option]) -> Callable[[str, str], Made]:
    def made(name: str, value: str) -> Made:
        return table[name](value) if name in table else None

    return made


# How each kind of line is read: its words, the meaning of an option, and advice without one.
DIALECTS: dict[str, tuple[Pairs, Callable[[str, str], Made], Mapping[str, str]]] = {
    "#SBATCH": (_pairs, _option, INSTEAD),
    "#PBS": (_short_pairs, _by_table(pbs.OPTIONS), pbs.INSTEAD),
    "#BSUB": (_word_pairs, _by_table(lsf.OPTIONS), lsf.INSTEAD),
}
