"""Scripted loads of a simulated server: pure functions of time, by GPU and user."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import floor

from msgspec import Struct
from msgspec.structs import replace

GIB = 1024**3
# Above the kernel's highest possible pid: a simulated process can't be taken for a real one.
FIRST_PID = 4_194_305

WEEK_S = 7 * 86_400.0
# A week of the scripts that never rest begins in the night to Sunday (UTC).
WEEK_OFFSET_S = 3 * 86_400.0

# demand in percent of one GPU: (seconds since the process began, noise 0..1) -> 0..100
Shape = Callable[[float, float], float]


class Script(Struct, frozen=True):
    """A program that is started again and again: it runs `runs_s` of every `every_s` seconds."""

    user: str | None
    program: str
    command: str
    gpus: tuple[int, ...]
    gib: float | None
    shape: Shape
    every_s: float = WEEK_S
    runs_s: float = WEEK_S
    offset_s: float = WEEK_OFFSET_S
    ramp_s: float = 20.0
    kinds: str = "C"

    def run_at(self, t: float) -> tuple[int, float] | None:
        """The number of the run that goes on at `t` and when it began; None between runs."""
        number = floor((t - self.offset_s) / self.every_s)
        began = number * self.every_s + self.offset_s
        return (number, began) if t - began < self.runs_s else None


# Noise asks for the same few numbers again and again.
@lru_cache(maxsize=4096)
def hashed(*parts: int) -> float:
    """A number 0..1 that depends on the parts alone: the same in each process and at each call."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = ((value ^ part) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return (value >> 11) / (1 << 53)


def noise(t: float, period_s: float, *key: int) -> float:
    """Smooth noise 0..1 that takes about `period_s` to change."""
    step = floor(t / period_s)
    part = t / period_s - step
    weight = part * part * (3 - 2 * part)
    return hashed(*key, step) * (1 - weight) + hashed(*key, step + 1) * weight


def training(age: float, wobble: float) -> float:
    """Epochs: minutes near full load, then a pause for validation and the checkpoint."""
    if age < 25:
        return 4 * wobble
    return 8 + 14 * wobble if age % 210 > 195 else 86 + 12 * wobble


def hog(age: float, wobble: float) -> float:
    return 93 + 5 * wobble


def idle(age: float, wobble: float) -> float:
    return 0.0


def inference(age: float, wobble: float) -> float:
    """Requests in bursts: nothing for a while, then up to two thirds of the GPU."""
    return max(0.0, 130 * wobble - 62)


def serving(age: float, wobble: float) -> float:
    return 12 + 45 * wobble


def visitor(age: float, wobble: float) -> float:
    return 20 + 50 * wobble if age > 6 else 0.0


def job(age: float, wobble: float) -> float:
    """Work of one of our own jobs: it loads for 3 s, then works."""
    return 0.0 if age < 3 else 78 + 18 * wobble


# The pattern of eight GPUs, by index; 0 and 7 stay nearly free.
_PATTERN = (
    Script(
        "frank",
        "python3",
        "python3 notebooks/try_resnet.py --quick",
        (0,),
        3.5,
        visitor,
        every_s=300,
        runs_s=75,
        offset_s=0,
        ramp_s=4,
    ),
    Script(
        "alice",
        "python",
        "python train.py --config configs/vit_large.yaml --resume",
        (1,),
        58,
        training,
        every_s=14_400,
        runs_s=13_800,
        offset_s=0,
    ),
    Script(
        "frank",
        "pytest",
        "pytest tests/gpu -x",
        (1,),
        1.2,
        visitor,
        every_s=420,
        runs_s=40,
        offset_s=60,
        ramp_s=2,
    ),
    Script(
        "bob",
        "torchrun",
        "torchrun --nproc-per-node 2 finetune.py --model llama-8b --bf16",
        (2, 3),
        66,
        training,
        every_s=2_400,
        runs_s=1_860,
        offset_s=300,
    ),
    Script("dana", "python", "python sweep.py --trials 4096 --no-early-stop", (4,), 71, hog),
    Script(
        "erin",
        "python",
        "/opt/conda/bin/python -m ipykernel_launcher -f kernel-7f2c.json",
        (5,),
        40,
        idle,
    ),
    Script(
        "charlie",
        "python",
        "python -m batch_infer --model whisper-large-v3 --input calls/",
        (5,),
        14,
        inference,
        every_s=3_600,
        runs_s=3_300,
        offset_s=120,
    ),
    Script(
        "llm",
        "vllm",
        "vllm serve mistral-24b --port 8011 --gpu-memory-utilization 0.6",
        (6,),
        46,
        serving,
    ),
    # In a container with its own pids, so its owner is unknown.
    Script(None, "", "", (6,), 6, serving),
)


def cast(first: int, size: int, turn: int) -> list[Script]:
    """The scripts of GPUs first … first + size - 1 (size <= 8); `turn` shifts their clocks."""
    moved = [
        replace(
            script,
            gpus=tuple(first + offset for offset in script.gpus if offset < size),
            offset_s=script.offset_s + 977.0 * turn,
        )
        for script in _PATTERN
    ]
    return [script for script in moved if script.gpus]


def crowd(gpus: int, count: int) -> list[Script]:
    """`count` small processes over all GPUs, to see how a busy machine looks."""
    users = ("alice", "bob", "charlie", "dana", "erin", "frank")
    return [
        Script(
            users[i % len(users)],
            "python",
            f"python worker.py --shard {i}",
            (i % gpus,),
            0.1,
            idle if i % 3 else inference,
            every_s=1_800.0 + 13 * (i % 50),
            runs_s=1_785.0 + 13 * (i % 50),
            offset_s=37.0 * i,
            ramp_s=3,
        )
        for i in range(count)
    ]
