"""`gpucoord completion SHELL` and `gpucoord man`, both made from the declared commands."""

from __future__ import annotations

import argparse
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from gpucoord_site.cli.commands import Command, arg, command

# Their modules import much, and they have few options.
HEAVY = {"demo", "check"}
SHELLS = ("bash", "zsh", "fish")
BASH = """\
# bash completion for gpucoord: eval "$(gpucoord completion bash)"
_gpucoord() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case ${{COMP_WORDS[1]}} in
{cases}
        esac
    fi
    case $current in
        -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
        *) if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "$words" -- "$current"))
           else COMPREPLY=($(compgen -f -- "$current")); fi ;;
    esac
}}
complete -o filenames -F _gpucoord gpucoord
"""
ZSH = """\
#compdef gpucoord
# zsh completion for gpucoord: eval "$(gpucoord completion zsh)"
_gpucoord() {{
    local -a commands
    commands=({commands})
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $words[2] in
{cases}
    esac
}}
compdef _gpucoord gpucoord
"""


@command(
    "completion",
    "Print the completion of gpucoord for a shell.",
    arg("shell", "the shell that will read it", choices=SHELLS),
)
def completion(options: Namespace) -> int:
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[options.shell]())
    return 0


@command("man", "Print the manual page: gpucoord man | man -l -")
def man(_options: Namespace) -> int:
    sys.stdout.write("\n".join(man_page()) + "\n")
    return 0


def parsers() -> dict[str, ArgumentParser]:
    """The parser of each command that starts without Django, by name."""
    from gpucoord_site.cli.main import COMMANDS, declared

    made = {name: declared(name) for name in COMMANDS if name not in HEAVY}
    return {name: each.parser() for name, each in made.items() if isinstance(each, Command)}


def options(parser: ArgumentParser) -> Iterator[Action]:
    return (a for a in parser._actions if a.option_strings and a.help is not argparse.SUPPRESS)


def _names() -> dict[str, str]:
    from gpucoord_site.cli.main import COMMANDS

    return {name: text for name, (text, _) in COMMANDS.items()}


def bash() -> str:
    cases = [
        f'            {name}) words="{" ".join(_strings(parser))}" ;;'
        for name, parser in parsers().items()
    ]
    return BASH.format(commands=" ".join(_names()), cases="\n".join(cases))


def zsh() -> str:
    commands = " ".join(f"'{name}:{_quoted(text)}'" for name, text in _names().items())
    cases = [
        f"        {name}) _arguments {_zsh_arguments(parser)} ;;"
        for name, parser in parsers().items()
    ]
    return ZSH.format(commands=commands, cases="\n".join(cases))


def _zsh_arguments(parser: ArgumentParser) -> str:
    # The command's name is an argument too.
    words = ["'*:file:_files'"]
    for action in options(parser):
        takes = "" if action.nargs == 0 else f":{_quoted(str(action.metavar or action.dest))}:"
        about = _quoted(_help(action)).replace("[", "(").replace("]", ")")
        words += [f"'{name}[{about}]{takes}'" for name in action.option_strings]
    return " ".join(words)


def fish() -> str:
    lines = ["# fish completion for gpucoord: gpucoord completion fish | source"]
    for name, text in _names().items():
        lines.append(
            f"complete -c gpucoord -f -n __fish_use_subcommand -a {name} -d '{_quoted(text)}'"
        )
    for name, parser in parsers().items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for action in options(parser):
            long = [word[2:] for word in action.option_strings if word.startswith("--")]
            takes = "" if action.nargs == 0 else " -r"
            about = _quoted(_help(action))
            lines += [
                f"complete -c gpucoord {condition} -l {word}{takes} -d '{about}'" for word in long
            ]
    return "\n".join(lines) + "\n"


def _strings(parser: ArgumentParser) -> list[str]:
    return [word for action in options(parser) for word in action.option_strings]


def _help(action: Action) -> str:
    return (action.help or "").replace("%%", "%")


def _quoted(text: str) -> str:
    """For a text in single quotes, without colons, which zsh reads."""
    return text.replace("'", "’").replace(":", " -")


def man_page() -> Iterator[str]:
    """roff of gpucoord(1)."""
    from gpucoord_site import __version__

    yield f'.TH GPUCOORD 1 "" "gpucoord {__version__}" "User commands"'
    yield ".SH NAME"
    yield "gpucoord \\- keep a shared GPU server fair"
    yield ".SH SYNOPSIS"
    yield ".B gpucoord"
    yield "\\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]"
    yield ".SH COMMANDS"
    commands = parsers()
    for name, text in _names().items():
        if name not in commands:
            yield from (".TP", f".B {_roff(name)}", _roff(text))
            continue
        yield f".SS gpucoord {_roff(name)}"
        yield _roff(commands[name].description or text)
        for action in commands[name]._actions:
            yield from _man_action(action)
    yield ".SH ENVIRONMENT"
    yield from (".TP", ".B GPUCOORD_URL", "The address of the server.")
    yield from (".TP", ".B GPUCOORD_TOKEN", "A token for REST; on the server, none is needed.")
    yield ".SH EXIT STATUS"
    yield (
        "0: done; lists are 0 when they are empty. 1: a job was refused. 2: wrong options. "
        "124: a time limit. 125: gpucoord failed or refused. Others: of the job."
    )


def _man_action(action: Action) -> Iterator[str]:
    if action.help is argparse.SUPPRESS:
        return
    takes: Any = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    words = ", ".join(f"\\fB{_roff(word)}\\fR" for word in action.option_strings)
    argument = "" if action.nargs == 0 else f"\\fI{_roff(str(takes))}\\fR"
    yield from (".TP", " ".join(filter(None, (words, argument))), _roff(_help(action)))


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
