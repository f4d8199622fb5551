"""Typed settings from the environment and one TOML file; every bad value is named.

Precedence: the command line, the environment, `gpucoord.toml`, the defaults here.
An empty variable counts as not set.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gpucoord_site.config import values
from gpucoord_site.config.extensions import ROOMS, known
from gpucoord_site.config.file import ConfigError, config_file, default_data_folder, read_toml
from gpucoord_site.config.values import (
    Names,
    Ranks,
    Tables,
    Text,
    describe,
    origin,
    policy_problems,
    unknown_variables,
)
from monitor.facts.accounts import LocalRule
from monitor.owners.policy import default_rule, parse_rule

__all__ = ["Config", "ConfigError", "load_config"]

THIS_MACHINE = ["127.0.0.1", "::1"]
ProbeName = Literal["nvml", "simulated", "none"]
Profile = Literal["desktop", "server", "coordinator"]


class Config(BaseSettings):
    """Every setting; field names are the TOML keys, GPUCOORD_<NAME> the variables."""

    model_config = SettingsConfigDict(
        env_prefix="GPUCOORD_", env_ignore_empty=True, extra="forbid", frozen=True
    )

    data: Annotated[Path, AfterValidator(lambda p: p.expanduser().absolute())] = Field(
        default_factory=default_data_folder,
        description="Data folder: database, logs of jobs, secret key.",
    )
    host: Text = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    models_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the OpenAI-compatible endpoint for language models; not set: the"
        " page's port + 1; 0 takes a free one. It is opened once there is a model service.",
    )
    models_cors_origins: Annotated[Names, AfterValidator(values.origins)] = Field(
        default_factory=list,
        description="Origins of web pages that may use the endpoint for language models from a"
        ' browser (CORS), such as "https://chat.example.org"; "*" = all.',
    )
    allowed_hosts: Names = Field(
        default_factory=list, description="Host names under which the service is reached."
    )
    https: bool = Field(
        False,
        description="A proxy in front serves HTTPS: secure cookies, HSTS, X-Forwarded-Proto.",
    )
    session_idle_hours: float = Field(
        12, ge=0.1, le=336, allow_inf_nan=False, description="Hours until an unused session ends."
    )
    requests_per_minute: int = Field(
        20_000,
        ge=0,
        le=10_000_000,
        description="REST requests of each user: a minute's worth at once, then this rate;"
        " 0 = no limit.",
    )
    trusted_proxies: Annotated[Names, AfterValidator(values.networks)] | None = Field(
        None,
        description="Proxies whose `X-Forwarded-For` is believed; not set: this machine once"
        " `https` or `allowed_hosts` is set.",
    )
    metrics_allow: Annotated[Names, AfterValidator(values.networks)] | None = Field(
        None,
        description="Addresses and networks that may read `/metrics` without a token; not set:"
        " this machine, and none once `https` or `allowed_hosts` is set.",
    )
    alerts_allow: Annotated[Names, AfterValidator(values.networks)] = Field(
        default_factory=list,
        description="Loopback, link-local and metadata networks that alert channels of operators"
        " may reach.",
    )
    alerts_follow_redirects: bool = Field(
        False, description="Alert channels follow HTTP redirects."
    )
    debug: bool = Field(False, description="Error pages with source code: never in public.")
    log: Literal["text", "json"] = Field("text", description="Format of log lines: text or json.")
    node: Annotated[Text, AfterValidator(values.host_name)] = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=100,
        description="This host's name on pages and in rows.",
    )
    time_zone: Annotated[Text, AfterValidator(values.zone)] = Field(
        "UTC", description="Zone in which times are shown."
    )

    profile: Profile = Field(
        "server", description="Profile of the machine: desktop, server or coordinator."
    )
    policy: Tables = Field(
        default_factory=dict,
        description="Thresholds that differ from the profile: TOML tables, or JSON in a variable.",
    )

    probe: ProbeName | None = Field(
        None,
        description="Reads the GPUs: nvml, simulated or none; not set: nvml where a driver is.",
    )
    require_nvml: bool | None = Field(
        None,
        description="Refuse to start when the NVIDIA driver can't be read; not set: on a desktop.",
    )
    simulated_gpus: int = Field(
        8, ge=1, le=1024, description="GPUs of the simulated server (probe = simulated)."
    )
    simulated_processes: int = Field(
        0, ge=0, le=10_000, description="Processes there; 0 = as many as the scenario has."
    )
    simulated_seed: int = Field(1, description="Seed of the simulated scenario.")

    admin_user: Text = Field(
        "admin", min_length=1, max_length=150, description="Name of the first administrator."
    )
    admin_password: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="Password of the first administrator; not set: a random one, printed once.",
    )
    database_url: Annotated[Text, AfterValidator(values.database)] | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL", "GPUCOORD_DATABASE_URL", "database_url"),
        repr=False,
        description="PostgreSQL instead of SQLite: postgresql://USER:PASSWORD@HOST:5432/NAME.",
    )

    join_token: str | None = Field(
        None,
        repr=False,
        description="Join token for the first start of a further host on the same database.",
    )

    raw_hours: float = Field(
        2,
        gt=0,
        le=48,
        allow_inf_nan=False,
        description="Retention of samples of each second, in hours.",
    )
    minute_days: float = Field(
        90,
        ge=1,
        le=3650,
        allow_inf_nan=False,
        description="Retention of sums of each minute, in days.",
    )
    hour_days: float = Field(
        730,
        ge=1,
        le=7300,
        allow_inf_nan=False,
        description="Retention of sums of each hour, in days.",
    )
    memory_margin_mib: int = Field(
        256, ge=0, description="GPU memory (MiB) that planning leaves free on each GPU."
    )
    gpu_power: Ranks = Field(
        default_factory=dict,
        description='Ranks of further models, in TOML {"RTX 9090" = 900}, in a variable as JSON.',
    )
    gpu_memory_gib: Ranks = Field(
        default_factory=dict,
        description="Memory (GiB) of GPUs of which the driver gives no figure, by model or UUID, "
        'in TOML {"GB10" = 100}, in a variable as JSON.',
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
        description="Jobs without a GPU that may run at once: at most one per CPU.",
    )
    cancel_grace_s: float = Field(
        10, ge=0, le=3600, allow_inf_nan=False, description="Seconds from SIGTERM to SIGKILL."
    )
    checkpoints: Annotated[Path, AfterValidator(lambda p: p.expanduser().absolute())] | None = (
        Field(
            None,
            description="Folder of checkpoints of jobs; not set: in the data folder.",
        )
    )
    shared_checkpoints: bool = Field(
        False,
        description="All hosts share the folder `checkpoints`, so a job may continue on another"
        " host.",
    )
    run_as: Literal["auto", "nobody", "service"] = Field(
        "auto",
        description="Account of jobs when root: `auto` (the owner's, else rejected), `nobody` (the"
        " owner's, else the shared account `nobody`) or `service` (root).",
    )

    extensions: Annotated[Names, AfterValidator(known)] = Field(
        default_factory=lambda: list(ROOMS),
        description="Parts that are switched on: `models`, `batches` (with registered scripts"
        " and idle work), `terminals`, `cleanup` (page of disks and clean-ups), `slurm`,"
        " `capacity`, `schedules` (stored reports), `demo`, `backup`; not set: all; `none`: none.",
    )
    engine: Literal["local", "slurm", "none"] = Field(
        "local",
        description="Runs the jobs: `local` (gpucoord on this host), `slurm` (submitted by this"
        " host), or `none` (this host is only monitored, as a node of Slurm).",
    )
    slurm_commands: Annotated[Path, AfterValidator(lambda p: p.expanduser().absolute())] | None = (
        Field(None, description="Folder of sbatch, squeue and scontrol; not set: those in PATH.")
    )
    slurm_conf: Path | None = Field(
        None, description="Configuration of Slurm; not set: where its commands look for it."
    )
    slurm_python: Path | None = Field(
        None,
        description="Python 3.11 or newer on the nodes, which runs the jobs' runners; not set: the"
        " path of the one that runs gpucoord.",
    )
    slurm_options: Names = Field(
        default_factory=list, description="Options of sbatch for all jobs: --partition=gpu."
    )
    slurm_gpu_types: dict[str, str] = Field(
        default_factory=dict,
        description='GPU models and their types in gres.conf, in TOML {"RTX 4090" = "rtx4090"}, in'
        " a variable as JSON.",
    )
    slurm_interval_s: float = Field(
        2, ge=0.5, le=60, allow_inf_nan=False, description="Seconds between two calls of squeue."
    )

    local_accounts: Annotated[Text, AfterValidator(values.local_accounts)] | None = Field(
        None,
        description="OS accounts that log in on this host without a token: `any`, `group:NAME`,"
        " `known` (listed for a user), `own` (the account of gpucoord) or `none`; not set: `any`"
        " as root, else `own`.",
    )
    local_superusers: bool = Field(
        False,
        description="Superusers may log in by their OS account. root and the account of gpucoord"
        " log in as `admin_user`, whatever this is.",
    )
    ldap_url: Annotated[Text, AfterValidator(values.ldap)] | None = Field(
        None, description="LDAP server that checks passwords: ldaps://HOST (extra `ldap`)."
    )
    ldap_start_tls: bool = Field(True, description="Encrypt connections to ldap:// by StartTLS.")
    ldap_ca_file: Path | None = Field(
        None, description="Certificates that the LDAP server may have; not set: those of the host."
    )
    ldap_bind_dn: Text = Field("", description="DN that searches users; empty: anonymous.")
    ldap_bind_password: str | None = Field(None, repr=False, description="Its password.")
    ldap_users: Text = Field(
        "", description="DN below which users are: ou=people,dc=example,dc=org."
    )
    ldap_filter: Annotated[Text, AfterValidator(values.ldap_filter)] = Field(
        "(uid=%(user)s)", description="Filter that finds a user by the name that was entered."
    )

    oidc_issuer: Text | None = Field(
        None, description="Issuer of an OpenID Connect provider, as in its tokens (extra `oidc`)."
    )
    oidc_name: Text = Field("single sign-on", description="Name of the provider on the login page.")
    oidc_client_id: Text = Field("", description="Client id that the provider gave to gpucoord.")
    oidc_client_secret: str | None = Field(None, repr=False, description="Its secret.")
    oidc_authorization_url: Text = Field("", description="Authorization endpoint of the provider.")
    oidc_token_url: Text = Field("", description="Token endpoint of the provider.")
    oidc_user_url: Text = Field("", description="Userinfo endpoint of the provider.")
    oidc_keys_url: Text = Field("", description="JWKS endpoint of the provider.")
    oidc_username_claim: Text = Field(
        "preferred_username", min_length=1, description="Claim with the name of a new user."
    )
    oidc_account_claim: Text | None = Field(
        None,
        description="Claim with the OS account of a new user; not set: an operator assigns it.",
    )

    close_data: bool = Field(
        True,
        description="Without root: close gpucoord's files to jobs of ordinary users (Landlock).",
    )
    lock_folder: Path | None = Field(
        None,
        description="Folder of the lock files gpu.lock, gpu0.lock, …; not set: /tmp, and with"
        " simulated GPUs the data folder.",
    )

    def endpoint_port(self, web_port: int) -> int:
        """The port of the endpoint for language models; 0 = a free one, as for the pages."""
        if self.models_port is not None:
            return self.models_port
        return 0 if self.port == 0 else min(web_port + 1, 65535)

    @property
    def metrics_networks(self) -> list[str]:
        """Addresses that read /metrics without a token. A proxy on this machine has its address."""
        if self.metrics_allow is not None:
            return self.metrics_allow
        return [] if self._has_proxy else THIS_MACHINE

    @property
    def proxy_networks(self) -> list[str]:
        """Addresses of the proxies whose X-Forwarded-For is believed."""
        if self.trusted_proxies is not None:
            return self.trusted_proxies
        return THIS_MACHINE if self._has_proxy else []

    @property
    def _has_proxy(self) -> bool:
        """These settings are for a service that other machines reach, usually by a proxy here."""
        return self.https or bool(self.allowed_hosts)

    @property
    def local_rule(self) -> LocalRule:
        """The OS accounts of this host that may log in."""
        text = self.local_accounts or default_rule(is_root=os.geteuid() == 0)
        return parse_rule(text, includes_superusers=self.local_superusers)

    @property
    def public_url(self) -> str | None:
        """The address for browsers on other machines; None: it is not known."""
        if not self.allowed_hosts or self.allowed_hosts[0].startswith(("*", ".")):
            return None
        name = self.allowed_hosts[0]
        return f"https://{name}" if self.https else f"http://{name}:{self.port}"

    @model_validator(mode="after")
    def _check_logins(self) -> Config:
        """A login service needs all of its settings."""
        if self.ldap_url and not self.ldap_users:
            raise ValueError("ldap_url needs ldap_users: the DN below which users are")
        if self.oidc_issuer:
            needed = [f"oidc_{part}_url" for part in ("authorization", "token", "user", "keys")]
            needed += ["oidc_client_id", "oidc_client_secret"]
            missing = [name for name in needed if not getattr(self, name)]
            if missing:
                raise ValueError(f"oidc_issuer needs {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Config:
        if self.engine == "slurm" and "slurm" not in self.extensions:
            raise ValueError("engine = slurm needs the extension slurm")
        return self

    @property
    def locks(self) -> Path:
        """Where the GPUs' lock files are."""
        if self.lock_folder is not None:
            return self.lock_folder
        # No other program uses simulated GPUs.
        return self.data if self.probe == "simulated" else Path("/tmp")  # noqa: S108

    @property
    def needs_nvml(self) -> bool:
        """Whether gpucoord must not start without the NVIDIA driver.

        On a desktop, jobs give way to the person who works there, which only the driver shows.
        """
        if self.require_nvml is not None:
            return self.require_nvml
        return self.profile == "desktop" and self.probe in (None, "nvml")

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
        from_file = read_toml(path) if path else {}
        return (init_settings, env_settings, InitSettingsSource(settings_cls, from_file))


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
