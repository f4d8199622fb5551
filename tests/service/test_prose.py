"""Texts for people are plain English: short sentences, and none of a few patterns."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from django.apps import apps
from django.forms import BaseForm

from gpucoord_site.accounts.views import *  # noqa: F403 - its forms are found as subclasses
from monitor import catalogue as of_monitor
from monitor.thresholds import policy as declaration
from scheduler import catalogue as of_scheduler

ROOT = Path(__file__).resolve().parents[2]
OURS = {"monitor", "scheduler", "reports", "gpucoord_site"}
PAPERS = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
LONGEST_P90 = 25
FORBIDDEN = {
    "an indefinite person": r"\b(?:nobody|no one|somebody|someone|anybody|anyone|everybody|everyone"
    r"|whoever|whomever|whom)\b",
    "a relative clause as a subject": r"^(?:Who|What|Whose|Whatever)\b(?!.*\?$)",
    "an elliptical quantity": r"\bso (?:long|many|much|often)\b(?! (?:as|that)\b)",
    "told": r"\b(?:is|are|was|were|be|been) told\b|can't be told|\bcan tell\b|\bcan't tell\b",
    "never not": r"\bnever not\b",
    "good of": r"\bany good of\b",
}
# Names that stand for nothing, or for something else in the field; the standard word is beside.
REPLACED_NAMES = {
    "nursery": "runner_pool", "wishes": "requests", "giving_way": "yield_requests",
    "leavers": "deactivated_users", "manners": "yield_options", "quitter": "cancelled",
    "overseer": "hang_guard", "sparing": "exemptions", "spared": "exempt", "scene": "rule_input",
    "emptiness": "empty_bookings", "bounder": "limits", "standings": "accounts",
    "standing": "account", "outlook": "forecast", "prospect": "forecast", "grip": "effect",
    "sight": "input", "strain": "load_signal", "hands": "process_actions", "fate": "decision",
    "whom": "beneficiary", "sharedout": "HostCapacity", "keptgpu": "GpuHold",
    "cpulook": "CpuScanState", "tallies": "counters", "chores": "periodic_tasks",
    "use_ladder": "attribution", "use_carry": "accounting_state", "stepping_back": "niceness",
    "seal": "encrypt", "sealed": "encrypted", "refusing": "rejection", "suiting": "matching",
}  # fmt: skip
# They do not say what the value is; the noun for it does.
VAGUE_NAMES = {"found", "told", "asked", "what", "who", "whom", "one"}
ANY_REPLACED = re.compile(rf"\b_*(?:{'|'.join(REPLACED_NAMES)})_*\b", re.IGNORECASE)
PATTERNS = {name: re.compile(text, re.IGNORECASE) for name, text in FORBIDDEN.items()}
PATTERNS["a relative clause as a subject"] = re.compile(FORBIDDEN["a relative clause as a subject"])
RELATIVE = re.compile(r"\b(?:Who|What|Whose|Whatever)\b")


def sentences(text: str) -> Iterator[str]:
    """The sentences of one paragraph, cell or label, without code and links."""
    plain = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "X", text, flags=re.S)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z“\"])", " ".join(plain.split())):
        if stripped := part.strip(" *#-–·|"):
            yield stripped


def paragraphs(markdown: str) -> Iterator[str]:
    """Paragraphs, list items and cells of tables."""
    text = re.sub(r"```.*?```", "\n\n", markdown, flags=re.S)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)", text):
        if block.lstrip().startswith("|"):
            for line in block.splitlines():
                yield from (cell for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -"))
        else:
            yield re.sub(r"^\s*(?:[-*]|\d+\.) ", "", block)


@cache
def _sentences(path: Path) -> tuple[str, ...]:
    return tuple(s for part in paragraphs(path.read_text()) for s in sentences(part))


def words(sentence: str) -> int:
    return len(re.findall(r"[\w'’./%-]+", sentence))


def p90(lengths: list[int]) -> int:
    return sorted(lengths)[int(len(lengths) * 0.9)] if lengths else 0


def offences(texts: Iterable[str]) -> list[str]:
    return [
        f"{name}: {text}"
        for text in texts
        for name, pattern in PATTERNS.items()
        if pattern.search(text)
    ]


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_nine_of_ten_sentences_are_short(path: Path) -> None:
    long = [s for s in _sentences(path) if words(s) > LONGEST_P90]

    assert p90([words(s) for s in _sentences(path) if words(s) > 3]) <= LONGEST_P90, long


@pytest.mark.parametrize(
    "path", [*PAPERS, ROOT / "CHANGELOG.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_papers_are_plain_english(path: Path) -> None:
    assert offences(_sentences(path)) == []


def _texts_of_template(path: Path) -> Iterator[str]:
    text = re.sub(
        r"\{#.*?#\}|\{% comment %\}.*?\{% endcomment %\}", "", path.read_text(), flags=re.S
    )
    text = re.sub(r"\{\{.*?\}\}", "X", text, flags=re.S)
    text = re.sub(r"\{%.*?%\}", "\n\n", text, flags=re.S)
    attributes = re.findall(r'\b(?:title|placeholder|aria-label)="([^"]*)"', text)
    text = re.sub(r"</?(?:b|i|em|strong|code|a|span|small|kbd)\b[^>]*>", "", text)
    for part in re.split(r"<[^>]*>|\n\s*\n", text):
        yield from sentences(part)
    for attribute in attributes:
        yield from sentences(attribute)


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "templates").rglob("*.html")),
    ids=lambda p: str(p.relative_to(ROOT / "templates")),
)
def test_templates_are_plain_english(path: Path) -> None:
    assert offences(_texts_of_template(path)) == []


def _policies() -> dict[str, type]:
    return of_monitor.POLICIES | of_scheduler.POLICIES


@pytest.mark.parametrize("name", sorted(_policies()))
def test_thresholds_are_plain_english(name: str) -> None:
    kind = _policies()[name]
    texts = [kind.__doc__ or ""]
    for threshold in declaration.thresholds(kind).values():
        texts += [threshold.label, threshold.help]

    assert offences(s for text in texts for s in sentences(text)) == []


def test_titles_of_topics_and_profiles_are_plain_english() -> None:
    topics = of_monitor.TOPICS | of_scheduler.TOPICS
    policies = [title for named in topics.values() for title in named.values()]
    titles = [*topics, *policies, *of_monitor.PROFILE_WORDS.values()]

    assert offences(s for text in titles for s in sentences(text)) == []


def _subclasses(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def test_forms_are_plain_english() -> None:
    import gpucoord_site.urls  # noqa: F401 - imports every form

    texts = []
    for form in _subclasses(BaseForm):
        if form.__module__.split(".")[0] in OURS:
            for field in getattr(form, "base_fields", {}).values():
                texts += [str(field.label or ""), str(field.help_text)]
            for hints in ("HINTS", "HELP", "LABELS"):
                texts += getattr(form, hints, {}).values()

    assert len(texts) > 20
    assert offences(s for text in texts for s in sentences(str(text))) == []


def test_labels_and_help_of_models_are_plain_english() -> None:
    texts = [
        str(text)
        for app in OURS & {config.label for config in apps.get_app_configs()}
        for model in apps.get_app_config(app).get_models()
        for text in [
            model._meta.verbose_name,
            model._meta.verbose_name_plural,
            *(getattr(f, "verbose_name", "") for f in model._meta.get_fields()),
            *(getattr(f, "help_text", "") for f in model._meta.get_fields()),
        ]
    ]

    assert offences(s for text in texts for s in sentences(text)) == []


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("Nobody holds a lock.", False),
        ("What waits is shown.", False),
        ("What does the queue show?", True),
        ("Whose jobs run first is decided by shares.", False),
        ("The user is told at once.", False),
        ("Logs are kept for so long.", False),
        ("The log is so long that it is cut.", True),
        ("The account `nobody` runs it.", True),
        ("Wake-ups are hints only.", True),
    ],
)
def test_the_patterns(text: str, is_plain: bool) -> None:
    assert (offences(sentences(text)) == []) is is_plain


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names of classes, functions, parameters and variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id


def replaced_names(source: str) -> dict[str, str]:
    """The old names that the source defines, each with the name to use instead."""
    if not ANY_REPLACED.search(source):
        return {}
    names = {name: name.strip("_").lower() for name in _defined(ast.parse(source))}
    return {name: REPLACED_NAMES[word] for name, word in names.items() if word in REPLACED_NAMES}


def test_code_uses_the_standard_names() -> None:
    sources = [p for top in [*OURS, "tests"] for p in sorted((ROOT / top).rglob("*.py"))]
    modules = {p.stem for p in sources} & set(REPLACED_NAMES)
    names = {
        str(path.relative_to(ROOT)): old
        for path in sources
        if "migrations" not in path.parts and (old := replaced_names(path.read_text()))
    }

    assert (modules, names) == (set(), {})


def test_an_old_name_is_recognised_wherever_it_is_defined() -> None:
    source = "class Scene: ...\ndef f(_hands): wishes = 1"

    assert replaced_names(source) == {
        "Scene": "rule_input",
        "_hands": "process_actions",
        "wishes": "requests",
    }


def vague_names(source: str) -> set[str]:
    tree = ast.parse(source)
    attributes = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    # A constant of all capitals can be the name of a state.
    names = {name for name in {*_defined(tree), *attributes} if name != "ASKED"}
    return {name for name in names if name.strip("_").lower() in VAGUE_NAMES}


def test_names_say_what_the_value_is() -> None:
    names = {
        str(path.relative_to(ROOT)): vague
        for top in sorted(OURS)
        for path in sorted((ROOT / top).rglob("*.py"))
        if "migrations" not in path.parts and (vague := vague_names(path.read_text()))
    }

    assert names == {}


def test_a_vague_name_is_recognised_wherever_it_is_defined() -> None:
    source = "def who(what): return [found for found in what]\nself._asked = told.whom\nfinding = 1"

    assert vague_names(source) == {"who", "what", "found", "_asked"}


def comments_and_strings(source: str) -> Iterator[str]:
    """Comments, and strings of more than one word: those are texts."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and len(token.string.split()) > 1
        if token.type == tokenize.COMMENT or is_text:
            yield token.string


