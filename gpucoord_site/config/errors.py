"""Problems of settings and thresholds: which one, the given value, and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gpucoord_site.config.file import config_file, read_toml
from monitor import catalogue as monitor
from monitor.thresholds.policy import (
    accepted_values,
    nearest,
    plain_type,
    profile_layer,
    quoted,
    table_problems,
)
from reports import catalogue as reports
from scheduler import catalogue as scheduler

SECRETS = frozenset(
    {"admin_password", "database_url", "join_token", "ldap_bind_password", "oidc_client_secret"}
)
# Ours, but no settings: where the settings are, what `submit` talks to, what jobs and tests get.
OTHER_VARIABLES = frozenset(
    {
        "GPUCOORD_CONFIG",
        "GPUCOORD_URL",
        "GPUCOORD_TOKEN",
        "GPUCOORD_SERVICE_ACCOUNT",
        "GPUCOORD_JOB_ID",
        "GPUCOORD_ATTEMPT",
        "GPUCOORD_NONCE",
        "GPUCOORD_ARRAY_INDEX",
        "GPUCOORD_PORTS",
        "GPUCOORD_YIELD_FILE",
        "GPUCOORD_CHECKPOINT_DIR",
        "GPUCOORD_ITEM",
        "GPUCOORD_ITEM_INDEX",
        "GPUCOORD_PROGRESS_FILE",
        "GPUCOORD_RESULT_FILE",
        "GPUCOORD_GRACE_S",
        "GPUCOORD_LIFELINE",
        "GPUCOORD_TEST_REQUIRE",
        "GPUCOORD_TEST_AWAY_S",
        "GPUCOORD_KILL_TRIALS",
    }
)


def variables(model: type[BaseModel], field: str) -> list[str]:
    """The environment variables that set this field, the recommended one first."""
    alias = model.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(a) for a in alias.choices if str(a).isupper()]
    return [f"GPUCOORD_{field.upper()}"]


def unknown_variables(model: type[BaseModel], environ: Mapping[str, str]) -> list[str]:
    """A sentence for each unused GPUCOORD_ variable; most are misspelt."""
    names = {name for field in model.model_fields for name in variables(model, field)}
    names |= OTHER_VARIABLES
    strays = sorted(n for n in environ if n.startswith("GPUCOORD_") and n not in names)
    return [f"{name} is no setting{nearest(name, names) or '.'}" for name in strays]


def origin(model: type[BaseModel], field: str, environ: Mapping[str, str]) -> str | None:
    """The origin of a value in words (`GPUCOORD_PORT`, `port in FILE`); None = its default."""
    for name in variables(model, field):
        if environ.get(name):
            return name
    path = config_file()
    return f"{field} in {path}" if path and field in read_toml(path) else None


def describe(error: ValidationError, model: type[BaseModel], value: Mapping[str, Any]) -> list[str]:
    """One sentence for each invalid value, each once; secrets are not shown."""
    return list(dict.fromkeys(_sentence(dict(e), model, value) for e in error.errors()))


def _sentence(error: dict[str, Any], model: type[BaseModel], entered: Mapping[str, Any]) -> str:
    if not error["loc"]:
        # About several settings.
        return f"{error['ctx']['error']}."
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{key} in {config_file()} is no setting{nearest(key, model.model_fields) or '.'}"
    field = key if key in model.model_fields else _field_of(key, model)
    name = f"--{field}" if field in entered else (origin(model, field, os.environ) or field)
    secret = field in SECRETS
    value = "has a value that can't be used" if secret else f"is {quoted(error['input'])}"
    own = error.get("ctx", {}).get("error")
    advice = str(own or f"it must be {wanted(model.model_fields[field])}")
    return f"{name} {value}: {advice}" + ("" if advice.endswith("?") else ".")


def _field_of(alias: str, model: type[BaseModel]) -> str:
    return next(f for f in model.model_fields if alias in variables(model, f))


def wanted(field: FieldInfo) -> str:
    """The valid values of a setting, in words: `a whole number from 0 to 65535`."""
    kind = plain_type(field.annotation)
    if kind is Path:
        return "a folder"
    return "names separated by commas" if get_origin(kind) is list else accepted_values(field)


POLICIES: dict[str, type[Any]] = {
    **monitor.POLICIES,
    **scheduler.POLICIES,
    **reports.POLICIES,
}
PRESETS = (monitor.PROFILES, scheduler.PROFILES, reports.PROFILES)


def policy_problems(profile: str, tables: Mapping[str, object]) -> list[str]:
    """A sentence for each invalid table, key or value."""
    return table_problems(tables, POLICIES, profile_layer(profile, PRESETS))
