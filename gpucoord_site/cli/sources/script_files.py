"""Script files with `#GPUCOORD` lines, as `gpucoord submit` takes them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "#GPUCOORD"
LARGEST = 100_000
# Interpreters that take the text of a script with -c, and its name after it.
SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}


class BadScript(Exception):
    """The message says what is wrong with the script."""


@dataclass(frozen=True, slots=True)
class Script:
    """options: those of its `#GPUCOORD` lines. argv: what runs it."""

    options: list[str]
    argv: list[str]


def read(words: Sequence[str]) -> Script | None:
    """The script that the first word names; None: it is a plain command.

    A script has `#GPUCOORD` lines, or begins with #! and is not executable. Raises BadScript.
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
    if not data.startswith(b"#!"):
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    options = _options(text, path)
    if not options and os.access(path, os.X_OK):
        return None
    if len(data) > LARGEST:
        raise BadScript(f"{path} has more than {LARGEST} bytes; submit a command that runs it.")
    return Script(options, _argv(text, path, words[1:]))


def _options(text: str, path: Path) -> list[str]:
    """Of the comment lines before the first command."""
    options: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if not re.match(rf"{MARK}(\s|$)", line):
            continue
        try:
            options += shlex.split(line.removeprefix(MARK), comments=True)
        except ValueError as error:
            raise BadScript(f"{path}, line {number}: {error}.") from None
    return options


def _argv(text: str, path: Path, arguments: Sequence[str]) -> list[str]:
    """A shell gets the text as it is now: the file may change before the job starts."""
    try:
        interpreter = shlex.split(text.splitlines()[0][2:])
    except ValueError as error:
        raise BadScript(f"{path}, line 1: {error}.") from None
    if not interpreter:
        raise BadScript(f"{path}: the first line names no interpreter; write #!/bin/bash.")
    program = interpreter[1:2] if Path(interpreter[0]).name == "env" else interpreter[:1]
    whole = str(path.absolute())
    if program and Path(program[0]).name in SHELLS:
        return [*interpreter, "-c", text, whole, *arguments]
    return [*interpreter, whole, *arguments]
