"""Scripts as people have them, started directly and as a job: the same output and exit code.

What differs, or cannot run, is said at submission.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.pace import LONGEST_S
from tests.processes.service import ROOT, Service, kill_jobs

pytestmark = pytest.mark.processes
BASH, SH = "#!/bin/bash\n", "#!/bin/sh\n"
# Each script stands in the file that is started, unless the case names another one.
FILE = "job.sh"
IN_PLACE = "is not copied"
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Case:
    """text: of the script. start: how its user writes it. files: beside it, with mode 0755.

    said: a part of what the command says at submission. is_refused: no job is made.
    """

    text: str | bytes
    start: str = f"./{FILE}"
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    said: str = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """said: on stderr, which for a job is that of the command."""

    code: int
    output: str
    said: str


def refused(text: str | bytes, said: str, start: str = f"./{FILE}") -> Case:
    return Case(text, start, said=said, is_refused=True)


ARCHIVE = base64.b64encode(b"from the archive\n").decode()
CONDA = """#!/bin/sh
[ "$1 $2" = "shell.bash hook" ] || exit 9
cat <<'EOF'
conda() { export CONDA_PREFIX=/envs/$2 CONDA_DEFAULT_ENV=$2; }
EOF
"""
VENV = f"{shlex.quote(sys.executable)} -m venv --without-pip venv"
NEIGHBOUR = "def answer():\n    return 42\n"
SCRIPTS = {
    "exit code and both streams": Case(BASH + "echo out\necho err >&2\nexit 7\n"),
    "words with spaces, quotes and signs": Case(
        BASH + 'printf \'<%s>\' "$#" "$@"\n', f"./{FILE} 'a b' '' \"it's\" '*' '$HOME' -- --gpus"
    ),
    "its own name": Case(BASH + 'echo "Usage: $0 FILE"\nbasename "$0"\nexit 2\n'),
    "its name by a whole path": Case(BASH + 'echo "$0"\n', f"$PWD/{FILE}"),
    "a script below the folder": Case(
        SH + ". run/job.sh\n", files={"run/job.sh": SH + 'echo "$0" "$PWD"\n'}
    ),
    "a folder and a name with spaces": Case(
        SH + 'exec "./my runs/job 1.sh" "$@"\n',
        "'./my runs/job 1.sh' x",
        {"my runs/job 1.sh": BASH + 'cd "$(dirname "$0")" && pwd && echo "$0"\n'},
    ),
    "a link to a script": Case(
        "",
        "./link.sh",
        {"real/job.sh": BASH + 'readlink -f "$0"\n'},
        before="ln -s real/job.sh link.sh",
    ),
    "sources a file beside it by $0": Case(
        BASH + '. "$(dirname "$0")/lib.sh"\nhello\n', files={"lib.sh": "hello() { echo hello; }\n"}
    ),
    "sources a file beside it by BASH_SOURCE": Case(
        BASH + 'source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"\nhello\n',
        files={"lib.sh": "hello() { echo hello; }\n"},
    ),
    "runs main only if it is not sourced": Case(
        BASH + 'main() { echo main "$@"; }\n[[ "${BASH_SOURCE[0]}" == "$0" ]] && main "$@"\n',
        f"./{FILE} 1",
    ),
    "asks by return whether it is sourced": Case(
        BASH + "(return 0 2>/dev/null) && echo sourced || echo executed\n"
    ),
    "data behind the code": Case(
        BASH + "sed '1,/^__DATA__$/d' \"$0\"\nexit 0\n__DATA__\na (b\nc 'd\n"
    ),
    "an archive behind the code": Case(BASH + f'tail -n 1 "$0" | base64 -d\nexit 0\n{ARCHIVE}\n'),
    "bytes behind the code": Case(
        BASH.encode() + b'tail -c 4 "$0" | od -An -tx1\nexit 0\n\xff\xfe\x00\x01',
        said=IN_PLACE,
    ),
    "a comment in Latin 1": Case(
        b"#!/bin/bash\n#GPUCOORD --name latin\n# f\xfcr\necho done\n", said=IN_PLACE
    ),
    "a heredoc with and without variables": Case(
        BASH + "a=1\ncat <<EOF\n$a $(echo 2)\nEOF\ncat <<'EOF'\n$a `x`\nEOF\n\tcat <<-E\n\t3\n\tE\n"
    ),
    "Python in a heredoc": Case(
        BASH + "python3 - \"$@\" <<'EOF'\nimport sys\nprint(sys.argv)\nEOF\n", f"./{FILE} --lr 0.1"
    ),
    "process substitution, arrays and patterns": Case(
        BASH + "a=(x 'y z')\npaste <(echo 1) <(echo 2)\n[[ ${a[1]} =~ ^y ]] && echo ${#a[@]}\n"
    ),
    "stops at the first error": Case(BASH + "set -euo pipefail\necho 1\nfalse | cat\necho 2\n"),
    "names an unset variable with its line": Case(BASH + "set -u\n\necho $no_such\n"),
    "names an unknown command with its line": Case(SH + "\nno_such_command\nexit $?\n"),
    "a syntax error in its middle": Case(BASH + "echo 1\nif then\necho 2\n"),
    "numbers its lines": Case(BASH + "\necho $LINENO\nf() {\n  echo $LINENO\n}\nf\n"),
    "traces its commands": Case(BASH + "set -x\necho 1\nf() { echo 2; }\nf\n"),
    "traces its commands by its first line": Case("#!/bin/bash -ex\necho 1\nfalse\necho 2\n"),
    "traps its end and its errors": Case(
        BASH + "trap 'echo end $?' EXIT\ntrap 'echo error in $LINENO' ERR\nfalse\nexit 4\n"
    ),
    "cleans up when it is terminated": Case(
        BASH + "trap 'echo clean; exit 143' TERM\nkill -TERM $$\nsleep 9\n"
    ),
    "killed by a signal": Case(BASH + "echo before\nkill -KILL $$\n"),
    "parts in the background": Case(
        BASH + "for n in 1 2 3; do (sleep 0.1; exit $n) & all+=($!); done\nsum=0\n"
        "for p in ${all[@]}; do wait $p; sum=$((sum + $?)); done\necho $sum\njobs -p | wc -l\n"
    ),
    "starts itself again": Case(
        BASH + 'if [ "$1" ]; then echo "part $1"; exit; fi\n"$0" 1\n"$0" 2\n'
    ),
    "options by getopts": Case(
        SH + 'while getopts n:v o; do echo "$o=$OPTARG"; done\nshift $((OPTIND - 1))\necho "$@"\n',
        f"./{FILE} -n 3 -v rest",
    ),
    "a loop that reads standard input": Case(BASH + "while read -r a b; do echo $b $a; done\n"),
    "reads a file in its folder": Case(
        SH + 'while read -r l; do echo "<$l>"; done < in.txt\n', files={"in.txt": "1\n2 3\n"}
    ),
    "writes its log by exec": Case(
        BASH + "exec 8>&1 >run.log 2>&1\necho 1\nls no-such\ncat run.log >&8\n"
    ),
    "options in its first line": Case("#!/bin/sh -e\necho 1\nfalse\necho 2\n"),
    # The profile of the machine's own user may print, and take its time.
    "a login shell": Case(
        "#!/usr/bin/env -S bash --noprofile -l\nshopt -q login_shell && echo login\n"
    ),
    "bash by env": Case("#!/usr/bin/env bash\necho ${BASH_VERSION%%.*}\n"),
    "bash with options by env": Case("#!/usr/bin/env -S bash -eu\necho 1\nfalse\necho 2\n"),
    "conda by its hook": Case(
        BASH + 'eval "$(conda shell.bash hook)"\nconda activate ml\necho $CONDA_PREFIX\n',
        files={"bin/conda": CONDA},
        before="export PATH=$PWD/bin:$PATH",
    ),
    "conda as an exported function": Case(
        BASH + "conda activate ml\necho $CONDA_DEFAULT_ENV\n",
        env={"BASH_FUNC_conda%%": "() { export CONDA_DEFAULT_ENV=$2; }"},
    ),
    "module as an exported function": Case(
        BASH + "module load cuda/12.4\necho $CUDA_HOME\n",
        env={"BASH_FUNC_module%%": "() { eval export CUDA_HOME=/opt/$2; }"},
    ),
    "module by BASH_ENV": Case(
        BASH + "module list\n",
        files={"init": "module() { echo modules: $1; }\n"},
        before="export BASH_ENV=$PWD/init",
    ),
    "a virtual environment": Case(
        BASH + "source venv/bin/activate\npython -c 'import sys; print(sys.prefix)'\n", before=VENV
    ),
    "Python that imports its neighbour": Case(
        "#!/usr/bin/env python3\nimport sys, helper\n"
        "print(helper.answer(), sys.argv, sys.path[0], __file__)\nsys.exit(5)\n",
        f"./{FILE} a",
        {"helper.py": NEIGHBOUR},
        said=IN_PLACE,
    ),
    "Python by its program": Case(
        "import sys, helper\nprint(helper.answer(), sys.argv)\n",
        f"python3 {FILE} a",
        {"helper.py": NEIGHBOUR},
    ),
    "Python with an error": Case(
        "#!/usr/bin/env -S python3 -u\ndef f():\n    return 1 / 0\n\nf()\n", said=IN_PLACE
    ),
    "Python that is started by a shell": Case(
        "#!/bin/sh\n'''exec' python3 \"$0\" \"$@\"\n' '''\nprint(__file__)\n"
    ),
    "Perl with data": Case(
        '#!/usr/bin/perl\nuse FindBin;\nprint "$0 $FindBin::Bin\\n", <DATA>;\n__DATA__\n1\n',
        said=IN_PLACE,
    ),
    "awk": Case(
        "#!/usr/bin/awk -f\nBEGIN { print 6 * 7, ARGV[1]; exit 3 }\n",
        f"./{FILE} x",
        said=IN_PLACE,
    ),
    "the umask and limits of the shell": Case(
        BASH + "umask\nulimit -Sn\nulimit -Sc\n", before="umask 027; ulimit -Sn 512"
    ),
    "a script of another folder": Case(
        "",
        "../other/job.sh",
        {
            "../other/job.sh": BASH + 'echo "$0 $PWD"\n. "${BASH_SOURCE%/*}/lib.sh"\n',
            "../other/lib.sh": "echo lib\n",
        },
    ),
    "a script of /bin/sh that finds itself by its whole path": Case(
        SH + 'cd /\n. "$(dirname "$0")/lib.sh"\n',
        f"$PWD/{FILE}",
        {"lib.sh": "echo $0\n"},
        said=IN_PLACE,
    ),
    "a script of bash that finds itself by its whole path": Case(
        BASH + 'cd /\n. "$(dirname "$0")/lib.sh"\n',
        f"$PWD/{FILE}",
        {"lib.sh": "echo $0\n"},
    ),
    "a script for Slurm": Case(
        BASH + '#SBATCH --job-name=x\n#SBATCH --time=10\nsrun() { "$@"; }\nsrun echo 1\n',
        said="#SBATCH --job-name=x read as --name x",
    ),
    "a text without a first line": refused("echo plain\n", "names no interpreter"),
    "options without a first line": refused("#GPUCOORD --gpus 0\necho\n", "names no interpreter"),
    "Python without a first line": refused("print(1)\n", "names no interpreter", FILE),
    "line ends of Windows": refused("#!/bin/bash\r\ncd /tmp\r\n", "carriage returns"),
    "line ends of an old Mac": refused("#!/bin/bash\rtouch made\r", "carriage returns"),
    "a byte-order mark": refused(b"\xef\xbb\xbf#!/bin/bash\necho 1\n", "byte-order mark"),
    "UTF-16": refused((BASH + "echo 1\n").encode("utf-16"), "UTF-16"),
    "an interpreter that does not exist": refused("#!/opt/no/bash\necho 1\n", "does not exist"),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("scripts") / "data"
    try:
        with Service(data, GPUCOORD_RUN_AS="auto") as service:
            yield service
    finally:
        kill_jobs(data)


def _prepare(case: Case, folder: Path) -> None:
    for name, text in {FILE: case.text, **case.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(0o755)


def _started(case: Case, folder: Path, prefix: str, env: Mapping[str, str]) -> Ran:
    done = subprocess.run(
        ["/bin/bash", "-c", f"{case.before}\n{prefix} {case.start}"],
        cwd=folder,
        env={**env, **case.env},
        input=b"a b\nc d\n",
        capture_output=True,
        timeout=LONGEST_S,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    output = done.stdout.decode(errors="replace").replace(str(folder), "FOLDER")
    return Ran(code, output, done.stderr.decode(errors="replace"))


@pytest.fixture(scope="module")
def queued(
    service: Service, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str], Ran]:
    """How each chosen script ran as a job. They are submitted side by side."""
    home = tmp_path_factory.mktemp("home")
    env = ENV | {"HOME": str(home), "GPUCOORD_URL": service.address}
    command = f"PYTHONPATH={ROOT} {sys.executable} -m gpucoord_site submit --gpus 0 --"
    marks = [getattr(item, "callspec", None) for item in request.session.items]
    names = [mark.params["name"] for mark in marks if mark and mark.params.get("name") in SCRIPTS]

    def run(name: str) -> Ran:
        folder = home / f"{list(SCRIPTS).index(name)}/run"
        _prepare(SCRIPTS[name], folder)
        return _started(SCRIPTS[name], folder, command, env)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(run, names), strict=True)).__getitem__


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_the_same_as_a_job(
    name: str, queued: Callable[[str], Ran], tmp_path: Path
) -> None:
    case, job = SCRIPTS[name], queued(name)

    assert case.said in job.said
    if case.is_refused:
        assert (job.code, job.output) == (125, "")
        return
    _prepare(case, tmp_path / "run")
    directly = _started(case, tmp_path / "run", "exec 2>&1;", ENV | {"HOME": str(tmp_path)})
    assert (job.code, job.output) == (directly.code, directly.output), job.said
    assert (IN_PLACE in job.said) == (case.said == IN_PLACE)
