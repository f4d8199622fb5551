from __future__ import annotations

import ast
import logging
import re
from functools import cache
from pathlib import Path

from monitor.journal import facts as event_kinds

ROOT = Path(__file__).resolve().parents[2]
APPS = ("monitor", "scheduler", "reports", "gpucoord_site")
NAME = re.compile(r"[A-Z]+(_[A-Z]+)+")
# Functions that make an event or a note: its name is the first argument, or `kind`.
TABLE = ROOT / "docs/events.md"
MAKERS = {
    "events.add",
    "add",
    "add_attempt_event",
    "Note",
    "StartLine",
    "_note",
    "_tell",
    "_event",
    "_add_event",
    "_audit",
}


@cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    paths = (path for app in APPS for path in sorted((ROOT / app).rglob("*.py")))
    return tuple((path, node) for path in paths for node in ast.walk(ast.parse(path.read_text())))


@cache
def ours() -> tuple[ast.AST, ...]:
    return tuple(node for path, node in nodes() if not {"migrations", "demo"} & set(path.parts))


def called(call: ast.Call) -> str:
    """As it is written, where that is a plain name or a name in a module."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    found = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return {value for value in found if isinstance(value, str) and NAME.fullmatch(value)}


def of_call(call: ast.Call) -> set[str]:
    where = [k.value for k in call.keywords if k.arg == "kind"] + call.args[:1]
    return {name for node in where for name in names_in(node)}


def of_extra(made: ast.Dict) -> set[str]:
    """`{"kind": NAME, ...}`, as log lines carry it."""
    pairs = zip(made.keys, made.values, strict=True)
    return {
        name
        for key, value in pairs
        if isinstance(key, ast.Constant) and key.value == "kind"
        for name in names_in(value)
    }


@cache
def used() -> frozenset[str]:
    """Every name of an event or a log line that the code can make."""
    found: set[str] = set()
    for node in ours():
        if isinstance(node, ast.Call) and called(node) in MAKERS:
            found |= of_call(node)
        elif isinstance(node, ast.Dict):
            found |= of_extra(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_KINDS"):
            found |= names_in(node.value)
    return frozenset(found | of_ailments())


def of_ailments() -> set[str]:
    """Ailments that leave a GPU at work are events of their own, GPU_ and their code."""
    return {
        f"GPU_{node.args[0].value}"
        for node in ours()
        if isinstance(node, ast.Call)
        and called(node) == "Ailment"
        and isinstance(node.args[0], ast.Constant)
        and ast.unparse(node.args[1]) == "Condition.HEALTHY"
    }


def told() -> set[str]:
    """The names in the table of the reference."""
    rows = re.findall(r"^\| ((?:`[A-Z_]+` ?)+)\|", TABLE.read_text(), re.M)
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def test_every_name_of_an_event_or_log_line_is_in_the_table() -> None:
    assert sorted(used() - told()) == []


def test_every_name_in_the_table_is_made_somewhere() -> None:
    assert sorted(told() - used()) == []


def test_the_list_of_events_has_every_name_that_is_not_a_log_line_only() -> None:
    text = TABLE.read_text()
    rows = re.findall(r"^\| ((?:`[A-Z_]+` ?)+)\| (?!·)", text, re.M)

    assert {n for row in rows for n in re.findall(r"`([A-Z_]+)`", row)} == event_kinds.event_kinds()


def test_no_event_is_listed_twice() -> None:
    listed = [kind for kinds in event_kinds.EVENTS.values() for kind in kinds]

    assert sorted(listed) == sorted(set(listed))


def test_the_search_finds_names_of_each_kind() -> None:
    wanted = {
        "JOB_SUBMITTED",
        "GPU_LOST",
        "GPU_XID",
        "GPU_THROTTLED",
        "GPU_SPINNING",
        "DISK_SPACE_OK",
        "LOOP_FAILED",
        "TOKEN_REFUSED",
    }
    assert wanted <= used()


def test_every_line_of_ours_that_warns_has_a_name() -> None:
    telling = {f"logger.{level}" for level in ("info", "warning", "error", "exception")}
    unnamed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Call)
        and called(node) in telling
        and not any(k.arg == "extra" for k in node.keywords)
    ]

    assert unnamed == []


def test_no_field_has_a_name_that_logging_keeps_for_itself() -> None:
    """Such a line would raise where it should tell."""
    kept = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    fields = {
        key.value
        for node in ours()
        if isinstance(node, ast.Dict) and of_extra(node)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }

    assert "kind" in fields
    assert fields & kept == set()
