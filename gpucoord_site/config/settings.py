"""Typed settings from the environment and one TOML file; every bad value is named.

Precedence: the command line, the environment, `gpucoord.toml`, the defaults here.
An empty variable counts as not set.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta, Struct, field

from gpucoord_site.config import values
from gpucoord_site.config.extensions import ROOMS, known
from gpucoord_site.config.file import ConfigError, config_file, default_data_folder, read_toml
from gpucoord_site.config.values import (
    Rule,
    origin,
    policy_problems,
    sentence,
    unknown,
    unknown_variables,
    variables,
)
from monitor.facts.accounts import LocalRule
from monitor.owners.policy import default_rule, parse_rule

__all__ = ["Config", "ConfigError", "load_config"]

THIS_MACHINE = ["127.0.0.1", "::1"]
ProbeName = Literal["nvml", "simulated", "none"]
Profile = Literal["desktop", "server", "coordinator"]


class Config(Struct, frozen=True, kw_only=True):
    """Every setting; field names are the TOML keys, GPUCOORD_<NAME> the variables."""

    data: Annotated[
        Path, Rule("Data folder: database, logs of jobs, secret key.", check=values.folder)
    ] = field(default_factory=default_data_folder)
    host: Annotated[str, Rule("Address to listen on.", limits=Meta(min_length=1))] = "127.0.0.1"
    port: Annotated[
        int, Rule("Port to listen on; 0 takes a free one.", limits=Meta(ge=0, le=65535))
    ] = 8000
    models_port: Annotated[
        int | None,
        Rule(
            "Port of the OpenAI-compatible endpoint for language models; not set: the"
            " page's port + 1; 0 takes a free one. It is opened once there is a model service.",
            limits=Meta(ge=0, le=65535),
        ),
    ] = None
    models_cors_origins: Annotated[
        list[str],
        Rule(
            "Origins of web pages that may use the endpoint for language models from a"
            ' browser (CORS), such as "https://chat.example.org"; "*" = all.',
            check=values.origins,
        ),
    ] = field(default_factory=list)
    allowed_hosts: Annotated[list[str], Rule("Host names under which the service is reached.")] = (
        field(default_factory=list)
    )
    https: Annotated[
        bool, Rule("A proxy in front serves HTTPS: secure cookies, HSTS, X-Forwarded-Proto.")
    ] = False
    session_idle_hours: Annotated[
        float, Rule("Hours until an unused session ends.", limits=Meta(ge=0.1, le=336))
    ] = 12
    requests_per_minute: Annotated[
        int,
        Rule(
            "REST requests of each user: a minute's worth at once, then this rate; 0 = no limit.",
            limits=Meta(ge=0, le=10_000_000),
        ),
    ] = 20_000
    trusted_proxies: Annotated[
        list[str] | None,
        Rule(
            "Proxies whose `X-Forwarded-For` is believed; not set: this machine once"
            " `https` or `allowed_hosts` is set.",
            check=values.networks,
        ),
    ] = None
    metrics_allow: Annotated[
        list[str] | None,
        Rule(
            "Addresses and networks that may read `/metrics` without a token; not set:"
            " this machine, and none once `https` or `allowed_hosts` is set.",
            check=values.networks,
        ),
    ] = None
    alerts_allow: Annotated[
        list[str],
        Rule(
            "Loopback, link-local and metadata networks that alert channels of operators"
            " may reach.",
            check=values.networks,
        ),
    ] = field(default_factory=list)
    alerts_follow_redirects: Annotated[bool, Rule("Alert channels follow HTTP redirects.")] = False
    debug: Annotated[bool, Rule("Error pages with source code: never in public.")] = False
    log: Annotated[Literal["text", "json"], Rule("Format of log lines: text or json.")] = "text"
    node: Annotated[
        str,
        Rule(
            "This host's name on pages and in rows.",
            check=values.host_name,
            limits=Meta(min_length=1, max_length=100),
        ),
    ] = field(default_factory=socket.gethostname)
    time_zone: Annotated[str, Rule("Zone in which times are shown.", check=values.zone)] = "UTC"

    profile: Annotated[Profile, Rule("Profile of the machine: desktop, server or coordinator.")] = (
        "server"
    )
    policy: Annotated[
        dict[str, Any],
        Rule(
            "Thresholds that differ from the profile: TOML tables, or JSON in a variable.",
            advice='it must name policies with their thresholds, such as {"hogs": {…}}',
        ),
    ] = field(default_factory=dict)

    probe: Annotated[
        ProbeName | None,
        Rule("Reads the GPUs: nvml, simulated or none; not set: nvml where a driver is."),
    ] = None
    require_nvml: Annotated[
        bool | None,
        Rule("Refuse to start when the NVIDIA driver can't be read; not set: on a desktop."),
    ] = None
    simulated_gpus: Annotated[
        int, Rule("GPUs of the simulated server (probe = simulated).", limits=Meta(ge=1, le=1024))
    ] = 8
    simulated_processes: Annotated[
        int, Rule("Processes there; 0 = as many as the scenario has.", limits=Meta(ge=0, le=10_000))
    ] = 0
    simulated_seed: Annotated[int, Rule("Seed of the simulated scenario.")] = 1

    admin_user: Annotated[
        str, Rule("Name of the first administrator.", limits=Meta(min_length=1, max_length=150))
    ] = "admin"
    admin_password: Annotated[
        str | None,
        Rule(
            "Password of the first administrator; not set: a random one, printed once.",
            is_secret=True,
            limits=Meta(min_length=1),
        ),
    ] = None
    database_url: Annotated[
        str | None,
        Rule(
            "PostgreSQL instead of SQLite: postgresql://USER:PASSWORD@HOST:5432/NAME.",
            check=values.database,
            is_secret=True,
        ),
    ] = None

    join_token: Annotated[
        str | None,
        Rule(
            "Join token for the first start of a further host on the same database.", is_secret=True
        ),
    ] = None

    raw_hours: Annotated[
        float, Rule("Retention of samples of each second, in hours.", limits=Meta(gt=0, le=48))
    ] = 2
    minute_days: Annotated[
        float, Rule("Retention of sums of each minute, in days.", limits=Meta(ge=1, le=3650))
    ] = 90
    hour_days: Annotated[
        float, Rule("Retention of sums of each hour, in days.", limits=Meta(ge=1, le=7300))
    ] = 730
    memory_margin_mib: Annotated[
        int, Rule("GPU memory (MiB) that planning leaves free on each GPU.", limits=Meta(ge=0))
    ] = 256
    gpu_power: Annotated[
        dict[str, float],
        Rule(
            'Ranks of further models, in TOML {"RTX 9090" = 900}, in a variable as JSON.',
            check=values.ranks,
            advice=values.BY_MODEL,
        ),
    ] = field(default_factory=dict)
    gpu_memory_gib: Annotated[
        dict[str, float],
        Rule(
            "Memory (GiB) of GPUs of which the driver gives no figure, by model or UUID, "
            'in TOML {"GB10" = 100}, in a variable as JSON.',
            check=values.ranks,
            advice=values.BY_MODEL,
        ),
    ] = field(default_factory=dict)
    cpus: Annotated[
        float | None, Rule("CPUs to plan with, if fewer than there are.", limits=Meta(gt=0))
    ] = None
    memory_gib: Annotated[
        float | None,
        Rule("Memory of the host (GiB) to plan with, if less than there is.", limits=Meta(gt=0)),
    ] = None
    cpu_jobs: Annotated[
        int,
        Rule("Jobs without a GPU that may run at once: at most one per CPU.", limits=Meta(ge=1)),
    ] = field(default_factory=lambda: max(2, os.cpu_count() or 2))
    cancel_grace_s: Annotated[
        float, Rule("Seconds from SIGTERM to SIGKILL.", limits=Meta(ge=0, le=3600))
    ] = 10
    checkpoints: Annotated[
        Path | None,
        Rule("Folder of checkpoints of jobs; not set: in the data folder.", check=values.folder),
    ] = None
    shared_checkpoints: Annotated[
        bool,
        Rule("All hosts share the folder `checkpoints`, so a job may continue on another host."),
    ] = False
    run_as: Annotated[
        Literal["auto", "nobody", "service"],
        Rule(
            "Account of jobs when root: `auto` (the owner's, else rejected), `nobody` (the"
            " owner's, else the shared account `nobody`) or `service` (root)."
        ),
    ] = "auto"

    extensions: Annotated[
        list[str],
        Rule(
            "Parts that are switched on: `models`, `batches` (with registered scripts"
            " and idle work), `terminals`, `cleanup` (page of disks and clean-ups), `slurm`,"
            " `capacity`, `schedules` (stored reports), `demo`, `backup`; not set: all; `none`:"
            " none.",
            check=known,
        ),
    ] = field(default_factory=lambda: list(ROOMS))
    engine: Annotated[
        Literal["local", "slurm", "none"],
        Rule(
            "Runs the jobs: `local` (gpucoord on this host), `slurm` (submitted by this"
            " host), or `none` (this host is only monitored, as a node of Slurm)."
        ),
    ] = "local"
    slurm_commands: Annotated[
        Path | None,
        Rule("Folder of sbatch, squeue and scontrol; not set: those in PATH.", check=values.folder),
    ] = None
    slurm_conf: Annotated[
        Path | None, Rule("Configuration of Slurm; not set: where its commands look for it.")
    ] = None
    slurm_python: Annotated[
        Path | None,
        Rule(
            "Python 3.11 or newer on the nodes, which runs the jobs' runners; not set: the"
            " path of the one that runs gpucoord."
        ),
    ] = None
    slurm_options: Annotated[
        list[str], Rule("Options of sbatch for all jobs: --partition=gpu.")
    ] = field(default_factory=list)
    slurm_gpu_types: Annotated[
        dict[str, str],
        Rule(
            'GPU models and their types in gres.conf, in TOML {"RTX 4090" = "rtx4090"}, in'
            " a variable as JSON.",
            advice='it must name models with their types, such as {"RTX 4090": "rtx4090"}',
        ),
    ] = field(default_factory=dict)
    slurm_interval_s: Annotated[
        float, Rule("Seconds between two calls of squeue.", limits=Meta(ge=0.5, le=60))
    ] = 2

    local_accounts: Annotated[
        str | None,
        Rule(
            "OS accounts that log in on this host without a token: `any`, `group:NAME`,"
            " `known` (listed for a user), `own` (the account of gpucoord) or `none`; not set:"
            " `any` as root, else `own`.",
            check=values.local_accounts,
        ),
    ] = None
    local_superusers: Annotated[
        bool,
        Rule(
            "Superusers may log in by their OS account. root and the account of gpucoord"
            " log in as `admin_user`, whatever this is."
        ),
    ] = False
    ldap_url: Annotated[
        str | None,
        Rule("LDAP server that checks passwords: ldaps://HOST (extra `ldap`).", check=values.ldap),
    ] = None
    ldap_start_tls: Annotated[bool, Rule("Encrypt connections to ldap:// by StartTLS.")] = True
    ldap_ca_file: Annotated[
        Path | None, Rule("Certificates that the LDAP server may have; not set: those of the host.")
    ] = None
    ldap_bind_dn: Annotated[str, Rule("DN that searches users; empty: anonymous.")] = ""
    ldap_bind_password: Annotated[str | None, Rule("Its password.", is_secret=True)] = None
    ldap_users: Annotated[str, Rule("DN below which users are: ou=people,dc=example,dc=org.")] = ""
    ldap_filter: Annotated[
        str,
        Rule("Filter that finds a user by the name that was entered.", check=values.ldap_filter),
    ] = "(uid=%(user)s)"

    oidc_issuer: Annotated[
        str | None, Rule("Issuer of an OpenID Connect provider, as in its tokens (extra `oidc`).")
    ] = None
    oidc_name: Annotated[str, Rule("Name of the provider on the login page.")] = "single sign-on"
    oidc_client_id: Annotated[str, Rule("Client id that the provider gave to gpucoord.")] = ""
    oidc_client_secret: Annotated[str | None, Rule("Its secret.", is_secret=True)] = None
    oidc_authorization_url: Annotated[str, Rule("Authorization endpoint of the provider.")] = ""
    oidc_token_url: Annotated[str, Rule("Token endpoint of the provider.")] = ""
    oidc_user_url: Annotated[str, Rule("Userinfo endpoint of the provider.")] = ""
    oidc_keys_url: Annotated[str, Rule("JWKS endpoint of the provider.")] = ""
    oidc_username_claim: Annotated[
        str, Rule("Claim with the name of a new user.", limits=Meta(min_length=1))
    ] = "preferred_username"
    oidc_account_claim: Annotated[
        str | None,
        Rule("Claim with the OS account of a new user; not set: an operator assigns it."),
    ] = None

    close_data: Annotated[
        bool, Rule("Without root: close gpucoord's files to jobs of ordinary users (Landlock).")
    ] = True
    lock_folder: Annotated[
        Path | None,
        Rule(
            "Folder of the lock files gpu.lock, gpu0.lock, …; not set: /tmp, and with"
            " simulated GPUs the data folder."
        ),
    ] = None

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

    def conflicts(self) -> Iterator[str]:
        """Sentences about settings that contradict or lack each other."""
        if self.ldap_url and not self.ldap_users:
            yield "ldap_url needs ldap_users: the DN below which users are."
        if self.oidc_issuer:
            needed = [f"oidc_{part}_url" for part in ("authorization", "token", "user", "keys")]
            needed += ["oidc_client_id", "oidc_client_secret"]
            if missing := [name for name in needed if not getattr(self, name)]:
                yield f"oidc_issuer needs {', '.join(missing)}."
        if self.engine == "slurm" and "slurm" not in self.extensions:
            yield "engine = slurm needs the extension slurm."

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

    def __repr__(self) -> str:
        """Without secrets: error pages and logs show it."""
        shown = (name for name, rule in rules().items() if not rule.is_secret)
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Config, include_extras=True)


@cache
def rules() -> dict[str, Rule]:
    """By the name of the setting."""
    return {name: hint.__metadata__[0] for name, hint in _hints().items()}


def load_config(**overrides: Any) -> Config:
    """Read the settings, or raise ConfigError naming every bad one."""
    path = config_file()
    in_file = read_toml(path) if path else {}
    problems = unknown_variables(rules(), os.environ)
    problems += [unknown(key, rules()) for key in sorted(in_file.keys() - rules().keys())]
    read = {}
    for name, hint in _hints().items():
        given = [overrides[name]] if name in overrides else _in_variables(name)
        given = given or ([in_file[name]] if name in in_file else [])
        if given:
            try:
                read[name] = values.read(hint, given[0])
            except ValueError as error:
                where = f"--{name}" if name in overrides else origin(name, os.environ) or name
                problems.append(sentence(where, rules()[name].is_secret, given[0], str(error)))
    if not problems:
        config = Config(**read)
        problems += config.conflicts()
        wrong = policy_problems(config.profile, config.policy)
        problems += [f"{origin('policy', os.environ)}: {text}" for text in wrong]
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _in_variables(name: str) -> list[str]:
    """An empty variable counts as not set."""
    return list(filter(None, map(os.environ.get, variables(name))))
