from __future__ import annotations

import pytest

from monitor.owners.policy import container_of, session_uid

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
        ("/lxc.payload.jupyter-3/system.slice", "lxc jupyter-3"),
        ("/lxc/jupyter-3", "lxc jupyter-3"),
        ("/machine.slice/machine-box.scope/payload", "nspawn box"),
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


def test_it_knows_the_user_slice_of_a_session() -> None:
    assert session_uid("0::/user.slice/user-1000.slice/session-3.scope") == 1000
    assert session_uid("0::/system.slice/docker.service") is None
    assert session_uid("0::/user.slice/user-x.slice") is None
