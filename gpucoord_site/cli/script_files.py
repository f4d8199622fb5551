"""Script files, as `gpucoord submit` takes them, and their `#GPUCOORD` lines."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpucoord_site.cli.commands import Failed
from gpucoord_site.cli.environment import program_path
from monitor.facts.input_rules import is_storable

MARK = "#GPUCOORD"
FOREIGN_MARK = re.compile(r"#(?:SBATCH|PBS|BSUB)(?=\s+-)")
LARGEST = 100_000
# Scripts of others find modules and data beside them (sys.path[0], __file__), so a copy would fail.
SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
READ_LATER = "it is read when the job starts"
PROGRAMS = {".py": "python", ".R": "Rscript", ".pl": "perl", ".jl": "julia"}
# A line that looks like options, of gpucoord or of another queue, but does not count.
MISSPELT = re.compile(
    r"\s*(?:#+\s*GPUCOORD\s*:?\s*-|#\s*(?:SBATCH|PBS|BSUB)\s+-|#\$\s+-)", re.IGNORECASE
)
MOST_NAMED = 5
# How a script finds itself, which works in a copy only for a name in the folder of the job.
SOURCE = "BASH_SOURCE"
OWN_NAME = re.compile(r"\$(?:0|\{0)\b")
UTF_16 = (b"\xff\xfe#\0!\0", b"\xfe\xff\0#\0!", b"#\0!\0", b"\0#\0!")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadScript(Failed):
    """The message says what is wrong with the script."""


@dataclass(frozen=True, slots=True)
class Script:
    """options: those of its lines. argv: what runs it. remarks: for the user, in sentences.

    not_copied: why it is read when the job starts; "" = it is copied, or the user wants that.
    """

    options: list[str]
    argv: list[str]
    remarks: list[str] = field(default_factory=list)
    not_copied: str = ""


def read(
    words: Sequence[str], *, copies: bool = True, runs_here: bool = True, elsewhere: bool = False
) -> Script | None:
    """The script that the first word names; None: it is a plain command. Raises BadScript.

    A script begins with #!. A program of this name on PATH comes before a script without options
    in this folder. copies: whether a shell gets the text as it is now. runs_here: whether the
    interpreter must exist on this machine. elsewhere: the job runs in another folder.
    """
    path = Path(words[0])
    # Unlike Path.is_file, this is False for a name that is too long and in a closed folder.
    if not words[0] or not os.path.isfile(path):  # noqa: PTH113
        return None
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise BadScript(f"{path}: {error.strerror}.") from None
    _check_encoding(data, path)
    text = data.decode(errors="surrogateescape")
    is_program = "/" not in words[0] and program_path(words[0]) is not None
    if not text.startswith("#!"):
        if not is_program and runs_here:
            _check_first_line(text, path)
        return None
    interpreter, shell = _interpreter(text, path)
    _check_line_ends(text, path, is_shell=bool(shell))
    options, remarks = _options(text, path)
    if not options and is_program:
        return None
    if runs_here:
        _check_interpreter(interpreter, path)
    is_whole = path.is_absolute() or elsewhere or "--cwd" in options
    reason = _reason_in_place(text, shell, is_whole=is_whole, runs_here=runs_here) if copies else ""
    is_copied = copies and not reason
    if is_copied and len(data) > LARGEST:
        raise BadScript(
            f"{path} has more than {LARGEST} bytes. Submit it with --no-copy, which runs it in"
            " place, and do not edit it before the job has ended."
        )
    if reason:
        remarks.append(f"{path} is not copied: {reason}")
    name = str(path.absolute())
    if not is_whole and (runs_here or is_copied):
        name = f"./{words[0]}" if words[0].startswith("-") else words[0]
    # The file may change before the job starts. The runner hands the text over as a file.
    begin = [*interpreter, "-c", text] if is_copied else interpreter
    return Script(options, [*begin, name, *words[1:]], remarks, reason)


def unread_options(words: Sequence[str]) -> str:
    """A remark about options in a file that is an argument of its interpreter; "" = none."""
    path = Path(words[1]) if len(words) > 1 else None
    if path is None or words[1].startswith("-") or not os.path.isfile(path):  # noqa: PTH113
        return ""
    try:
        with path.open("rb") as file:
            head = file.read(LARGEST)
    except OSError:
        return ""
    if not re.search(rf"^{MARK}\s".encode(), head, re.MULTILINE):
        return ""
    name = shlex.quote(words[1])
    return f"{name}: ignored its {MARK} lines; they count in: gpucoord submit {name}"


def _reason_in_place(text: str, shell: str, *, is_whole: bool, runs_here: bool) -> str:
    """Why the script is not copied; "" = it is."""
    if not shell:
        return READ_LATER
    if not is_storable(text):
        return f"it has bytes that are not UTF-8; {READ_LATER}"
    # Of a copy with a whole path, only bash can be told the path.
    finds_itself = SOURCE in text or (shell != "bash" and OWN_NAME.search(text))
    if runs_here and is_whole and finds_itself:
        return (
            f"it uses its own path; {READ_LATER}. To get a copy, change to the folder of the job"
            " and name the script from there, such as ./job.sh"
        )
    return ""


def _check_first_line(text: str, path: Path) -> None:
    """Refuse a text that names no interpreter; a program has bytes that are no text."""
    if not is_storable(text):
        return
    program = PROGRAMS.get(path.suffix, "bash")
    raise BadScript(
        f"The first line of {path} names no interpreter, such as #!/usr/bin/env {program}. Write it"
        f" there, or start the file by its program: {program} {shlex.quote(str(path))}"
    )


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


def _interpreter(text: str, path: Path) -> tuple[list[str], str]:
    """The words of the first line, and the name of the shell among them; "" = there is none."""
    try:
        interpreter = shlex.split(text.splitlines()[0][2:])
    except ValueError as error:
        raise BadScript(f"{path}, line 1: {error}.") from None
    if not interpreter:
        raise BadScript(f"{path}: the first line names no interpreter; write #!/bin/bash.")
    name = Path(_program(interpreter)).name
    return interpreter, name if name in SHELLS else ""


def _program(interpreter: Sequence[str]) -> str:
    """The program of a first line, which `env` may start."""
    if Path(interpreter[0]).name != "env":
        return interpreter[0]
    words = [word for word in interpreter[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _check_interpreter(interpreter: Sequence[str], path: Path) -> None:
    program = interpreter[0]
    if "/" in program and not os.path.exists(program):  # noqa: PTH110
        name = Path(program).name
        raise BadScript(
            f"{path}: its interpreter {program} does not exist. Write #!/usr/bin/env {name} as"
            f" its first line, or find it with: command -v {name}"
        )
    named = _program(interpreter)
    if named != program and named and not program_path(named):
        raise BadScript(
            f"{path}: its interpreter {named} is in no folder of PATH. Activate its environment,"
            f" and check with: command -v {named}"
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
        elif is_head and (match := FOREIGN_MARK.match(line)):
            foreign[number] = (match[0], line.removeprefix(match[0]))
        elif MISSPELT.match(line):
            ignored.append(number)
    if own:
        return own, _ignored(path, sorted([*foreign, *ignored]))
    options, remarks = list[str](), list[str]()
    for number, (mark, words) in foreign.items():
        # Few scripts need it.
        from gpucoord_site.cli import other_schedulers

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
