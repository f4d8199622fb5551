"""Each variable of a shell reaches the job or is named."""

from __future__ import annotations

import time

import pytest

from gpucoord_site.cli.environment import captured

# Variables that are common in machine learning and on clusters; they reach the job.
ARRIVE = (
    "PATH LD_LIBRARY_PATH PYTHONPATH CUDA_HOME CUDNN_PATH VIRTUAL_ENV CONDA_PREFIX"
    " CUDA_LAUNCH_BLOCKING CONDA_DEFAULT_ENV CONDA_EXE MAMBA_ROOT_PREFIX"
    " OMP_NUM_THREADS MKL_NUM_THREADS NCCL_DEBUG"
    " NCCL_SOCKET_IFNAME NCCL_P2P_DISABLE MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK"
    " TORCH_HOME TORCH_CUDA_ARCH_LIST PYTORCH_CUDA_ALLOC_CONF HF_HOME HF_DATASETS_CACHE"
    " TRANSFORMERS_CACHE TOKENIZERS_PARALLELISM WANDB_MODE WANDB_PROJECT WANDB_DIR"
    " MLFLOW_TRACKING_URI TF_CPP_MIN_LOG_LEVEL TF_FORCE_GPU_ALLOW_GROWTH XLA_FLAGS"
    " JAX_PLATFORMS KERAS_BACKEND TRITON_CACHE_DIR XDG_CACHE_HOME XDG_CONFIG_HOME TMPDIR"
    " LANG LC_ALL TZ EDITOR HTTP_PROXY NO_PROXY AWS_PROFILE AWS_REGION MODULEPATH LOADEDMODULES"
    " BASH_FUNC_module%% BASH_FUNC_conda%% BASH_FUNC_get_token%% SPACK_ROOT APPTAINER_CACHEDIR"
    " HISTOGRAM_BINS WINDOW_SIZE LESSON AUTHOR MAX_TOKENS PASSENGERS MONKEY"
)
# These are left out for the pattern behind them, which is shown.
NAMED = {
    "HF_TOKEN": "TOKEN",
    "HUGGING_FACE_HUB_TOKEN": "TOKEN",
    "WANDB_API_KEY": "API_KEY",
    "OPENAI_API_KEY": "API_KEY",
    "AWS_SECRET_ACCESS_KEY": "SECRET",
    "AWS_ACCESS_KEY_ID": "ACCESS_KEY",
    "AWS_SESSION_TOKEN": "SESSION",
    "GOOGLE_APPLICATION_CREDENTIALS": "CREDENTIALS",
    "GITHUB_PAT": "_PAT",
    "MYSQL_PWD": "_PWD",
    "SENTRY_DSN": "_DSN",
    "SLURM_JOB_ID": "SLURM_*",
    "SLURM_NTASKS": "SLURM_*",
    "CUDA_VISIBLE_DEVICES": "set by gpucoord",
}


@pytest.mark.parametrize("name", ARRIVE.split())
def test_a_common_variable_arrives(name: str) -> None:
    here = captured({name: "x"})

    assert (here.variables, here.left_out, here.sentence()) == ({name: "x"}, {}, "")


@pytest.mark.parametrize(("name", "pattern"), NAMED.items())
def test_a_variable_that_is_left_out_is_named_with_the_pattern(name: str, pattern: str) -> None:
    here = captured({name: "x"})

    assert (here.variables, here.left_out) == ({}, {name: pattern})
    assert f"left out of the environment: {name} ({pattern}); --env NAME" in here.sentence()


def test_the_sentence_is_silent_about_the_terminal_and_about_what_the_user_passes_on() -> None:
    terminal = dict.fromkeys(("TERM", "PWD", "SSH_TTY", "XDG_RUNTIME_DIR", "GPUCOORD_JOB_ID"), "x")

    here = captured({**terminal, "HF_TOKEN": "x"}, given=["HF_TOKEN"])

    assert here.sentence() == ""
    assert set(here.left_out) == set(terminal)


def test_many_variables_are_named_in_a_sentence_of_bounded_length() -> None:
    sentence = captured({f"N{number}_TOKEN": "x" for number in range(500)}).sentence()

    assert "and 480 more" in sentence
    assert len(sentence) < 1000


@pytest.mark.parametrize("value", ["Q" * 900, "a://b:c" * 128, "A-b." * 225, "x@y:z" * 180])
def test_the_largest_environment_is_read_within_milliseconds(value: str) -> None:
    environ = {f"VARIABLE_{number}": value for number in range(100)}

    assert min(_cpu_s(environ) for _ in range(3)) < 0.02


def _cpu_s(environ: dict[str, str]) -> float:
    began = time.process_time()
    captured(environ)
    return time.process_time() - began


def test_a_job_passes_its_own_ports_to_no_other_job() -> None:
    ours = {"GPUCOORD_PORT": "20008", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20008"}
    chosen = {"GPUCOORD_PORT": "20008", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}

    assert captured(ours).variables == {}
    assert captured(chosen).variables == {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert captured({"MASTER_ADDR": "node1"}).variables == {"MASTER_ADDR": "node1"}
