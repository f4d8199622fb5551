"""Typed settings from the environment and one TOML file; every bad value is named.

Precedence: the command line, the environment, `gpucoord.toml`, the defaults here.
An empty variable counts as not set.
"""

from __future__ import annotations

import json
import os
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gpucoord_site.config_file import ConfigError, config_file, default_data_folder, read_toml
from gpucoord_site.config_policies import policy_problems
from gpucoord_site.config_problems import describe, origin, unknown_variables
from monitor.policy.thresholds import nearest

__all__ = ["Config", "ConfigError", "load_config"]

ProbeName = Literal["nvml", "simulated", "none"]
Profile = Literal["desktop", "server", "coordinator"]


def _names(value: object) -> object:
    """`a.org, b.org` in a variable is the list ["a.org", "b.org"]."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _zone(name: str) -> str:
    zones = available_timezones()
    if name not in zones:
        hint = nearest(name, zones)
        raise ValueError(f"it must be a time zone such as Europe/Berlin or UTC{hint}")
    return name


def _networks(names: list[str]) -> list[str]:
    for name in names:
        try:
            ip_network(name, strict=False)
        except ValueError:
            raise ValueError(
                f'"{name}" must be an address or network such as 10.0.0.5 or 10.0.0.0/8'
            ) from None
    return names


def _database(url: str) -> str:
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
        table: Any = json.loads(value) if isinstance(value, str) else value
        ranks = {str(model): float(rank) for model, rank in dict(table).items()}
        if all(rank > 0 for rank in ranks.values()):
            return ranks
    except (TypeError, ValueError):
        pass
    raise ValueError('it must name models with numbers above 0, such as {"RTX 9090": 900}')


def _tables(value: object) -> dict[str, Any]:
    """`{"hogs": {…}}`: tables in the file, JSON in a variable."""
    try:
        tables: Any = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        tables = None
    if isinstance(tables, dict):
        return tables
    raise ValueError('it must name policies with their thresholds, such as {"hogs": {…}}')


Ranks = Annotated[dict[str, float], NoDecode, BeforeValidator(_ranks)]
Tables = Annotated[dict[str, Any], NoDecode, BeforeValidator(_tables)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_names)]


class Config(BaseSettings):
    """Every setting; field names are the TOML keys, GPUCOORD_<NAME> the variables."""

    model_config = SettingsConfigDict(
        env_prefix="GPUCOORD_", env_ignore_empty=True, extra="forbid", frozen=True
    )

    data: Annotated[Path, AfterValidator(lambda p: p.expanduser().absolute())] = Field(
        default_factory=default_data_folder,
        description="The one folder for everything: database, logs of jobs, secret key.",
    )
    host: Text = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    allowed_hosts: Names = Field(
        default_factory=list, description="Names that people may use in the address bar."
    )
    https: bool = Field(
        False,
        description="A proxy in front serves HTTPS: secure cookies, HSTS, X-Forwarded-Proto.",
    )
    metrics_allow: Annotated[Names, AfterValidator(_networks)] = Field(
        default_factory=lambda: ["127.0.0.1", "::1"],
        description="Addresses and networks that may read `/metrics` without a token.",
    )
    debug: bool = Field(False, description="Error pages with source code: never in public.")
    log: Literal["text", "json"] = Field(
        "text", description="Log lines: text for people, json for machines."
    )
    node: Text = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=100,
        description="This host's name on pages and in rows.",
    )
    time_zone: Annotated[Text, AfterValidator(_zone)] = Field(
        "UTC", description="Zone in which times are shown."
    )

    profile: Profile = Field(
        "server", description="What the machine is for: desktop, server or coordinator."
    )
    policy: Tables = Field(
        default_factory=dict,
        description="Thresholds unlike the profile's: in TOML a table each, in a variable JSON.",
    )

    probe: ProbeName | None = Field(
        None,
        description="Reads the GPUs: nvml, simulated or none; not set: nvml where a driver is.",
    )
    require_nvml: bool = Field(
        False, description="Refuse to start when the NVIDIA driver can't be read."
    )
    simulated_gpus: int = Field(
        8, ge=1, le=1024, description="GPUs of the simulated server (probe = simulated)."
    )
    simulated_processes: int = Field(
        0, ge=0, le=10_000, description="Processes there; 0 = as many as the scenario has."
    )
    simulated_seed: int = Field(1, description="Which simulated scenario is played.")

    admin_user: Text = Field(
        "admin", min_length=1, max_length=150, description="Name of the first administrator."
    )
    admin_password: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="Password of the first administrator; not set: a random one, printed once.",
    )
    database_url: Annotated[Text, AfterValidator(_database)] | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL", "GPUCOORD_DATABASE_URL", "database_url"),
        repr=False,
        description="PostgreSQL instead of SQLite: postgresql://USER:PASSWORD@HOST:5432/NAME.",
    )

    raw_hours: float = Field(
        2, gt=0, le=48, allow_inf_nan=False, description="Hours for which every second is kept."
    )
    minute_days: float = Field(
        90, ge=1, le=3650, allow_inf_nan=False, description="Days for which every minute is kept."
    )
    hour_days: float = Field(
        730, ge=1, le=7300, allow_inf_nan=False, description="Days for which every hour is kept."
    )
    memory_margin_mib: int = Field(
        256, ge=0, description="GPU memory (MiB) that planning leaves free on each GPU."
    )
    gpu_power: Ranks = Field(
        default_factory=dict,
        description='Ranks of further models, in TOML {"RTX 9090" = 900}, in a variable as JSON.',
    )
    cpus: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="CPUs to plan with, if fewer than there are."
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Memory of the host (GiB) to plan with, if less than there is.",
    )
    cpu_jobs: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 2),
        ge=1,
        description="Jobs without a GPU that may run at once; not set: as many as CPUs.",
    )
    cancel_grace_s: float = Field(
        10, ge=0, le=3600, allow_inf_nan=False, description="Seconds from SIGTERM to SIGKILL."
    )
    checkpoints: Annotated[Path, AfterValidator(lambda p: p.expanduser().absolute())] | None = (
        Field(
            None,
            description="Folder for what jobs save between their attempts; not set: by the data.",
        )
    )
    run_as: Literal["auto", "service"] = Field(
        "auto",
        description="As whom root runs jobs: auto (the owner's account, else nobody) or service.",
    )

    lock_folder: Path | None = Field(
        None,
        description="Folder of the lock files gpu.lock, gpu0.lock, …; not set: /tmp, and with"
        " simulated GPUs the data folder.",
    )

    @property
    def locks(self) -> Path:
        """Where the GPUs' lock files are."""
        if self.lock_folder is not None:
            return self.lock_folder
        # Simulated GPUs are nobody else's.
        return self.data if self.probe == "simulated" else Path("/tmp")  # noqa: S108

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = config_file()
        values = read_toml(path) if path else {}
        return (init_settings, env_settings, InitSettingsSource(settings_cls, values))


def load_config(**overrides: Any) -> Config:
    """Read the settings, or raise ConfigError naming every bad one."""
    problems = unknown_variables(Config, os.environ)
    try:
        config = Config(**overrides)
    except ValidationError as error:
        problems += describe(error, Config, overrides)
    else:
        wrong = policy_problems(config.profile, config.policy)
        problems += [f"{origin(Config, 'policy', os.environ)}: {text}" for text in wrong]
    if problems:
        raise ConfigError("\n".join(problems))
    return config
