"""Policy: check a script's definition and arguments, and make its command without a shell."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from math import inf, prod
from typing import TYPE_CHECKING, Any

from monitor.facts import input_rules
from scheduler.facts.scripts import GpuUse, Script, Word

# JSON Schemas of scripts, checked within a number of steps.
#
# References can double the work at each level, and so can values that are nested. Therefore each
# keyword costs steps, and a check that needs more of them than it has is given up.


# jsonschema is loaded with the first script: it would take a share of each start.
if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

# Patterns of a script's schema, matched so that no text of a user takes long.
#
# Python tries the ways in which a pattern can match one after the other, and their number can grow
# exponentially with the text. So their number is estimated first.

# About a fifth of a second.
MOST_WAYS = 10_000_000.0
# A pattern that takes too long for a text of this length cannot be used.
SHORT_TEXT = 40


def problem_of(pattern: str) -> str:
    """Why the pattern can't be used; "" = it can."""
    try:
        is_bounded = ways(pattern, SHORT_TEXT) <= MOST_WAYS
    except (re.error, RecursionError, OverflowError):
        return f"{pattern[:100]!r} is no regular expression."
    if is_bounded:
        return ""
    return (
        f"The pattern {pattern[:100]!r} can take very long on a short text."
        " Avoid repetitions inside of repetitions."
    )


def is_too_long(pattern: str, text: str) -> bool:
    """Whether matching the text could take too long."""
    return ways(pattern, len(text)) > MOST_WAYS


def ways(pattern: str, length: int) -> float:
    """An upper estimate of the ways that are tried on a text of this length. Raises re.error."""
    parts = _parsed(pattern)
    is_anchored = bool(parts) and str(parts[0][1]).startswith("AT_BEGINNING")
    return (1 if is_anchored else length + 1) * _of_all(parts, length)


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> Any:
    # The parser of the standard library has no public name.
    return list(re._parser.parse(pattern))  # type: ignore[attr-defined]


def _of_all(parts: Iterable[Any], length: int) -> float:
    return prod((_of_one(str(kind), value, length) for kind, value in parts), start=1.0)


def _of_one(kind: str, value: Any, length: int) -> float:
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, longest, body = int(value[0]), min(int(value[1]), length), value[2]
        return (max(0, longest - least) + 1) * _power(_of_all(body, length), longest)
    if kind == "BRANCH":
        return sum(_of_all(branch, length) for branch in value[1])
    if kind == "SUBPATTERN":
        return _of_all(value[-1], length)
    if kind in ("ASSERT", "ASSERT_NOT"):
        return _of_all(value[1], length)
    if kind == "ATOMIC_GROUP":
        return _of_all(value, length)
    if kind == "GROUPREF_EXISTS":
        return sum(_of_all(part, length) for part in value[1:] if part is not None)
    return 1.0


def _power(base: float, exponent: int) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return inf


MOST_MISTAKES, LONGEST_MESSAGE = 10, 300
# About half a second for the arguments of a job, one for the form of a schema, and two for all
# items of a batch.
MOST_STEPS, MOST_STEPS_OF_A_SCHEMA, MOST_STEPS_OF_ITEMS = 100_000, 200_000, 500_000
# One step takes as long as this many characters of a value, entries of a schema, ways of a pattern.
CHARACTERS, ENTRIES, WAYS = 64, 8, 100
# Steps to begin with a part of a schema.
OF_A_PART = 5
_REQUIRED = re.compile(r"'([^']+)' is a required property")
# A wrong argument: where it is ("" = the arguments as a whole), and a sentence.
Mistake = tuple[str, str]


class TooManySteps(Exception):
    """The check needs more steps than it has."""


class Steps:
    """The steps that a check has left."""

    def __init__(self, most: int) -> None:
        self._left = float(most)
        self._sizes: dict[int, int] = {}

    def spend(self, steps: float) -> None:
        """Raises TooManySteps."""
        self._left -= steps
        if self._left < 0:
            raise TooManySteps

    def size(self, value: object) -> int:
        """About the characters of a value that outlives the check: containers are measured once."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, dict | list):
            return value.bit_length() // 3 if isinstance(value, int) else 1
        if id(value) not in self._sizes:
            self.spend(1 + len(value) / ENTRIES)
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            self._sizes[id(value)] = len(inner) + sum(map(self.size, inner))
        return self._sizes[id(value)]


_current: ContextVar[Steps] = ContextVar("steps")


@contextmanager
def limited_to(most: int) -> Iterator[None]:
    """Checks in this block have so many steps together; one that needs more raises TooManySteps."""
    token = _current.set(Steps(most))
    try:
        yield
    finally:
        _current.reset(token)


def schema_problem(schema: dict[str, Any]) -> str:
    """Why this is no schema that can be used; "" = it can."""
    try:
        with limited_to(MOST_STEPS_OF_A_SCHEMA):
            problem = _dialect_problem(schema)
        with limited_to(MOST_STEPS):
            return problem or _reference_problem(schema)
    except TooManySteps:
        return (
            "The schema takes too many steps to check."
            " Shorten it, and avoid references to definitions with several references."
        )


def _dialect_problem(schema: dict[str, Any]) -> str:
    kind = _validator_class()
    error = next(kind(kind.META_SCHEMA).iter_errors(schema), None)
    return f"This is no JSON Schema: {error.message[:LONGEST_MESSAGE]}." if error else ""


def _reference_problem(schema: dict[str, Any]) -> str:
    """Follow all references at once: one may lead nowhere, or to itself."""
    from referencing.exceptions import Unresolvable

    try:
        validator = _of(schema)
        for reference in set(texts_of(schema, "$ref", "$dynamicRef")):
            deque(validator.evolve(schema={"$ref": reference}).iter_errors({}), maxlen=0)
    except RecursionError:
        return "A reference leads to itself."
    except Unresolvable as error:
        return f"A reference leads nowhere: {str(error)[:LONGEST_MESSAGE]}."
    return ""


def texts_of(value: object, *keywords: str) -> Iterator[str]:
    """The texts of these keywords anywhere in a schema."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in keywords and isinstance(inner, str):
                yield inner
            yield from texts_of(inner, *keywords)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner, *keywords)


