"""Completion, manual page and help follow from one declaration: the parsers of the commands."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from gpucoord_site.cli import completion, lock
from gpucoord_site.cli.main import COMMANDS
from tests.builders import GIB

WITHOUT_PARSER = {"version"}


def test_each_command_without_django_has_its_parser_there() -> None:
    starts_fast = {name for name, (_, target) in COMMANDS.items() if target}

    assert set(completion.parsers()) == starts_fast - WITHOUT_PARSER - completion.HEAVY


@pytest.mark.parametrize("make", [completion.bash, completion.zsh, completion.fish])
def test_each_completion_knows_every_command_and_option(make: Any) -> None:
    text = make()

    for name, parser in completion.parsers().items():
        assert name in text
        for action in completion.options(parser):
            for word in action.option_strings:
                if word.startswith("--"):
                    assert word[2:] in text


@pytest.mark.parametrize(("shell", "make"), [("bash", completion.bash), ("zsh", completion.zsh)])
def test_the_shell_accepts_it(shell: str, make: Any) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([program, "-n"], input=make(), capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_options_of_a_command() -> None:
    script = completion.bash() + (
        "COMP_WORDS=(gpucoord queue --mi); COMP_CWORD=2; _gpucoord; echo ${COMPREPLY[@]}\n"
        "COMP_WORDS=(gpucoord ef); COMP_CWORD=1; _gpucoord; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["--mine", "efficiency"]


def test_the_manual_names_every_command_and_option() -> None:
    page = "\n".join(completion.man_page())

    for name, parser in completion.parsers().items():
        assert f".SS gpucoord {name}".replace("-", "\\-") in page
        for action in completion.options(parser):
            assert all(word.replace("-", "\\-") in page for word in action.option_strings)
    # Lines that begin with a dot are requests of roff.
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".B"}


def _gpu(index: int, used: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "host": "box",
        "index": index,
        "memory_used_bytes": used * GIB,
        "memory_total_bytes": 80 * GIB,
        "closed": None,
        "jobs": [],
        "health": "ok",
        "state": "external" if used else "idle",
    } | changes


def test_any_takes_the_free_gpus_with_most_room_first() -> None:
    gpus = [
        _gpu(0, 70),
        _gpu(1, 30),
        _gpu(2),
        _gpu(3, jobs=["7"]),
        _gpu(4, closed="paused"),
        _gpu(5, health="failing"),
        _gpu(6, memory_used_bytes=None),
        _gpu(7, host="other"),
    ]

    assert lock.suitable(gpus, "box", None) == [2]
    assert lock.suitable(gpus, "box", 20 * GIB) == [2, 1]
    assert lock.suitable(gpus, "box", 5 * GIB) == [2, 1, 0]


@pytest.mark.parametrize(
    ("words", "number"), [(["any"], 1), (["any:3"], 3), (["ANY:2"], 2), (["0"], 0), (["all"], 0)]
)
def test_any_says_how_many(words: list[str], number: int) -> None:
    assert lock._any(words) == number


@pytest.mark.parametrize("word", ["any:0", "any:x", "anyone", "any:-1"])
def test_a_wrong_number_of_any_is_refused(word: str) -> None:
    with pytest.raises(lock.ArgumentTypeError, match="any:N"):
        lock._any([word])
