"""Says what is wrong with a setting: which one, what was given, what would be right."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gpucoord_site.config_file import config_file, read_toml
from monitor.policy.thresholds import nearest, shown

SECRETS = frozenset({"admin_password", "database_url"})
# Ours, but no settings: where the settings are, what `submit` talks to, what jobs and tests get.
OTHER_VARIABLES = frozenset(
    {
        "GPUCOORD_CONFIG",
        "GPUCOORD_URL",
        "GPUCOORD_TOKEN",
        "GPUCOORD_JOB_ID",
        "GPUCOORD_ATTEMPT",
        "GPUCOORD_NONCE",
        "GPUCOORD_ARRAY_INDEX",
        "GPUCOORD_YIELD_FILE",
        "GPUCOORD_CHECKPOINT_DIR",
        "GPUCOORD_GRACE_S",
        "GPUCOORD_LIFELINE",
        "GPUCOORD_TEST_REQUIRE",
        "GPUCOORD_KILL_TRIALS",
    }
)
KINDS = {int: "a whole number", float: "a number", bool: "true or false", Path: "a folder"}


def variables(model: type[BaseModel], field: str) -> list[str]:
    """The environment variables that set this field, the one to tell people first."""
    alias = model.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(a) for a in alias.choices if str(a).isupper()]
    return [f"GPUCOORD_{field.upper()}"]


def unknown_variables(model: type[BaseModel], environ: Mapping[str, str]) -> list[str]:
    """A sentence for each GPUCOORD_ variable that nothing reads: most are misspelt."""
    known = {name for field in model.model_fields for name in variables(model, field)}
    known |= OTHER_VARIABLES
    strays = sorted(n for n in environ if n.startswith("GPUCOORD_") and n not in known)
    return [f"{name} is no setting{nearest(name, known) or '.'}" for name in strays]


def origin(model: type[BaseModel], field: str, environ: Mapping[str, str]) -> str | None:
    """What set the field, in words (`GPUCOORD_PORT`, `port in FILE`); None = its default."""
    for name in variables(model, field):
        if environ.get(name):
            return name
    path = config_file()
    return f"{field} in {path}" if path and field in read_toml(path) else None


def describe(error: ValidationError, model: type[BaseModel], given: Mapping[str, Any]) -> list[str]:
    """One sentence for each bad value, without repeating one; secrets are not shown."""
    return list(dict.fromkeys(_sentence(dict(e), model, given) for e in error.errors()))


def _sentence(error: dict[str, Any], model: type[BaseModel], given: Mapping[str, Any]) -> str:
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{key} in {config_file()} is no setting{nearest(key, model.model_fields) or '.'}"
    field = key if key in model.model_fields else _field_of(key, model)
    name = f"--{field}" if field in given else (origin(model, field, os.environ) or field)
    secret = field in SECRETS
    value = "has a value that can't be used" if secret else f"is {shown(error['input'])}"
    own = error.get("ctx", {}).get("error")
    advice = str(own or f"it must be {wanted(model.model_fields[field])}")
    return f"{name} {value}: {advice}" + ("" if advice.endswith("?") else ".")


def _field_of(alias: str, model: type[BaseModel]) -> str:
    return next(f for f in model.model_fields if alias in variables(model, f))


def wanted(field: FieldInfo) -> str:
    """What a field takes, in words: `a whole number from 0 to 65535`."""
    kind = _plain(field.annotation)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is list:
        return "names separated by commas"
    return KINDS.get(kind, "text") + _bounds(field)


def _plain(annotation: Any) -> Any:
    """The type without `| None` and without Annotated."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _bounds(field: FieldInfo) -> str:
    low = _limit(field, annotated_types.Ge, "ge")
    above = _limit(field, annotated_types.Gt, "gt")
    high = _limit(field, annotated_types.Le, "le")
    shortest = _limit(field, annotated_types.MinLen, "min_length")
    longest = _limit(field, annotated_types.MaxLen, "max_length")
    if shortest is not None:
        return f" of 1 to {longest} characters" if longest else " that is not empty"
    if high is None:
        return "" if low is None else f" of at least {low}"
    return f" from {low} to {high}" if above is None else f" above {above} and at most {high}"


def _limit(field: FieldInfo, kind: type, attribute: str) -> Any:
    return next((getattr(m, attribute) for m in field.metadata if isinstance(m, kind)), None)
