"""A Slurm of the tests' own, two users with accounts there, and gpucoord's pass over it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from gpucoord_site.config.settings import load_config
from monitor.models import OsAccount
from tests.processes.scheduling import Scheduler
from tests.slurm.cluster import FIRST, SECOND, Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    made = Cluster(Path(tempfile.mkdtemp(prefix="gpucoord-slurm-", dir="/var/tmp")))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def slurm(cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, idle, with gpucoord set to submit to it; settings.DATA is outside of /root."""
    monkeypatch.setenv("GPUCOORD_ENGINE", "slurm")
    monkeypatch.setenv("GPUCOORD_SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("GPUCOORD_SLURM_INTERVAL_S", "0.5")
    # The accounts of the jobs must be able to run it.
    monkeypatch.setenv("GPUCOORD_SLURM_PYTHON", "/usr/bin/python3")
    monkeypatch.setenv("GPUCOORD_RUN_AS", "auto")
    monkeypatch.setenv("GPUCOORD_CANCEL_GRACE_S", "2")
    settings.CONFIG = load_config()
    settings.DATA = Path(tempfile.mkdtemp(prefix="data-", dir=cluster.folder))
    cluster.cancel_all()
    # A slurmctld that was killed gives names of lost jobs to new ones; if both are on one node,
    # it drains that node.
    cluster.wait_until_up()
    return cluster


@pytest.fixture
def scheduler(slurm: Cluster, transactional_db: None) -> Iterator[Scheduler]:
    made = Scheduler()
    yield made
    made.close()


def _with_account(user: User, name: str) -> User:
    OsAccount.objects.update_or_create(
        user=user, defaults={"name": name, "created_at": timezone.now()}
    )
    return user


@pytest.fixture
def ann(transactional_db: None) -> User:
    return _with_account(User.objects.create_user("ann"), FIRST)


@pytest.fixture
def ben(transactional_db: None) -> User:
    return _with_account(User.objects.create_user("ben"), SECOND)
