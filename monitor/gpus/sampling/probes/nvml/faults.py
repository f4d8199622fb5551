"""NVML's error codes in words, and their effect on a value, a GPU or the driver."""

from __future__ import annotations

from dataclasses import dataclass, replace

from monitor.facts.readings import GpuReading, Health

NOT_FOUND, INSUFFICIENT_SIZE, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 6, 7, 12, 13
RESET_REQUIRED = 16
UNKNOWN = 999

# The value is unavailable (not supported, no permission, no data, other struct version); it is
# unknown, and the GPU is healthy.
NO_ANSWER = frozenset({2, 3, 4, 6, 7, 13, 14, 21, 22, 24, 25, 26})
# The device or driver does not have this value; asking again gives the same answer. Every other
# refusal may be over at the next sweep.
LASTING = frozenset({3, 13})
# There is nothing to tell now, or the list has grown meanwhile: no failure.
NO_VALUE = frozenset({NOT_FOUND, INSUFFICIENT_SIZE})
# Codes of our own: an answer that cannot be read, a device that is left out after a hang.
UNREADABLE, LEFT_OUT = -1, -2
# The library must be initialised again before its next use.
LIBRARY = frozenset({1, 9, 12, 18})


# A call of this duration hangs. Initialising the driver is slow unless it stays loaded.
HUNG_S, HUNG_STARTING_S = 6.0, 30.0
STARTING = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByIndex")


def patience_s(call: str) -> float:
    """A call that takes longer hangs."""
    return HUNG_STARTING_S if call in STARTING else HUNG_S


@dataclass(frozen=True, slots=True)
class Fault:
    """The problem, the remedy, and the health of a GPU that returns this error."""

    problem: str
    remedy: str
    health: Health = Health.FAILING


FAULTS = {
    1: Fault("NVML is not initialised.", "gpucoord initialises it again by itself."),
    4: Fault(
        "This account may not use the NVIDIA driver.",
        "Let the account that runs gpucoord read and write /dev/nvidia* (often the group video).",
    ),
    9: Fault(
        "The NVIDIA driver is installed, but its kernel module is not loaded.",
        "Run `nvidia-smi` as root; if it fails too, try `modprobe nvidia` or restart the machine.",
    ),
    10: Fault("The GPU did not answer in time.", "If it persists, restart the machine."),
    12: Fault(
        "No NVIDIA driver was found on this machine.",
        "Install the NVIDIA driver (Debian: `apt install nvidia-driver`; Ubuntu: "
        "`ubuntu-drivers install`; others: nvidia.com/drivers) and see that `nvidia-smi` lists "
        "the GPUs. A container needs the option `--gpus all`. gpucoord looks again each minute; "
        "jobs without a GPU run meanwhile.",
    ),
    15: Fault(
        "The GPU has fallen off the bus.",
        "Look for NVRM lines in `dmesg`; often only a restart of the machine brings it back.",
        Health.LOST,
    ),
    16: Fault(
        "The GPU must be reset before it works again.",
        "End its processes and run `nvidia-smi --gpu-reset` as root, or restart the machine.",
    ),
    17: Fault(
        "The operating system blocks access to the GPU.", "Check the access to /dev/nvidia*."
    ),
    18: Fault(
        "The NVIDIA driver was updated, but the old kernel module is still loaded.",
        "Restart the machine (or unload and load the nvidia modules once nothing uses them).",
    ),
    28: Fault("The GPU is not there any more.", "Check its power and its seat.", Health.LOST),
    999: Fault(
        "The NVIDIA driver answers “Unknown Error”.",
        "In a container that lost its GPUs (after `systemctl daemon-reload`) restart the "
        "container; else look for NVRM lines in `dmesg`.",
    ),
}
RESET = FAULTS[RESET_REQUIRED]


def fault(code: int, text: str) -> Fault:
    """The fault of `code`; `text` is NVML's own text, for rare codes."""
    if code == UNREADABLE:
        return Fault(f"The NVIDIA driver gives {text}.", "Reload or update the NVIDIA driver.")
    description = FAULTS.get(code)
    return description or Fault(
        f"The NVIDIA driver answers: {text}.", "Look at `dmesg` for its reason."
    )


def broken(facts: GpuReading, fault: Fault | None) -> GpuReading:
    """A GPU of which only the fault is known."""
    if fault is None:
        return facts
    return replace(facts, health=fault.health, problem=f"{fault.problem} {fault.remedy}")


def hung(call: str) -> Fault:
    """The fault of a device of which `call` did not come back."""
    problem = f"{call} did not come back, so this GPU is not read for some time."
    return Fault(problem, "Look for NVRM lines in `dmesg`; often only a restart helps.")


class CallRefused(Exception):
    """`call` gave no usable answer; `code` says why: NVML's, or one of our own."""

    def __init__(self, code: int, text: str, call: str = "") -> None:
        super().__init__(text)
        self.fault = fault(code, text)
        self.code = code
        self.call = call

    @classmethod
    def unreadable(cls, call: str, error: Exception) -> CallRefused:
        """Any error that is not NVML's, such as that of a text that is not UTF-8."""
        text = f"an answer that cannot be read ({type(error).__name__})"
        return cls(UNREADABLE, f"{text} to {call}" if call else text, call)

    @classmethod
    def left_out(cls, call: str) -> CallRefused:
        """A device is not called because `call` did not come back."""
        refused = cls(LEFT_OUT, "the call did not come back", call)
        refused.fault = hung(call)
        return refused

    def __str__(self) -> str:
        return f"{self.call}: {super().__str__()}" if self.call else super().__str__()

    @property
    def is_lasting(self) -> bool:
        """Whether the device or driver does not have the value at all."""
        return self.code in LASTING

    @property
    def is_fatal(self) -> bool:
        """Whether no further call can succeed for the library or for this GPU."""
        return self.code in LIBRARY or self.fault.health is Health.LOST
