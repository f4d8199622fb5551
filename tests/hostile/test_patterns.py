"""Every regular expression of the project takes time in proportion to the length of its text.

All are collected from the source, and measured on texts made of their own pieces: repeated
characters, repeated beginnings, and long parts that almost match.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hostile
ROOT = Path(__file__).parents[2]
PACKAGES = ("gpucoord_site", "monitor", "scheduler", "reports")
METHODS = ("search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
SIZES = (1000, 4000)
# Less is the noise of the clock; a quadratic pattern takes ten times as long at the last size.
SHORT_S = 0.008
MOST_FACTOR = 3.0
# Patterns that are made when they are used, with one that stands for them.
MADE = {
    ("gpucoord_site/cli/script_files.py", "f'{MARK}(\\\\s|$)'"): r"#GPUCOORD(\s|$)",
    ("gpucoord_site/documentation/library.py", "f'(?<!\\\\w){re.escape(word)}'"): r"(?<!\w)quota",
    ("gpucoord_site/http/handler.py", "b'(?:^|;\\\\s*)' + name + b'=([^;]+)'"): (
        r"(?:^|;\s*)gpucoord_session=([^;]+)"
    ),
    ("monitor/incidents/alerts/senders.py", "re.escape(part)"): r"s3cret\ pass",
    (
        "scheduler/queue/planner/blockers.py",
        "f'(^|[.!?] ){name}(?= or an operator must)'",
    ): (r"(^|[.!?] )alice(?= or an operator must)"),
    (
        "scheduler/queue/planner/blockers.py",
        "f'(^|[.!?] ){name} holds it(?= until it is released)'",
    ): r"(^|[.!?] )alice holds it(?= until it is released)",
    ("scheduler/queue/planner/blockers.py", "f'(^|[.!?] ){possessive}'"): (
        r"(^|[.!?] )alice(?:'s|’s)"
    ),
    ("scheduler/queue/planner/blockers.py", "f'(?<![\\\\w@.+-]){possessive}'"): (
        r"(?<![\w@.+-])alice(?:'s|’s)"
    ),
    (
        "scheduler/queue/planner/blockers.py",
        "f'(?<![\\\\w.]){re.escape(value)}(?![\\\\w]|\\\\.\\\\d)'",
    ): r"(?<![\w.])40\ GiB(?![\w]|\.\d)",
}
# Patterns of users, which cost steps (see test_script_schemas.py).
OF_USERS = {("scheduler/submission/scripts/policy.py", "pattern")}


@dataclass(frozen=True, slots=True)
class Use:
    """A pattern and the way in which it is used."""

    place: str
    pattern: re.Pattern[Any]
    method: str


def _module(path: Path) -> Any:
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            if "re" in text and "migrations" not in path.parts:
                yield path, ast.parse(text)


def _patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, list | tuple | frozenset | set):
        for inner in value:
            yield from _patterns_in(inner)
    elif isinstance(value, dict):
        yield from _patterns_in([*value.keys(), *value.values()])


def _methods_by_name(sources: Iterable[tuple[Path, ast.Module]]) -> dict[str, set[str]]:
    """The methods that are called on each name, wherever it is imported."""
    methods: dict[str, set[str]] = {}
    for _, tree in sources:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                owner = node.value
                name = getattr(owner, "id", None) or getattr(owner, "attr", None)
                if name:
                    methods.setdefault(name, set()).add(node.attr)
    return methods


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        func = getattr(node, "func", None)
        is_re = isinstance(func, ast.Attribute) and getattr(func.value, "id", "") == "re"
        if isinstance(node, ast.Call) and is_re and func.attr in (*METHODS, "compile"):
            yield node, func.attr


def _flags(call: ast.Call) -> int:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    node = given.get("flags")
    return eval(ast.unparse(node), {"re": re}) if node else 0


@cache
def collected() -> tuple[list[Use], list[str]]:
    """All uses, and the calls whose pattern is neither written there nor listed above."""
    sources = list(_sources())
    methods, uses, unknown = _methods_by_name(sources), [], []
    for path, tree in sources:
        place = str(path.relative_to(ROOT))
        calls = list(_calls(tree))
        if not calls:
            continue
        module = _module(path)
        constants: set[str] = set()
        for name, value in vars(module).items():
            for pattern in _patterns_in(value):
                constants.add(str(pattern.pattern))
                uses += [
                    Use(f"{place}: {name}", pattern, method)
                    for method in methods.get(name, {"search", "match", "fullmatch"})
                ]
        for call, method in calls:
            text = ast.unparse(call.args[0])
            if (place, text) in OF_USERS:
                continue
            pattern_text = MADE.get((place, text)) or _value_of(call.args[0], module)
            if pattern_text is None:
                unknown.append(f"{place}:{call.lineno}: {text}")
            elif method != "compile":
                flags = _flags(call) | _positional_flags(call, method)
                pattern = re.compile(pattern_text, flags)
                uses.append(Use(f"{place}:{call.lineno}", pattern, method))
            elif str(pattern_text) not in constants:
                pattern = re.compile(pattern_text, _flags(call) | _positional_flags(call, method))
                uses.append(Use(f"{place}:{call.lineno}", pattern, "search"))
    return uses, unknown


def _positional_flags(call: ast.Call, method: str) -> int:
    place = {"compile": 1, "sub": 4, "subn": 4}.get(method, 2)
    node = call.args[place] if len(call.args) > place and method != "split" else None
    return int(eval(ast.unparse(node), {"re": re})) if node is not None else 0


def _value_of(node: ast.expr, module: Any) -> Any:
    """The text of a pattern that is made of constants; None: of anything else."""
    try:
        value = eval(ast.unparse(node), dict(vars(module)))
    except Exception:
        return None
    return value if isinstance(value, str | bytes) else None


def _samples(parts: Any) -> list[str]:
    """A text for each part of a parsed pattern, in order."""
    return [_sample(str(kind), value) for kind, value in parts]


def _sample(kind: str, value: Any) -> str:
    if kind in ("LITERAL", "NOT_LITERAL"):
        return chr(value) if kind == "LITERAL" else ("b" if value == ord("a") else "a")
    if kind == "ANY":
        return "a"
    if kind == "IN":
        return _of_class(value)
    if kind.endswith("_REPEAT"):
        return "".join(_samples(value[2])) * max(1, min(int(value[0]), 40))
    if kind == "SUBPATTERN":
        return "".join(_samples(value[-1]))
    if kind == "ATOMIC_GROUP":
        return "".join(_samples(value))
    if kind == "BRANCH":
        return "".join(_samples(value[1][0]))
    if kind == "ASSERT" and value[0] > 0:
        return "".join(_samples(value[1]))
    return ""


CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}


def _of_class(items: Any) -> str:
    kind, value = str(items[0][0]), items[0][1]
    if kind == "NEGATE":
        excluded = re.compile("[" + "".join(map(_excluded, items[1:])) + "]")
        return next(c for c in "a1 -/:.\x00" if not excluded.match(c))
    if kind == "LITERAL":
        return chr(value)
    return chr(value[0]) if kind == "RANGE" else CATEGORIES.get(str(value), "-")


def _excluded(item: Any) -> str:
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        return re.escape(chr(value))
    if kind == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}[str(value)]


def _characters(parts: Any) -> Iterator[str]:
    """A character for each class and literal anywhere in the pattern."""
    for kind, value in parts:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            yield _sample(name, value)
        elif name.endswith("_REPEAT"):
            yield from _characters(value[2])
        elif name == "SUBPATTERN":
            yield from _characters(value[-1])
        elif name == "BRANCH":
            for branch in value[1]:
                yield from _characters(branch)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from _characters(value[1])


def pieces(pattern: str) -> list[tuple[str, str, str]]:
    """Texts as (beginning, part that is repeated, end)."""
    parts = list(re._parser.parse(pattern))  # type: ignore[attr-defined]
    texts = _samples(parts)
    begins = ["".join(texts[:count]) for count in range(len(texts) + 1)]
    characters = list(dict.fromkeys([*_characters(parts), "a", "1", " ", "\n", "\t"]))[:14]
    repeated = [text for text in dict.fromkeys([*begins, *texts, *characters]) if text][:24]
    found = [("", text, end) for text in repeated for end in ("", "\x00")]
    found += [(begin, c, "\x00") for begin in dict.fromkeys(begins) if begin for c in characters]
    # Repetitions inside of a group, which the sample of the whole group has only once.
    found += [("", one + two, "\x00") for one in characters[:4] for two in characters[:4]]
    return found


def seconds(use: Use, text: str | bytes) -> float:
    call: Callable[[], Any] = lambda: _apply(use, text)  # noqa: E731
    began = time.thread_time()
    call()
    return time.thread_time() - began


def _apply(use: Use, text: Any) -> None:
    if use.method in ("sub", "subn"):
        use.pattern.sub("" if isinstance(text, str) else b"", text)
    elif use.method == "finditer":
        for _ in use.pattern.finditer(text):
            pass
    else:
        getattr(use.pattern, use.method)(text)


def factor(use: Use, piece: tuple[str, str, str]) -> tuple[float, int]:
    """How much longer twice the text takes, and from which size on; 1 if it takes no time at all.

    From two doublings, and measured again before it is believed: other programs disturb the clock.
    """
    for size in SIZES:
        once, long = (_text(use, piece, count) for count in (size, 4 * size))
        grown = MOST_FACTOR + 1
        for _ in range(3):
            if grown > MOST_FACTOR and seconds(use, long) > SHORT_S:
                short_s, long_s = (min(seconds(use, t) for _ in range(3)) for t in (once, long))
                grown = sqrt(long_s / max(short_s, 1e-6)) if long_s > SHORT_S else 1.0
            else:
                break
        else:
            if grown > MOST_FACTOR:
                return grown, size
    return 1.0, 0


def _text(use: Use, piece: tuple[str, str, str], size: int) -> str | bytes:
    begin, repeated, end = piece
    text = begin + repeated * (size // len(repeated)) + end
    return text.encode("latin-1", "replace") if isinstance(use.pattern.pattern, bytes) else text


def slow(use: Use) -> str:
    """The first piece on which the time grows faster than the text; "" = none."""
    source = use.pattern.pattern
    text = source.decode("latin-1") if isinstance(source, bytes) else source
    for piece in pieces(text):
        grown, size = factor(use, piece)
        if grown > MOST_FACTOR:
            return f"{use.method} {text!r}: twice as much of {piece!r} takes {grown:.1f}x at {size}"
    return ""


def test_every_pattern_is_written_in_the_source_or_listed() -> None:
    uses, unknown = collected()

    assert unknown == []
    assert len({use.pattern.pattern for use in uses}) > 90


@pytest.mark.parametrize("pattern", [r"[a-z]+://", r"x.*y.*z"])
def test_patterns_that_take_more_than_in_proportion_are_recognised(pattern: str) -> None:
    assert slow(Use("here", re.compile(pattern), "search"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", PACKAGES)
def test_every_pattern_takes_time_in_proportion_to_its_text(package: str) -> None:
    uses = [use for use in collected()[0] if use.place.startswith(package)]

    assert [f"{use.place}: {problem}" for use in uses if (problem := slow(use))] == []
