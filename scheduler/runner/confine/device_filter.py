"""Edge: close device files to a job's cgroup, by the device list of version 1 or a BPF program.

The program allows everything except the given character devices. It is attached to the job's folder
in the version 2 hierarchy and is removed with it. Both need root.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from contextlib import suppress

from scheduler.runner.confine.cgroups import Cgroup

Device = tuple[int, int]
SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361}
PROG_LOAD, PROG_ATTACH = 5, 8
TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE, ALLOW_MULTI = 15, 6, 2
# struct bpf_cgroup_dev_ctx: access_type (kind in its lower half), major, minor.
KIND, MAJOR, MINOR = 0, 4, 8
CHARACTER = 2
LOAD, MOVE, AND, SKIP_UNLESS, RETURN = 0x61, 0xB7, 0x57, 0x55, 0x95


def hide(cgroup: Cgroup, devices: Sequence[Device]) -> str:
    """Close these character devices to the cgroup; returns the method, "" = none works."""
    if not devices:
        return ""
    if cgroup.deny(devices) and any((f / "devices.deny").exists() for f in cgroup.folders):
        return "cgroup v1"
    for folder in cgroup.folders:
        if (folder / "cgroup.type").exists() or (folder / "cgroup.events").exists():
            with suppress(OSError):
                _attach(str(folder), program(devices))
                return "BPF"
    return ""


def program(devices: Sequence[Device]) -> bytes:
    """The machine code: 0 = closed for these, 1 = open for all else."""
    code = [_op(LOAD, 2, 1, KIND), _op(AND, 2, 0, 0, 0xFFFF)]
    code += [_op(LOAD, 3, 1, MAJOR), _op(LOAD, 4, 1, MINOR)]
    for major, minor in devices:
        # Each rule is five long: kind, major and minor must agree, then it is closed.
        code += [
            _op(SKIP_UNLESS, 2, 0, 4, CHARACTER),
            _op(SKIP_UNLESS, 3, 0, 3, major),
            _op(SKIP_UNLESS, 4, 0, 2, minor),
            _op(MOVE, 0, 0, 0, 0),
            _op(RETURN),
        ]
    return b"".join([*code, _op(MOVE, 0, 0, 0, 1), _op(RETURN)])


def _op(code: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | to, offset, value)


def _attach(folder: str, code: bytes) -> None:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    where = (ctypes.addressof(instructions), ctypes.addressof(licence))
    loaded = _bpf(PROG_LOAD, struct.pack("<IIQQ", TYPE_CGROUP_DEVICE, len(code) // 8, *where))
    try:
        target = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(
                PROG_ATTACH,
                struct.pack("<IIII", target, loaded, ATTACH_CGROUP_DEVICE, ALLOW_MULTI),
            )
        finally:
            os.close(target)
    finally:
        os.close(loaded)


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, "BPF on this kind of machine is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads as much as it knows; what is not told must be 0.
    given = ctypes.create_string_buffer(attributes, 128)
    answer = libc.syscall(number, command, given, 128)
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(answer)
