"""Checks the tables of thresholds in gpucoord.toml; the policies themselves are the apps'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.policy import catalogue as monitor
from monitor.policy.layers import profile_layer, table_problems
from scheduler.policy import catalogue as scheduler

POLICIES: dict[str, type[Any]] = {**monitor.POLICIES, **scheduler.POLICIES}
PRESETS = (monitor.PROFILES, scheduler.PROFILES)


def policy_problems(profile: str, tables: Mapping[str, object]) -> list[str]:
    """A sentence for each table, key or value that can't be used."""
    return table_problems(tables, POLICIES, profile_layer(profile, PRESETS))
