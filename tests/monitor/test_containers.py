from __future__ import annotations

import pytest

from monitor.policy.containers import container_of
from monitor.policy.owners import NO_LOGIN, owner_uid

ID = "0123456789ab" + "c" * 52
SHORT = "0123456789ab"
POD = "1b2c3d4e-5f60-4718-92a3-b4c5d6e7f809"
UNDERSCORED = POD.replace("-", "_")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/system.slice/docker-{ID}.scope", f"docker {SHORT}"),
        (f"/docker/{ID}", f"docker {SHORT}"),
        (f"/machine.slice/libpod-{ID}.scope", f"podman {SHORT}"),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
            f"podman {SHORT}",
        ),
        (f"/default/{ID}", f"containerd {SHORT}"),
        (f"/system.slice/nerdctl-{ID}.scope", f"containerd {SHORT}"),
        (
            "/kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
            f"pod {POD} {SHORT}",
        ),
        (f"/kubepods/besteffort/pod{POD}/{ID}", f"pod {POD} {SHORT}"),
        (
            f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope",
            f"pod {POD} {SHORT}",
        ),
        (f"/../../kubepods-pod{UNDERSCORED}.slice", f"pod {POD}"),
        (f"/lxc/{ID}", f"container {SHORT}"),
        ("/user.slice/user-1000.slice/session-3.scope", None),
        ("/system.slice/docker.service", None),
        ("/", None),
    ],
)
def test_it_knows_a_container_by_its_cgroup(path: str, expected: str | None) -> None:
    assert container_of(f"0::{path}\n") == expected


def test_of_version_1_any_controller_may_tell() -> None:
    lines = f"12:pids:/user.slice\n11:devices:/docker/{ID}\n1:name=systemd:/init.scope\n"
    assert container_of(lines) == f"docker {SHORT}"


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "0::", ":::::", "\0"])
def test_what_is_no_cgroup_is_no_container(text: str) -> None:
    assert container_of(text) is None


@pytest.mark.parametrize(
    ("uid", "login", "container", "expected"),
    [
        (1001, 1001, None, 1001),
        (0, 1001, None, 1001),
        (33, 1001, None, 1001),
        (1002, 1001, None, 1002),
        (0, NO_LOGIN, None, 0),
        (0, None, None, 0),
        (0, 0, None, 0),
        (0, 1001, "docker 0123456789ab", 0),
        (None, 1001, None, None),
    ],
)
def test_sudo_hides_nobody(
    uid: int | None, login: int | None, container: str | None, expected: int | None
) -> None:
    assert owner_uid(uid, login, container) == expected
