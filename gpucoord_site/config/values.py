"""The types of settings: what a text in the file or in a variable may be."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Collection, Mapping
from ipaddress import ip_network
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from msgspec import Meta, Struct, ValidationError, convert

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

NO_LIMITS = Meta()


class Rule(Struct, frozen=True):
    """The purpose of a setting, and the values of its type that it may have.

    check: returns the value to use; ValueError: the end of a sentence, "" = `advice`. advice: the
    same for a value that is not of the type; "" = in the words for the type.
    """

    about: str
    check: Callable[[Any], Any] | None = None
    is_secret: bool = False
    advice: str = ""
    limits: Meta = NO_LIMITS

    def advice_for(self, kind: Any) -> str:
        """The valid values in words: `it must be a whole number from 0 to 65535`."""
        if self.advice:
            return self.advice
        if kind is Path:
            return "it must be a folder"
        if get_origin(kind) is list:
            return "it must be names separated by commas"
        return f"it must be {accepted_values(kind, self.limits)}"


# Besides true, false, 1 and 0.
YES_AND_NO = {"yes": True, "on": True, "y": True, "t": True}
YES_AND_NO |= {"no": False, "off": False, "n": False, "f": False}


def read(hint: Any, value: object) -> Any:
    """A setting from the text of a variable, or from TOML. hint: its type and Rule.

    Raises ValueError with the end of a sentence.
    """
    rule: Rule = hint.__metadata__[0]
    kind = plain_type(get_args(hint)[0])
    try:
        plain = _of_text(kind, value, rule) if isinstance(value, str) else value
        made = convert(plain, Annotated[kind, rule.limits], strict=False, dec_hook=_path)
        if isinstance(made, float) and not isfinite(made):
            raise ValueError
        return rule.check(made) if rule.check else made
    except ValidationError:
        raise ValueError(rule.advice_for(kind)) from None
    except ValueError as error:
        raise ValueError(str(error) or rule.advice_for(kind)) from None


def _of_text(kind: Any, text: str, rule: Rule) -> object:
    """`a.org, b.org` is the list ["a.org", "b.org"]; tables are JSON."""
    if rule.is_secret:
        return text
    text = text.strip()
    if get_origin(kind) is list:
        return [name.strip() for name in text.split(",") if name.strip()]
    if get_origin(kind) is dict:
        try:
            return input_rules.parse_json(text)
        except ValueError:
            raise ValueError from None
    return YES_AND_NO.get(text.lower(), text) if kind is bool else text


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise ValueError


def folder(path: Path) -> Path:
    return path.expanduser().absolute()


BY_MODEL = 'it must name models with numbers above 0, such as {"RTX 9090": 900}'


def ranks(table: dict[str, float]) -> dict[str, float]:
    if all(rank > 0 for rank in table.values()):
        return table
    raise ValueError


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
    url = url.strip()
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


def variables(name: str) -> list[str]:
    """The environment variables that set it, the recommended one first."""
    own = f"GPUCOORD_{name.upper()}"
    return ["DATABASE_URL", own] if name == "database_url" else [own]


def unknown_variables(settings: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """A sentence for each unused GPUCOORD_ variable; most are misspelt."""
    names = {each for name in settings for each in variables(name)} | OTHER_VARIABLES
    strays = sorted(n for n in environ if n.startswith("GPUCOORD_") and n not in names)
    return [f"{name} is no setting{nearest(name, names) or '.'}" for name in strays]


def unknown(key: str, settings: Collection[str]) -> str:
    """A sentence about a key of the settings file."""
    return f"{key} in {config_file()} is no setting{nearest(key, settings) or '.'}"


def origin(name: str, environ: Mapping[str, str]) -> str | None:
    """The origin of a value in words (`GPUCOORD_PORT`, `port in FILE`); None = its default."""
    for variable in variables(name):
        if environ.get(variable):
            return variable
    path = config_file()
    return f"{name} in {path}" if path and name in read_toml(path) else None


def sentence(where: str, is_secret: bool, value: object, advice: str) -> str:
    """About an invalid value; a secret is not shown."""
    given = "has a value that can't be used" if is_secret else f"is {quoted(value)}"
    return f"{where} {given}: {advice}" + ("" if advice.endswith("?") else ".")


POLICIES: dict[str, type[Any]] = {
    **monitor.POLICIES,
    **scheduler.POLICIES,
    **reports.POLICIES,
}
PRESETS = (monitor.PROFILES, scheduler.PROFILES, reports.PROFILES)


def policy_problems(profile: str, tables: Mapping[str, object]) -> list[str]:
    """A sentence for each invalid table, key or value."""
    return table_problems(tables, POLICIES, profile_layer(profile, PRESETS))
