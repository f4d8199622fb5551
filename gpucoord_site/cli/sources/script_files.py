"""Script files, as `gpucoord submit` takes them, and their `#GPUCOORD` lines."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucoord_site.cli.sources import other_schedulers
from gpucoord_site.cli.sources.other_schedulers import BadScript

MARK = "#GPUCOORD"
LARGEST = 100_000
# Interpreters that take the text of a script with -c, and its name after it.
SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
# A line that looks like options, of gpucoord or of another queue, but does not count.
MISSPELT = re.compile(
    r"\s*(?:#+\s*GPUCOORD\s*:?\s*-|#\s*(?:SBATCH|PBS|BSUB)\s+-|#\$\s+-)", re.IGNORECASE
)
MOST_NAMED = 5
# The path of the script for bash, which it does not know of a text.
FINDS_ITSELF = "BASH_SOURCE"
UTF_16 = tuple(
    mark + "#!".encode(code)
    for mark, code in (
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
        (b"", "utf-16-le"),
        (b"", "utf-16-be"),
    )
)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Script:
    """options: those of its lines. argv: what runs it. remarks: for the user, in sentences."""

    options: list[str]
    argv: list[str]
    remarks: list[str] = field(default_factory=list)


def read(words: Sequence[str], *, copies: bool = True, runs_here: bool = True) -> Script | None:
    """The script that the first word names; None: it is a plain command. Raises BadScript.

    A script begins with #!. A program of this name on PATH comes before a script without options
    in this folder. copies: whether a shell gets the text as it is now. runs_here: whether the
    interpreter must exist on this machine.
    """
    path = Path(words[0])
    # Unlike Path.is_file, this is False for a name that is too long and in a closed folder.
    if not words[0] or " " in words[0] or not os.path.isfile(path):  # noqa: PTH113
        return None
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise BadScript(f"{path}: {error.strerror}.") from None
    _check_encoding(data, path)
    if not data.startswith(b"#!"):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    interpreter, is_shell = _interpreter(text, path)
    _check_line_ends(text, path, is_shell=is_shell)
    options, remarks = _options(text, path)
    if not options and "/" not in words[0] and shutil.which(words[0]):
        return None
    if runs_here:
        _check_interpreter(interpreter, path)
    whole = str(path.absolute())
    if not copies:
        return Script(options, [*interpreter, whole, *words[1:]], remarks)
    if is_shell and FINDS_ITSELF in text:
        remarks.append(
            f"{path} is not copied, because it uses ${FINDS_ITSELF}, which a copy does not have:"
            " do not edit it before the job has started"
        )
        return Script(options, [*interpreter, whole, *words[1:]], remarks)
    if not is_shell:
        remarks.append(f"{path} is not copied: it is read when the job starts")
        return Script(options, [*interpreter, whole, *words[1:]], remarks)
    if len(data) > LARGEST:
        raise BadScript(
            f"{path} has more than {LARGEST} bytes. Submit it with --no-copy, which runs it in"
            " place, and do not edit it before the job has ended."
        )
    # The file may change before the job starts. The runner hands the text over as a file.
    return Script(options, [*interpreter, "-c", text, whole, *words[1:]], remarks)


def _check_encoding(data: bytes, path: Path) -> None:
    name = shlex.quote(str(path))
    if data.startswith(BYTE_ORDER_MARK + b"#!"):
        raise BadScript(
            f"{path} begins with a byte-order mark, so its first line names no interpreter."
            f" Remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {name}"
        )
    if data.startswith(UTF_16):
        raise BadScript(
            f"{path} is UTF-16, which no interpreter reads."
            f" Convert it: iconv -f UTF-16 -t UTF-8 {name} > copy.sh"
        )


def _check_line_ends(text: str, path: Path, *, is_shell: bool) -> None:
    checked = text if is_shell else text.split("\n", 1)[0]
    at = checked.find("\r")
    if at < 0:
        return
    name = shlex.quote(str(path))
    remedy = f"sed -i 's/\\r$//' {name}" if "\n" in text else f"tr '\\r' '\\n' < {name} > copy.sh"
    raise BadScript(
        f"{path} has carriage returns (line {checked.count(chr(10), 0, at) + 1}), as files of"
        f" Windows do; they would become part of its words. Remove them: {remedy}"
    )


def _interpreter(text: str, path: Path) -> tuple[list[str], bool]:
    """The words of the first line, and whether they are a shell that takes a text."""
    try:
        interpreter = shlex.split(text.splitlines()[0][2:])
    except ValueError as error:
        raise BadScript(f"{path}, line 1: {error}.") from None
    if not interpreter:
        raise BadScript(f"{path}: the first line names no interpreter; write #!/bin/bash.")
    program = interpreter[1:2] if Path(interpreter[0]).name == "env" else interpreter[:1]
    return interpreter, bool(program) and Path(program[0]).name in SHELLS


def _check_interpreter(interpreter: Sequence[str], path: Path) -> None:
    program = interpreter[0]
    if "/" in program and not os.path.exists(program):  # noqa: PTH110
        name = Path(program).name
        raise BadScript(
            f"{path}: its interpreter {program} does not exist. Write #!/usr/bin/env {name} as"
            f" its first line, or find it with: command -v {name}"
        )
    named = interpreter[1:2] if Path(program).name == "env" else []
    if (
        named
        and not named[0].startswith("-")
        and "=" not in named[0]
        and not shutil.which(named[0])
    ):
        raise BadScript(
            f"{path}: its interpreter {named[0]} is in no folder of PATH. Activate its environment,"
            f" and check with: command -v {named[0]}"
        )


def _options(text: str, path: Path) -> tuple[list[str], list[str]]:
    """Of the comment lines before the first command; and remarks about lines that do not count.

    Lines of another scheduler count only in a script without lines of gpucoord.
    """
    own: list[str] = []
    foreign: dict[int, tuple[str, str]] = {}
    ignored: list[int] = []
    is_head = True
    for number, line in enumerate(text.splitlines(), start=1):
        is_head = is_head and (not line.strip() or line.startswith("#"))
        if is_head and re.match(rf"{MARK}(\s|$)", line):
            own += _words(line.removeprefix(MARK), path, number)
        elif is_head and (mark := other_schedulers.mark_of(line)):
            foreign[number] = (mark, line.removeprefix(mark))
        elif MISSPELT.match(line):
            ignored.append(number)
    if own:
        return own, _ignored(path, sorted([*foreign, *ignored]))
    options, remarks = list[str](), list[str]()
    for number, (mark, words) in foreign.items():
        where = f"{path}, line {number}"
        made = other_schedulers.translated(mark, _words(words, path, number), where)
        remarks.append(f"{where}: {mark}{words} read as {shlex.join(made) or 'the default'}")
        options += made
    return options, [*remarks, *_ignored(path, ignored)]


def _ignored(path: Path, numbers: Sequence[int]) -> list[str]:
    if not numbers:
        return []
    shown = ", ".join(map(str, numbers[:MOST_NAMED]))
    more = f" and {len(numbers) - MOST_NAMED} more" if len(numbers) > MOST_NAMED else ""
    return [
        f"{path}: ignored line {shown}{more}: options are in lines that begin with {MARK} and a"
        " space, before the first command"
    ]


def _words(text: str, path: Path, number: int) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise BadScript(f"{path}, line {number}: {error}.") from None
