"""The report of `gpucoord check`: one line for each finding, with a remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

from monitor.facts.input_rules import escaped


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. todo: the remedy."""

    topic: str
    level: Level
    text: str
    todo: str = ""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, Level.OK, text)


def warn(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(topic, Level.WARN, text, todo)


def fail(topic: str, text: str, todo: str = "") -> Finding:
    return Finding(topic, Level.FAIL, text, todo)


def worst(findings: Iterable[Finding]) -> Level:
    order = list(Level)
    return max((f.level for f in findings), key=order.index, default=Level.OK)


def as_text(title: str, findings: list[Finding]) -> Iterator[str]:
    """The report for a terminal, line by line."""
    width = max(len(f.topic) for f in findings)
    yield title
    yield ""
    for finding in findings:
        yield f"  {finding.level:<4}  {finding.topic:<{width}}  {escaped(finding.text)}"
        if finding.todo:
            yield f"        {'':<{width}}  → {escaped(finding.todo)}"
    yield ""
    counts = {level: sum(f.level is level for f in findings) for level in Level}
    yield f"{counts[Level.OK]} ok, {counts[Level.WARN]} to know, {counts[Level.FAIL]} to mend"


def as_json(title: str, findings: list[Finding]) -> str:
    body = {
        "gpucoord": title,
        "status": worst(findings),
        "findings": [asdict(f) for f in findings],
    }
    return json.dumps(body, indent=2, ensure_ascii=False)
