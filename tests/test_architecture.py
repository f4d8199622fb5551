"""A module's layer follows from its path; imports go down the layers of ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
APPS = ("monitor", "scheduler", "reports", "gpucoord_site")
FACTS, POLICY, ROWS, EDGES, STEPS, DOORS, WIRING = range(7)
# The last of these words in a module's path names its layer.
LAYER_WORDS = {
    **dict.fromkeys(("facts",), FACTS),
    **dict.fromkeys(("policy", "rules", "planner", "wording", "codec", "charts"), POLICY),
    **dict.fromkeys(("catalogue",), POLICY),
    **dict.fromkeys(("models", "rows"), ROWS),
    **dict.fromkeys(("probes", "runner", "senders", "engines"), EDGES),
    **dict.fromkeys(("step", "steps", "actions", "inputs"), STEPS),
    **dict.fromkeys(("api", "pages", "admin", "consumers", "live", "metrics", "tasks"), DOORS),
    **dict.fromkeys(("apps", "urls", "management", "templatetags"), DOORS),
}
MAY_IMPORT = {
    FACTS: {FACTS},
    POLICY: {FACTS, POLICY},
    ROWS: {FACTS, POLICY, ROWS},
    EDGES: {FACTS, POLICY, EDGES},
    STEPS: {FACTS, POLICY, ROWS, EDGES, STEPS},
    DOORS: {FACTS, POLICY, ROWS, EDGES, STEPS, DOORS},
    WIRING: set(range(7)),
}
# Leases and wake-ups need a process's identity and sockets: rows may use the edges of this subject.
BASE_SUBJECT = "monitor.runtime"
PURE_STDLIB = {
    "__future__", "base64", "bisect", "collections", "contextlib", "dataclasses", "datetime",
    "difflib", "enum", "fnmatch", "fractions", "functools", "hashlib", "heapq", "html", "ipaddress",
    "itertools", "json", "math", "operator", "re", "shlex", "statistics", "string", "types",
    "typing", "unicodedata", "zlib", "zoneinfo",
}  # fmt: skip
# msgspec makes classes of facts, writes and reads them, and reads thresholds.
# The checks of jsonschema take no argument of ours, so their steps are in a context variable.
PURE_LIBRARY = {"msgspec"}
PURE_LIBRARIES = {
    "scheduler.submission": {"contextvars", "jsonschema", "referencing"},
}
BANNED_NAMES = {"utils", "util", "helpers", "common", "core", "manager", "managers", "misc"}
CLOCKS = {
    "timezone.now", "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
    "time.time", "time.time_ns", "timezone.localtime", "timezone.localdate",
}  # fmt: skip
STARTERS = {"subprocess", "multiprocessing", "pty"}
DJANGO = {"django", "channels", "django_q", "structlog"}
SENDERS = {
    "os.kill", "os.killpg", "os.fork", "os.forkpty", "os.posix_spawn", "os.system",
    "signal.pidfd_send_signal", "signal.pthread_kill", "signal.raise_signal",
}  # fmt: skip
# Folders of declarations, which the tests of the pages and of the subjects reach.
# Modules that read what gpucoord wrote, and programs that run in a job, without gpucoord.
READERS_OF_OWN_JSON = {
    "gpucoord_site.demo.programs.serve",
    "gpucoord_site.yielding",
    "monitor.incidents.rules.cpu",
    # A runner loads no module of the monitor. It catches RecursionError itself.
    "scheduler.runner.files",
    "scheduler.runner.guardian",
    "scheduler.runner.programs.embed",
    "scheduler.runner.programs.serve",
    "scheduler.runner.programs.worker",
    "scheduler.runner.run",
    "scheduler.submission.scripts.policy",
}
WITHOUT_TESTS = {"admin", "api", "models", "templatetags"}
LONGEST_MODULE, LONGEST_FUNCTION = 800, 60


@dataclass(frozen=True, eq=False)
class Module:
    path: Path
    name: str
    tree: ast.Module
    lines: int

    @property
    def app(self) -> str:
        return self.parts[0]

    @property
    def parts(self) -> list[str]:
        return self.name.split(".")

    @property
    def subject(self) -> str:
        return ".".join(self.parts[:2])

    @property
    def layer(self) -> int | None:
        """None for a module whose path says no layer; that is a fault."""
        if self.app == "gpucoord_site":
            return WIRING
        words = [LAYER_WORDS[part] for part in self.parts[1:] if part in LAYER_WORDS]
        return words[-1] if words else None

    @property
    def is_empty_package(self) -> bool:
        body = [n for n in self.tree.body if not isinstance(n, ast.Expr)]
        return self.path.name == "__init__.py" and not body

    @property
    def runs_processes(self) -> bool:
        return self.app == "gpucoord_site" or self.name.startswith("scheduler.runner")

    def imports(self) -> set[str]:
        """Full dotted names; `from a import b` counts as a.b when a.b is one of our modules."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    names.add(full if full in _by_name() else node.module)
        return names

    def calls(self) -> set[str]:
        """The last two words of each called name: `django.utils.timezone.now` is timezone.now."""
        calls = (node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return {".".join(ast.unparse(f).split(".")[-2:]) for f in calls}


@cache
def _imports(module: Module) -> set[str]:
    return module.imports()


@cache
def _calls(module: Module) -> set[str]:
    return module.calls()


def _read(path: Path) -> Module:
    text = path.read_text()
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Module(path, name, ast.parse(text), text.count("\n"))


def _is_source(path: Path) -> bool:
    return not {"migrations", "__pycache__"} & set(path.parts)


@cache
def _by_name() -> dict[str, Module]:
    """Read when a test asks for it: every worker imports this file."""
    paths = (path for app in APPS for path in sorted((ROOT / app).rglob("*.py")))
    return {m.name: m for m in map(_read, filter(_is_source, paths))}


def _modules() -> Iterable[Module]:
    return _by_name().values()


def _internal(module: Module) -> Iterator[Module]:
    """The modules of the project that it imports, without empty packages."""
    for name in _imports(module):
        if name in _by_name() and not _by_name()[name].is_empty_package:
            yield _by_name()[name]


def _external(module: Module) -> set[str]:
    return {name.split(".")[0] for name in _imports(module)} - set(APPS)


def _offenders(
    bad: Callable[[Module], Iterable[str]], where: Callable[[Module], bool] = lambda _: True
) -> dict[str, list[str]]:
    """{module: what it does against the rule}, of the modules that the rule is about."""
    return {m.name: sorted(names) for m in _modules() if where(m) and (names := list(bad(m)))}


def test_every_module_has_a_layer() -> None:
    at_top = {*APPS}
    homeless = [
        m.name
        for m in _modules()
        if m.layer is None and not m.is_empty_package and m.name not in at_top
    ]

    assert homeless == []


def test_imports_go_down_the_layers() -> None:
    def upwards(m: Module) -> Iterator[str]:
        allowed = MAY_IMPORT[m.layer] if m.layer is not None else set()
        for other in _internal(m):
            based = m.layer == ROWS and other.subject == BASE_SUBJECT
            if other.layer not in allowed and not based:
                yield other.name

    assert not _offenders(upwards, where=lambda m: not m.is_empty_package)


def test_facts_and_policy_import_only_pure_modules() -> None:
    assert not _offenders(
        lambda m: _external(m) - PURE_STDLIB - PURE_LIBRARY - PURE_LIBRARIES.get(m.subject, set()),
        where=lambda m: m.layer in {FACTS, POLICY},
    )


def test_a_runner_and_all_that_it_loads_need_the_standard_library_alone() -> None:
    """It runs where no other package is: apart from site-packages, and on nodes of Slurm."""
    reached = {m for m in _modules() if m.name.startswith("scheduler.runner")}
    waiting = list(reached)
    while waiting:
        new = set(_internal(waiting.pop())) - reached
        reached |= new
        waiting += new
    foreign = {m.name: names for m in reached if (names := _external(m) - sys.stdlib_module_names)}

    assert foreign.keys() <= {
        f"scheduler.runner.programs.{name}" for name in ("embed", "serve", "transcribe")
    }


def test_edges_never_import_django() -> None:
    assert not _offenders(lambda m: _external(m) & DJANGO, where=lambda m: m.layer == EDGES)


def test_apps_import_downwards_only() -> None:
    above = {app: set(APPS[i + 1 :]) for i, app in enumerate(APPS)}

    assert not _offenders(lambda m: {o.name for o in _internal(m) if o.app in above[m.app]})


def _subject_graph() -> Mapping[str, set[str]]:
    """Imports between subjects. Doors are left out: a page may show several subjects."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module in _modules():
        if module.app != "gpucoord_site" and module.layer != DOORS:
            others = {o.subject for o in _internal(module)} - {module.subject, module.app}
            graph[module.subject] |= others
    return graph


def test_subjects_form_no_cycle() -> None:
    try:
        TopologicalSorter(_subject_graph()).prepare()
        cycle: list[str] = []
    except CycleError as error:
        cycle = error.args[1]

    assert cycle == []


def test_pynvml_and_psutil_have_one_door_each() -> None:
    doors = {
        "monitor.gpus.sampling.probes.nvml": {"pynvml"},
        "monitor.gpus.sampling.probes.host": {"psutil"},
    }

    assert not _offenders(lambda m: _external(m) & {"pynvml", "psutil"} - doors.get(m.name, set()))


def test_apprise_has_one_door() -> None:
    assert not _offenders(
        lambda m: _external(m) & {"apprise"},
        where=lambda m: m.name != "monitor.incidents.alerts.senders",
    )


def test_only_modules_of_rest_need_ninja_and_pydantic() -> None:
    """REST is loaded after the first live frames, in the web process alone."""
    is_rest = re.compile(r"\.api(_errors)?$").search

    assert not _offenders(
        lambda m: _external(m) & {"ninja", "pydantic", "pydantic_core"},
        where=lambda m: is_rest(m.name) is None,
    )


def test_only_the_runner_and_the_supervisor_start_and_signal_processes() -> None:
    assert not _offenders(
        lambda m: (_external(m) & STARTERS) | (_calls(m) & SENDERS),
        where=lambda m: not m.runs_processes,
    )


def test_only_doors_read_a_clock() -> None:
    assert not _offenders(
        lambda m: _calls(m) & CLOCKS, where=lambda m: m.layer != DOORS and not m.runs_processes
    )


def test_django_q_stays_in_tasks_and_wiring() -> None:
    assert not _offenders(
        lambda m: _external(m) & {"django_q"},
        where=lambda m: m.parts[-1] != "tasks" and m.app != "gpucoord_site",
    )


def test_json_of_others_is_read_by_one_function() -> None:
    """It turns the RecursionError of a nested text into a ValueError."""

    def reads(m: Module) -> set[str]:
        return _calls(m) & {"json.load", "json.loads"}

    assert _offenders(reads, where=lambda m: m.name not in READERS_OF_OWN_JSON).keys() == {
        "monitor.facts.input_rules"
    }
    assert _offenders(reads).keys() >= READERS_OF_OWN_JSON


def test_only_wiring_and_edges_read_the_environment() -> None:
    def reads(m: Module) -> set[str]:
        nodes = (n for n in ast.walk(m.tree) if isinstance(n, ast.Attribute))
        return {ast.unparse(n) for n in nodes if n.attr == "environ"}

    assert not _offenders(reads, where=lambda m: m.layer not in {WIRING, EDGES})


def test_the_space_of_disks_is_read_in_one_place() -> None:
    def reads(m: Module) -> set[str]:
        nodes = (n for n in ast.walk(m.tree) if isinstance(n, ast.Attribute))
        return {ast.unparse(n) for n in nodes if n.attr in {"statvfs", "disk_usage"}}

    assert set(_offenders(reads)) == {"monitor.runtime.probes.disk_space"}


def test_modules_and_functions_stay_short() -> None:
    def long(m: Module) -> list[str]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        functions = (n for n in ast.walk(m.tree) if isinstance(n, kinds))
        over = [
            f.name
            for f in functions
            if (f.end_lineno or f.lineno) - f.lineno + 1 > LONGEST_FUNCTION
        ]
        return [*over, f"{m.lines} lines"] if m.lines > LONGEST_MODULE else over

    assert not _offenders(long)


def test_package_files_hold_imports_and_names_only() -> None:
    def code(m: Module) -> list[str]:
        plain = ast.Import | ast.ImportFrom | ast.Assign | ast.Expr
        return [type(node).__name__ for node in m.tree.body if not isinstance(node, plain)]

    assert not _offenders(code, where=lambda m: m.path.name == "__init__.py")


IMPORT_IN_TEXT = re.compile(rf"from ((?:{'|'.join(APPS)})(?:\.\w+)+) import ([\w, ]+)")


def test_programs_in_texts_import_what_is_there() -> None:
    paths = [path for top in (*APPS, "tests") for path in (ROOT / top).rglob("*.py")]
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    imports = {match for text in texts for match in IMPORT_IN_TEXT.findall(str(text))}
    assert len(imports) > 5

    names = [(module, part.split()[0]) for module, parts in imports for part in parts.split(",")]
    assert [name for name in sorted(names) if not _is_there(*name)] == []


def _is_there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or bool(import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_modules_are_named_after_what_they_hold() -> None:
    assert not _offenders(lambda m: BANNED_NAMES & set(m.parts))


def test_modules_say_what_they_are_for() -> None:
    def declares(m: Module) -> bool:
        return "models" in m.parts or m.parts[-1] == "apps" or m.is_empty_package or m.lines <= 12

    assert not _offenders(
        lambda m: () if ast.get_docstring(m.tree) else ["no docstring"],
        where=lambda m: not declares(m),
    )


def test_the_rules_see_the_modules() -> None:
    assert _by_name()["monitor.facts.readings"].layer == FACTS
    assert _by_name()["scheduler.queue.planner.plan"].layer == POLICY
    assert _by_name()["scheduler.models.jobs"].layer == ROWS
    assert _by_name()["monitor.gpus.sampling.probes.host"].layer == EDGES
    assert "scheduler.facts.jobs" in _by_name()["scheduler.models.jobs"].imports()
    assert set(sys.stdlib_module_names) >= PURE_STDLIB


def test_all_packages_stand_in_the_apps_and_in_the_site() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}

    assert packages == {"gpucoord_site", "monitor", "scheduler", "reports", "tests"}


def test_tests_mirror_the_subjects() -> None:
    subjects = {m.subject for m in _modules() if m.app != "gpucoord_site" and m.path.parent != ROOT}
    folders = {s for s in subjects if "." in s and (ROOT / s.replace(".", "/")).is_dir()}
    tested = {
        f"{app}.{path.name}"
        for app in APPS
        for path in (ROOT / "tests" / app).glob("*/")
        if any(path.rglob("test_*.py"))
    }

    assert {s for s in folders - tested if s.split(".")[1] not in WITHOUT_TESTS} == set()
    assert tested - folders == set()