def schema_mistakes(schema: str, value: object, *, of: object = None) -> list[Mistake]:
    """The first mistakes only: a value may have thousands. The schema is given as JSON.

    of: a part of the schema that the value is checked by. Raises TooManySteps.
    """
    try:
        validator = _cached(schema)
        if of is not None:
            # References lead to other parts of the whole schema.
            validator = validator.evolve(schema=of)
        return sorted(map(_mistake, islice(validator.iter_errors(value), MOST_MISTAKES)))
    except (RecursionError, OverflowError):
        return [("", "A value is too large or nested too deeply to be checked.")]


def _mistake(error: ValidationError) -> Mistake:
    where = ".".join(str(step) for step in error.absolute_path)
    if error.validator == "required":
        # jsonschema reports each missing argument as an error of the whole object.
        missing = _REQUIRED.match(error.message)
        name = missing[1] if missing else ""
        place = ".".join(part for part in (where, name) if part)
        return place, "This argument is required."
    return where, f"{error.message[:LONGEST_MESSAGE]}."


Check = Callable[[Any, Any, Any, Any], Any]


def _pattern(
    validator: Any, pattern: str, value: object, _schema: object
) -> Iterator[ValidationError]:
    """The keyword `pattern`; a text that could take too long is refused."""
    from jsonschema.exceptions import ValidationError

    if not validator.is_type(value, "string"):
        return
    text = str(value)
    if is_too_long(pattern, text):
        yield ValidationError(f"{len(text)} characters are too many for the pattern {pattern!r}")
        return
    _current.get().spend(ways(pattern, len(text)) / WAYS)
    if not re.search(pattern, text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _unique_items(
    validator: Any, is_wanted: object, value: object, _schema: object
) -> Iterator[ValidationError]:
    """The keyword `uniqueItems`. jsonschema compares each item with each other one."""
    from jsonschema.exceptions import ValidationError

    if not is_wanted or not isinstance(value, list):
        return
    steps = _current.get()
    steps.spend(steps.size(value) / ENTRIES)
    if len(set(map(_same_text, value))) < len(value):
        yield ValidationError(f"{value!r} has non-unique elements")


def _same_text(value: object) -> str:
    """The same for values that JSON Schema takes for equal, such as 1 and 1.0."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _with_whole_numbers(part) for name, part in value.items()}
    return [_with_whole_numbers(part) for part in value] if isinstance(value, list) else value


def _counted(keyword: str, check: Check) -> Check:
    """The check of a keyword at its price: a mistake may show the whole value."""
    compares = keyword in ("enum", "const")

    def counted(validator: Any, rule: Any, value: Any, schema: Any) -> Any:
        steps = _current.get()
        entries = len(rule) if isinstance(rule, dict | list) else 0
        if compares:
            entries += steps.size(rule) // ENTRIES
        steps.spend(1 + entries / ENTRIES + steps.size(value) / CHARACTERS)
        return check(validator, rule, value, schema)

    return counted


def _evolve(self: Any, **changes: Any) -> Any:
    """The validator of a part of the schema. jsonschema's own leaves this class for `$schema`."""
    _current.get().spend(OF_A_PART)
    return _validator_class()(
        schema=changes.get("schema", self.schema),
        _resolver=changes.get("_resolver", self._resolver),
        format_checker=self.format_checker,
    )


@cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator, validators

    checks: dict[str, Check] = {
        **Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items,
    }  # fmt: skip
    made: Any = validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator,
        {keyword: _counted(keyword, check) for keyword, check in checks.items()},
    )
    made.evolve = _evolve
    return made


def _of(schema: dict[str, Any]) -> Any:
    """Names in the schema are looked up once here, and not again for each reference."""
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    root = DRAFT202012.create_resource(schema)
    registry = EMPTY_REGISTRY.with_resource(root.id() or "", root).crawl()
    return _validator_class()(schema, _resolver=registry.resolver(root.id() or ""))


@lru_cache(maxsize=64)
def _cached(schema: str) -> Any:
    return _of(json.loads(schema))


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
    problems = map(problem_of, texts_of(schema, "pattern"))
    return next(filter(None, problems), "") or schema_problem(schema)


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
        with limited_to(MOST_STEPS):
            wrong = schema_mistakes(json.dumps(script.schema), dict(arguments))
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
    with limited_to(MOST_STEPS_OF_ITEMS):
        for place, item in enumerate(items):
            problems = schema_mistakes(schema, _typed(item, rule), of=rule)
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
