from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucoord_site.config.django_values import secret_key
from gpucoord_site.config.settings import ConfigError


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    key = secret_key(tmp_path / "data")

    path = tmp_path / "data" / "secret_key"
    assert len(key) >= 50
    assert secret_key(tmp_path / "data") == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["secret_key"]


def test_the_key_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    link = os.link

    def fsync(descriptor: int) -> None:
        steps.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}').rpartition('/')[2]}")

    def traced_link(source: Path, target: Path) -> None:
        steps.append(f"link {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", traced_link)
    secret_key(tmp_path / "data")

    assert steps == [f"sync .secret_key.{os.getpid()}", "link secret_key", "sync data"]


def test_an_empty_key_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "secret_key").write_text("")

    with pytest.raises(ConfigError, match=r"is empty\. Restore it from a backup"):
        secret_key(tmp_path)