# The OS account of that name.
ACCOUNT = re.compile(r"`[^`]*`|\"nobody\"|run_as = nobody|the account nobody|{NOBODY}")


def test_comments_and_texts_say_user_process_or_job() -> None:
    person = PATTERNS["an indefinite person"]
    sources = {
        path: path.read_text() for top in OURS for path in sorted((ROOT / top).rglob("*.py"))
    }
    places = [
        f"{path.relative_to(ROOT)}: {text}"
        for path, source in sources.items()
        if person.search(source)
        for text in comments_and_strings(source)
        if person.search(ACCOUNT.sub("", text))
    ]

    assert places == []


def beginnings(source: str) -> Iterator[str]:
    """The first line of each docstring and of each block of comments."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text.splitlines()[0]
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_block = token.line.lstrip().startswith("#")
            if not (is_block and token.start[0] == before + 1):
                yield token.string.lstrip("# ")
            before = token.start[0]


def test_docstrings_and_comments_begin_with_no_relative_clause() -> None:
    clause = PATTERNS["a relative clause as a subject"]
    places = [
        f"{path.relative_to(ROOT)}: {text}"
        for top in [*OURS, "tests"]
        for path in sorted((ROOT / top).rglob("*.py"))
        if RELATIVE.search(source := path.read_text())
        for text in beginnings(source)
        if clause.search(text)
    ]

    assert places == []


def test_the_beginnings_of_docstrings_and_comments_are_read() -> None:
    source = '"""What it is.\n\nMore."""\n# Why so:\n# What follows.\nx = 1  # Who waits\n'

    assert list(beginnings(source)) == ["What it is.", "Why so:", "Who waits"]


def test_comments_and_strings_are_read_but_not_code() -> None:
    source = 'x = "one"  # nobody waits\ny = f("no one waits")\nnobody = 1\n'

    assert list(comments_and_strings(source)) == ["# nobody waits", '"no one waits"']
