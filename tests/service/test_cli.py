from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpucoord_site import __version__
from gpucoord_site.cli import completion, main

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.processes


def _gpucoord(*words: str, program: tuple[str, ...] = ("-m", "gpucoord_site")) -> str:
    """The command's output and errors, with its exit code."""
    environ = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    ran = subprocess.run(
        [sys.executable, *program, *words], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert "Traceback" not in ran.stderr
    return f"{ran.stdout}{ran.stderr}exit code {ran.returncode}"


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_front_page_offers_every_command(words: tuple[str, ...]) -> None:
    said = _gpucoord(*words)

    assert all(f"  {name} " in said for name in main.COMMANDS)
    assert said.endswith("exit code 0")


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    said = _gpucoord("sumbit")

    assert "there is no command 'sumbit'. Did you mean submit?" in said
    assert said.endswith("exit code 2")


@pytest.mark.parametrize(
    ("typed", "name"),
    [("jobs", "queue"), ("sbatch", "submit"), ("kill", "cancel"), ("ps", "queue")],
)
def test_the_word_of_another_tool_is_answered_with_ours(
    typed: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main._run([typed], main.COMMANDS) == main.USAGE_ERROR

    assert f"there is no command '{typed}'. Did you mean {name}?" in capsys.readouterr().err


def test_each_word_of_other_tools_leads_to_a_command() -> None:
    assert set(main.ELSEWHERE.values()) <= set(main.COMMANDS)
    assert not set(main.ELSEWHERE) & set(main.COMMANDS)


@pytest.mark.parametrize("name", sorted(set(main.COMMANDS) - {"version"}))
def test_each_command_explains_itself(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (name, "--help"), ("help", name):
        monkeypatch.setattr(sys, "argv", ["gpucoord", *words])
        with suppress(SystemExit):
            main.main()

        assert f"usage: gpucoord {name}" in capsys.readouterr().out


WITH_SERVER = [
    "submit",
    "queue",
    "show",
    "logs",
    "cancel",
    "hold",
    "release",
    "requeue",
    "priority",
    "wait",
    "history",
    "efficiency",
    "top",
    "gpus",
    "mine",
    "end",
    "lock",
    "report",
    "shell",
    "run",
    "login",
    "quota",
]


@pytest.mark.parametrize("name", WITH_SERVER)
def test_a_command_that_asks_the_server_takes_its_address_and_prints_json(name: str) -> None:
    text = completion.parsers()[name].format_help()

    assert all(option in text for option in ("--url", "--token", "--json"))


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_the_version_is_one_line(word: str) -> None:
    assert _gpucoord(word).startswith(f"gpucoord {__version__} (Python 3.")


@pytest.mark.parametrize("words", [["version"], ["submit", "--help"], ["queue", "--help"], ["man"]])
def test_what_people_type_often_starts_without_django(words: list[str]) -> None:
    code = (
        "import sys; from gpucoord_site.cli import main as cli\n"
        f"sys.argv = ['gpucoord', *{words!r}]\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'django', 'httpx', 'pydantic', 'rich'} & set(sys.modules)\n"
        "print('HEAVY' if heavy else 'LIGHT')"
    )

    assert "LIGHT" in _gpucoord(program=("-c", code))


def test_manage_py_keeps_djangos_own_check() -> None:
    assert "System check identified no issues" in _gpucoord("check", program=("manage.py",))


def test_help_of_djangos_commands_and_of_topics_are_told_apart() -> None:
    assert "usage: gpucoord migrate" in _gpucoord("help", "migrate")
    assert _gpucoord("help", "first-job").startswith("# From ssh to a running job")


def test_manage_py_keeps_djangos_own_shell() -> None:
    code = "from django.conf import settings; print(settings.ROOT_URLCONF)"

    answer = _gpucoord("shell", "--no-imports", "-c", code, program=("manage.py",))

    assert answer.startswith("gpucoord_site.urls\n")


def test_the_admin_is_loaded_with_the_pages_and_checked_as_a_whole() -> None:
    code = (
        "import os, sys, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'gpucoord_site.settings'\n"
        "from django.core import checks\n"
        "django.setup()\n"
        "print('early', 'scheduler.admin' in sys.modules)\n"
        "checks.run_checks(tags=['admin'])\n"
        "from django.contrib import admin\n"
        "print('checked', 'Job' in [model.__name__ for model in admin.site._registry])\n"
    )

    said = _gpucoord(program=("-c", code)).split()

    assert said[:4] == ["early", "False", "checked", "True"]


def test_djangos_commands_are_within_reach() -> None:
    assert "changepassword" in _gpucoord("django-help")


def test_other_systems_than_linux_get_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("sys.argv", ["gpucoord", "up"])

    assert main.main() == 2
    assert capsys.readouterr().err == (
        "gpucoord up needs Linux; this is darwin. Run the service on a Linux machine, and use"
        " gpucoord submit and its like from here.\n"
    )


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The MCP server closes it."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "argv", ["gpucoord", "completion", "--help"])
    monkeypatch.setattr(main, "_dispatch", lambda *_: 0)

    assert main.main() == 0


@pytest.mark.parametrize(
    ("redirection", "encoding", "code", "says"),
    [
        (">&-", "utf-8", 0, ""),
        ("2>&-", "utf-8", 0, "\u2013"),
        ("", "ascii", 0, "?"),
        (">/dev/full", "utf-8", 125, "can't be written: No space left on device"),
    ],
)
def test_an_output_of_any_kind_ends_in_no_traceback(
    redirection: str, encoding: str, code: int, says: str
) -> None:
    show = "from gpucoord_site.cli import main; main.version = lambda _: print('\u2013'); "
    run = "import sys; sys.argv[1:] = ['version']; sys.exit(main.main())"
    line = f'"$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, show + run], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONIOENCODING": encoding}, check=False,
    )  # fmt: skip

    assert "Traceback" not in done.stderr
    assert done.returncode == code
    assert says in done.stdout + done.stderr


def test_a_reader_that_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as output:
        command = [sys.executable, "-m", "gpucoord_site", "man"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)

    assert (done.returncode, done.stderr) == (141, b"")


def test_each_command_without_django_starts_without_settings() -> None:
    code = (
        "from gpucoord_site.cli.main import COMMANDS, declared\n"
        "print(len(list(filter(None, map(declared, COMMANDS)))))"
    )
    environ = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True
    )

    assert ran.stderr == ""
    assert int(ran.stdout) > 15
