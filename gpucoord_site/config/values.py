"""The types of settings: what a text in the file or in a variable may be."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, get_origin
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from pydantic import AliasChoices, BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import NoDecode

from gpucoord_site.config.file import config_file, read_toml
from monitor import catalogue as monitor
from monitor.facts import input_rules
from monitor.owners.policy import parse_rule
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


def _names(value: object) -> object:
    """`a.org, b.org` in a variable is the list ["a.org", "b.org"]."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def zone(name: str) -> str:
    zones = available_timezones()
    if name not in zones:
        hint = nearest(name, zones)
        raise ValueError(f"it must be a time zone such as Europe/Berlin or UTC{hint}")
    return name


def host_name(name: str) -> str:
    """It is in addresses of pages, log lines and options, where "any" has a meaning."""
    if name == "any":
        raise ValueError("it must be another name: --host any means every host")
    if not name.isprintable() or {".", ".."} & set(name.split("/")):
        raise ValueError("it must be a name without control characters, and not . or ..")
    return name


def networks(names: list[str]) -> list[str]:
    for name in names:
        try:
            ip_network(name, strict=False)
        except ValueError:
            raise ValueError(
                f'"{name}" must be an address or network such as 10.0.0.5 or 10.0.0.0/8'
            ) from None
    return names


def origins(names: list[str]) -> list[str]:
    """As browsers send them: scheme, host and, unless it is the usual one, port."""
    for name in names:
        parts = urlsplit(name)
        is_origin = parts.scheme in ("http", "https") and parts.hostname
        if name != "*" and not (is_origin and name == f"{parts.scheme}://{parts.netloc.lower()}"):
            raise ValueError(f'"{name}" must be an origin such as https://chat.example.org, or *')
    return names


def ldap(url: str) -> str:
    if url.startswith(("ldap://", "ldaps://")):
        return url
    raise ValueError("it must look like ldaps://HOST")


def ldap_filter(text: str) -> str:
    if (
        text.startswith("(")
        and text.endswith(")")
        and text.count("%(user)s") == text.count("%") > 0
    ):
        return text
    raise ValueError("it must be a filter with the name as %(user)s, such as (uid=%(user)s)")


def local_accounts(text: str) -> str:
    parse_rule(text)
    return text


def database(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and parts.path.strip("/"):
        return url
    if parts.scheme in {"postgres", "postgresql"} and parts.path.strip("/"):
        try:
            parts.port  # noqa: B018 - urlsplit only looks at the port when it is asked for
        except ValueError:
            raise ValueError("the port in it must be a number up to 65535") from None
        return url
    raise ValueError("it must look like postgresql://USER:PASSWORD@HOST:5432/NAME")


Text = Annotated[str, BeforeValidator(lambda v: v.strip() if isinstance(v, str) else v)]


def _ranks(value: object) -> dict[str, float]:
    """`{"RTX 9090": 900}`: a table in the file, JSON in a variable."""
    try:
        table: Any = input_rules.parse_json(value) if isinstance(value, str) else value
        ranks = {str(model): float(rank) for model, rank in dict(table).items()}
        if all(rank > 0 for rank in ranks.values()):
            return ranks
    except (TypeError, ValueError):
        pass
    raise ValueError('it must name models with numbers above 0, such as {"RTX 9090": 900}')


def _tables(value: object) -> dict[str, Any]:
    """`{"hogs": {…}}`: tables in the file, JSON in a variable."""
    try:
        tables: Any = input_rules.parse_json(value) if isinstance(value, str) else value
    except ValueError:
        tables = None
    if isinstance(tables, dict):
        return tables
    raise ValueError('it must name policies with their thresholds, such as {"hogs": {…}}')


Ranks = Annotated[dict[str, float], NoDecode, BeforeValidator(_ranks)]
Tables = Annotated[dict[str, Any], NoDecode, BeforeValidator(_tables)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_names)]


# The names and addresses of this host, so that they need no setting.


LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


def own_names(listen_on: str) -> list[str]:
    """Accepted Host headers: loopback, and this host's names if it listens on more."""
    if is_loopback(listen_on):
        return LOOPBACK
    wide = listen_on in {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound
    own = [socket.gethostname(), *_addresses()] if wide else [_in_url(listen_on)]
    return list(dict.fromkeys([*LOOPBACK, *own]))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _addresses() -> list[str]:
    """The addresses from which this host would reach others; nothing is sent."""
    names = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                names.append(_in_url(str(probe.getsockname()[0])))
        except OSError:
            continue
    return names


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


# Problems of settings and thresholds: which one, the given value, and what is allowed.


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
