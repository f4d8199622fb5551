"""Typed settings from the environment and one TOML file; every bad value is named.

Precedence: environment, then `gpucoord.toml`, then the defaults here.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ProbeName = Literal["nvml", "simulated", "none"]


class ConfigError(Exception):
    """A setting is wrong; the message names each one and what would be right."""


def default_data_folder() -> Path:
    """Where gpucoord keeps everything: /var/lib for root, the XDG data folder for people."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpucoord")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "gpucoord"


def config_file() -> Path | None:
    """The TOML file in use: GPUCOORD_CONFIG, ./gpucoord.toml, the data folder's, /etc/gpucoord.toml."""
    named = os.environ.get("GPUCOORD_CONFIG")
    if named:
        return Path(named)
    data = os.environ.get("GPUCOORD_DATA")
    folder = Path(data) if data else default_data_folder()
    for path in (Path("gpucoord.toml"), folder / "gpucoord.toml", Path("/etc/gpucoord.toml")):
        if path.is_file():
            return path
    return None


class Config(BaseSettings):
    """Every setting with its default; field names are the TOML keys, GPUCOORD_<NAME> the variables."""

    model_config = SettingsConfigDict(env_prefix="GPUCOORD_", extra="forbid", frozen=True)

    data: Path = Field(default_factory=default_data_folder)
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    allowed_hosts: Annotated[list[str], NoDecode] = Field(default_factory=list)
    https: bool = False
    debug: bool = False
    node: str = Field(default_factory=socket.gethostname, min_length=1, max_length=100)
    time_zone: str = "UTC"

    probe: ProbeName | None = None
    require_nvml: bool = False
    simulated_gpus: int = Field(8, ge=1, le=1024)
    simulated_seed: int = 1

    admin_user: str = Field("admin", min_length=1, max_length=150)
    admin_password: str | None = Field(None, min_length=1, repr=False)
    database_url: str | None = Field(
        None, validation_alias=AliasChoices("DATABASE_URL", "database_url"), repr=False
    )

    raw_hours: float = Field(2, gt=0, le=48)
    memory_margin_mib: int = Field(256, ge=0)
    cancel_grace_s: float = Field(10, ge=0, le=3600)
    run_as: Literal["auto", "service"] = "auto"

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
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, path)) if path else sources


def load_config(**overrides: Any) -> Config:
    """Read the settings, or raise ConfigError naming every bad one."""
    try:
        return Config(**overrides)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError("Settings that can't be used:\n" + "\n".join(lines)) from None
