"""Which container a process is in, from its lines in /proc/PID/cgroup."""

from __future__ import annotations

import re

# The long id that every runtime gives its containers; people know its first twelve characters.
_ID = r"(?P<id>[0-9a-f]{64})"
_SHORT = 12
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UUID})")
_RUNTIMES = (
    ("cri-o", re.compile(rf"crio-{_ID}")),
    ("containerd", re.compile(rf"(?:cri-containerd-|cri-containerd:|nerdctl-){_ID}")),
    ("podman", re.compile(rf"libpod-{_ID}")),
    ("docker", re.compile(rf"(?:docker-|/docker/){_ID}")),
    # `ctr` and plain containerd put a container right below its namespace.
    ("containerd", re.compile(rf"^/(?:default|moby|k8s\.io|containerd)/{_ID}")),
)
_ANY = re.compile(rf"(?:^|[/:-]){_ID}(?:\.scope)?(?:/|$)")


def container_of(cgroup: str) -> str | None:
    """Such as "docker 0123456789ab" or "pod 1b2c3d4e-… 0123456789ab"; None outside of any.

    All controllers of cgroup v1 and the one line of v2 are looked at: the first that tells counts.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        found = _in_path(path)
        if found is not None:
            return found
    return None


def _in_path(path: str) -> str | None:
    pod = _POD.search(path)
    inside = _runtime(path)
    if pod is not None:
        uid = pod["uid"].replace("_", "-")
        return f"pod {uid} {inside[1]}" if inside else f"pod {uid}"
    return f"{inside[0]} {inside[1]}" if inside else None


def _runtime(path: str) -> tuple[str, str] | None:
    for name, pattern in _RUNTIMES:
        found = pattern.search(path)
        if found:
            return name, found["id"][:_SHORT]
    found = _ANY.search(path)
    return ("container", found["id"][:_SHORT]) if found else None
