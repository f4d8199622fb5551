"""Policy: check a script's definition and arguments, and make its command without a shell."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from monitor.facts import input_rules
from scheduler.facts.scripts import GpuUse, Script, Word
from scheduler.submission.scripts import rules
from scheduler.submission.scripts.rules import (
    MOST_MISTAKES,
    MOST_STEPS,
    MOST_STEPS_OF_ITEMS,
    Mistake,
    TooManySteps,
    texts_of,
)

LARGEST_SCHEMA, LARGEST_ARGUMENTS = 20_000, 20_000
MOST_WORDS = 200
LONGEST_NUMBER = 1000
_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
# Placeholders that gpucoord fills in itself: its Python, and the folder of the shipped programs.
OWN_PLACES = frozenset({"python", "programs"})


def definition_mistakes(script: Script) -> list[Mistake]:
    """Why the script can't be used; [] = it can."""
    try:
        problem = _schema_problem(script.schema)
    except RecursionError:
        problem = "The schema is nested too deeply."
    if problem:
        return [("schema", problem)]
    names = _properties(script).keys()
    templates = {"argv": (script.argv, set(names)), "worker": (script.worker, _common(script))}
    for field, (words, places) in templates.items():
        is_used = bool(words) or (field == "argv" and not script.worker)
        if is_used and (problem := _words_problem(words, places | OWN_PLACES)):
            return [(field, problem)]
    if script.item_argument and script.item_argument not in names:
        return [("item_argument", f"{script.item_argument} is no property of the schema.")]
    return []


def _common(script: Script) -> set[str]:
    """Arguments that the items of a batch have in common. A worker gets items by its input."""
    return set(_properties(script)) - {script.item_argument}


def _words_problem(words: Sequence[Word], places: Set[str]) -> str:
    if problem := _list_problem(words):
        return problem
    unknown = sorted({name for word in words for name in _names(word)} - places)
    return f"{{{unknown[0]}}} is no property of the schema." if unknown else ""


def _schema_problem(schema: object) -> str:
    if not isinstance(schema, dict):
        return "Write a JSON object."
    if len(json.dumps(schema)) > LARGEST_SCHEMA:
        return f"The schema has more than {LARGEST_SCHEMA} characters."
    if schema.get("type", "object") != "object":
        return 'The arguments are an object: write "type": "object".'
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(map(_is_name, properties)):
        return "Names of properties have lower-case letters, digits and _."
    if any(not reference.startswith("#") for reference in texts_of(schema, "$ref", "$dynamicRef")):
        return "Only references inside the schema (#...) are possible."
    if "patternProperties" in json.dumps(schema):
        return "patternProperties can't be used."
    problems = map(rules.problem_of, texts_of(schema, "pattern"))
    return next(filter(None, problems), "") or rules.schema_problem(schema)


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text) is not None


def _list_problem(argv: Sequence[Word]) -> str:
    if not 1 <= len(argv) <= MOST_WORDS or not isinstance(argv[0], str):
        return f"Write a list of 1 to {MOST_WORDS} words; the first is the program."
    words: list[Any] = [part for word in argv for part in _parts(word)]
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        return "Each word is a text, or a list of texts."
    return ""


def _parts(word: Word) -> Sequence[str]:
    return word if isinstance(word, list | tuple) else [word]  # type: ignore[list-item]


def _names(word: Word) -> Iterator[str]:
    for text in _parts(word):
        yield from _PLACE.findall(text)


def _properties(script: Script) -> dict[str, Any]:
    return dict(script.schema.get("properties", {}))


def read_arguments(script: Script, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with defaults. Texts become numbers or lists where the schema has those."""
    properties = _properties(script)
    values = {name: _typed(value, properties.get(name)) for name, value in given.items()}
    defaults = {
        name: rule["default"]
        for name, rule in properties.items()
        if isinstance(rule, dict) and "default" in rule
    }
    return defaults | values


def _typed(value: Any, rule: Any) -> Any:
    """A text, as forms and the command line have it, in the type of the schema if it fits."""
    if not isinstance(value, str) or not isinstance(rule, dict):
        return value
    wanted = rule.get("type")
    if wanted == "array":
        return [line.strip() for line in value.splitlines() if line.strip()]
    if wanted in ("integer", "number", "boolean"):
        if len(value) > LONGEST_NUMBER:
            return value
        try:
            number = input_rules.parse_json(value.strip().lower())
        except ValueError:
            return value
        # 1e999 is read as infinity, which JSON does not have.
        return value if isinstance(number, float) and not math.isfinite(number) else number
    return value


def mistakes(script: Script, arguments: Mapping[str, Any]) -> list[Mistake]:
    """Problems of the arguments, by the name that the schema gives them."""
    try:
        if len(json.dumps(arguments, default=str, allow_nan=False)) > LARGEST_ARGUMENTS:
            return [("", f"The arguments have more than {LARGEST_ARGUMENTS} characters.")]
    except ValueError:
        return [("", "A number must be finite.")]
    except RecursionError:
        return [("", "The arguments are nested too deeply.")]
    known = _properties(script)
    strays = [
        (name, f"{script.name} has no such argument.") for name in set(arguments) - set(known)
    ]
    try:
        with rules.limited_to(MOST_STEPS):
            wrong = rules.mistakes(json.dumps(script.schema), dict(arguments))
    except TooManySteps:
        wrong = [("", f"The arguments take more than {MOST_STEPS} steps to check.")]
    return sorted(strays)[:MOST_MISTAKES] + wrong


def item_mistakes(script: Script, items: Sequence[str], most: int) -> list[tuple[int, str]]:
    """The first items of a batch that can't be the argument, each with its place and a sentence.

    Raises TooManySteps.
    """
    rule = _properties(script).get(script.item_argument, {})
    schema = json.dumps(script.schema)
    wrong: list[tuple[int, str]] = []
    with rules.limited_to(MOST_STEPS_OF_ITEMS):
        for place, item in enumerate(items):
            problems = rules.mistakes(schema, _typed(item, rule), of=rule)
            wrong += [(place, text) for _, text in problems[:1]]
            if len(wrong) == most:
                break
    return wrong


def command(script: Script, arguments: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
    """The program and its arguments. own: the values of OWN_PLACES."""
    values = {**arguments, **own}
    words: list[str] = []
    for word in script.argv:
        parts = _parts(word)
        if all(values.get(name) is not None for part in parts for name in _PLACE.findall(part)):
            words += [filled for part in parts for filled in _filled(part, values)]
    return words


def _filled(part: str, values: Mapping[str, Any]) -> list[str]:
    whole = _PLACE.fullmatch(part)
    if whole and isinstance(values[whole[1]], list):
        return [_text(value) for value in values[whole[1]]]
    return [_PLACE.sub(lambda match: _text(values[match[1]]), part)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def request(script: Script, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the script sets for its jobs and the request leaves out."""
    said = {
        "name": script.name,
        "gpu_memory": script.memory_bytes if script.gpu is not GpuUse.NO else None,
        "estimate": script.usual_s,
        "time_limit": script.time_limit_s,
    }
    missing = {name: value for name, value in said.items() if value and not given.get(name)}
    return missing | ({"gpus": 0} if script.gpu is GpuUse.NO else {})
