"""Policy: check a script's definition and arguments, and make its command without a shell."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable

from scheduler.facts.scripts import GpuUse, Script, Word
from scheduler.scripts.policy import patterns

LARGEST_SCHEMA, LARGEST_ARGUMENTS = 20_000, 20_000
MOST_WORDS, MOST_MISTAKES = 200, 10
LONGEST_MESSAGE = 300
LONGEST_NUMBER = 1000
_QUOTED = re.compile(r"'(.+)' is a required property$")
_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
# Placeholders that gpucoord fills in itself: its Python, and the folder of the shipped programs.
OWN_PLACES = frozenset({"python", "programs"})
# A wrong argument: where it is ("" = the arguments as a whole), and a sentence.
Mistake = tuple[str, str]


def definition_mistakes(script: Script) -> list[Mistake]:
    """Why the script can't be used; [] = it can."""
    try:
        problem = _schema_problem(script.schema)
    except RecursionError:
        problem = "The schema is nested too deeply."
    if problem:
        return [("schema", problem)]
    if problem := _argv_problem(script.argv):
        return [("argv", problem)]
    names = _properties(script).keys()
    unknown = sorted({n for word in script.argv for n in _names(word)} - names - OWN_PLACES)
    if unknown:
        return [("argv", f"{{{unknown[0]}}} is no property of the schema.")]
    if script.item_argument and script.item_argument not in names:
        return [("item_argument", f"{script.item_argument} is no property of the schema.")]
    return []


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
    if any(not reference.startswith("#") for reference in _texts_of(schema, "$ref", "$dynamicRef")):
        return "Only references inside the schema (#...) are possible."
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"This is no JSON Schema: {error.message[:LONGEST_MESSAGE]}."
    if "patternProperties" in json.dumps(schema):
        return "patternProperties can't be used."
    problems = map(patterns.problem_of, _texts_of(schema, "pattern"))
    return next(filter(None, problems), "") or _reference_problem(schema)


def _reference_problem(schema: dict[str, Any]) -> str:
    """Follow all references at once: one may lead nowhere, or to itself."""
    validator = _Validator(schema)
    try:
        for reference in set(_texts_of(schema, "$ref", "$dynamicRef")):
            any(validator.evolve(schema={"$ref": reference}).iter_errors({}))
    except RecursionError:
        return "A reference leads to itself."
    except Unresolvable as error:
        return f"A reference leads nowhere: {str(error)[:LONGEST_MESSAGE]}."
    return ""


def _texts_of(value: object, *keywords: str) -> Iterator[str]:
    """The texts of these keywords anywhere in a schema."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in keywords and isinstance(inner, str):
                yield inner
            yield from _texts_of(inner, *keywords)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_of(inner, *keywords)


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text) is not None


def _argv_problem(argv: Sequence[Word]) -> str:
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
            number = json.loads(value.strip().lower())
        except (ValueError, RecursionError):
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
    validator = _validator(json.dumps(script.schema))
    return sorted(strays)[:MOST_MISTAKES] + _mistakes(validator, dict(arguments))


def take_too_long(script: Script, items: Sequence[str]) -> bool:
    """Whether the items together could take too long for the patterns of their argument."""
    rule = _properties(script).get(script.item_argument, {})
    # The argument may refer to a definition.
    texts = list(_texts_of([rule, script.schema.get("$defs")], "pattern"))
    ways = (patterns.ways(text, len(item)) for text in texts for item in items)
    return sum(ways) > patterns.MOST_WAYS_OF_ITEMS


def item_check(script: Script) -> Callable[[str], str]:
    """A function that names the problem of one item of a batch; "" = none."""
    rule = _properties(script).get(script.item_argument, {})
    # References lead to other parts of the whole schema.
    validator = _validator(json.dumps(script.schema)).evolve(schema=rule)

    def mistake(item: str) -> str:
        return next((text for _, text in _mistakes(validator, _typed(item, rule))), "")

    return mistake


def _mistakes(validator: Any, value: object) -> list[Mistake]:
    """The first mistakes only: a value may have thousands."""
    try:
        return sorted(map(_mistake, islice(validator.iter_errors(value), MOST_MISTAKES)))
    except (RecursionError, OverflowError):
        return [("", "A value is too large or nested too deeply to be checked.")]


def _pattern(
    validator: Any, pattern: str, value: object, _schema: object
) -> Iterator[ValidationError]:
    """The keyword `pattern`; a text that could take too long is refused."""
    if not validator.is_type(value, "string"):
        return
    text = str(value)
    if patterns.is_too_long(pattern, text):
        yield ValidationError(f"{len(text)} characters are too many for the pattern {pattern!r}")
    elif not re.search(pattern, text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _unique_items(
    validator: Any, is_wanted: object, value: object, _schema: object
) -> Iterator[ValidationError]:
    """The keyword `uniqueItems`. jsonschema compares each item with each other one."""
    if is_wanted and isinstance(value, list) and len(set(map(_same_text, value))) < len(value):
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


_Validator: Any = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"pattern": _pattern, "uniqueItems": _unique_items}
)


@lru_cache(maxsize=64)
def _validator(schema: str) -> Any:
    return _Validator(json.loads(schema))


def _mistake(error: ValidationError) -> Mistake:
    where = ".".join(str(step) for step in error.absolute_path)
    if error.validator == "required":
        # jsonschema reports each missing argument as an error of the whole object.
        missing = _QUOTED.match(error.message)
        name = missing[1] if missing else ""
        place = ".".join(part for part in (where, name) if part)
        return place, "This argument is required."
    return where, f"{error.message[:LONGEST_MESSAGE]}."


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
