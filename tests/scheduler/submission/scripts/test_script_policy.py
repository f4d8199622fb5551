from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.facts.jobs import LARGEST_RESULT, read_result
from scheduler.facts.scripts import SHIPPED, GpuUse, Script, Word
from scheduler.runner.programs import embed, keyframes
from scheduler.submission.scripts.policy import (
    TooManySteps,
    command,
    definition_mistakes,
    item_mistakes,
    mistakes,
    read_arguments,
    request,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "pattern": "^/"},
        "width": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "model": {"type": "string", "default": "small"},
    },
    "required": ["input"],
}
ARGV: tuple[Word, ...] = ("run", "{input}", "--model={model}", ["--width", "{width}"], "{tags}")


def script(**changes: Any) -> Script:
    return Script(
        **({"name": "run", "argv": ARGV, "schema": SCHEMA, "item_argument": "input"} | changes)
    )


def test_arguments_take_their_places_as_whole_words() -> None:
    values = {"input": "/a b; rm -rf $HOME", "model": "x", "tags": ["one", "two 2"], "width": 3}

    assert command(script(), values, {}) == [
        "run", "/a b; rm -rf $HOME", "--model=x", "--width", "3", "one", "two 2",
    ]  # fmt: skip


def test_words_of_arguments_that_are_not_given_are_left_out() -> None:
    assert command(script(), {"input": "/a", "model": "x"}, {}) == ["run", "/a", "--model=x"]


def test_defaults_and_texts_get_the_type_of_the_schema() -> None:
    given = {"input": "/a", "width": "3", "tags": "one\ntwo\n"}

    assert read_arguments(script(), given) == {
        "input": "/a", "width": 3, "tags": ["one", "two"], "model": "small",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({}, "input"),
        ({"input": "relative"}, "input"),
        ({"input": "/a", "width": 0}, "width"),
        ({"input": "/a", "width": "wide"}, "width"),
        ({"input": "/a", "tags": ["a", 2]}, "tags.1"),
        ({"input": "/a", "colour": "red"}, "colour"),
    ],
)
def test_a_wrong_argument_is_named_as_the_schema_names_it(
    given: dict[str, Any], where: str
) -> None:
    found = mistakes(script(), read_arguments(script(), given))

    assert [place for place, _ in found] == [where]
    assert all(text.endswith(".") for _, text in found)


def test_huge_arguments_are_refused_before_they_are_checked() -> None:
    assert mistakes(script(), {"input": "/" + "x" * 30_000})[0][0] == ""


def test_hostile_arguments_are_answered_within_milliseconds() -> None:
    """Nested brackets, thousands of mistakes, and texts that make a pattern slow."""
    rules = {
        "n": {"type": "integer"},
        "list": {"type": "array", "items": {"type": "string"}},
        "text": {"type": "string", "pattern": ".*-.*-.*x$"},
        "tree": {"$ref": "#/properties/tree"},
    }
    hostile: list[dict[str, Any]] = [
        {"n": "[" * 19_000},
        {"list": list(range(3000))},
        {"text": "-" * 15_000},
        {"tree": 1},
    ]
    chosen = script(argv=("run",), schema={"properties": rules}, item_argument="")
    began = time.process_time()

    for given in hostile:
        assert mistakes(chosen, read_arguments(chosen, given))
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "(a|aa)*b", r"^(\w+\s?)*$", "(a?){30}a{30}", "((a*)*)*", "a*" * 8, "("]
)
def test_a_pattern_that_can_take_very_long_is_refused(pattern: str) -> None:
    chosen = script(argv=("run",), schema={"properties": {"input": {"pattern": pattern}}})

    assert definition_mistakes(chosen)


@pytest.mark.parametrize(
    "pattern", [r"^/data/.*\.wav$", "^[a-z]+-[0-9]+$", r"^\d{4}-\d{2}-\d{2}$", "^(small|large)$"]
)
def test_everyday_patterns_can_be_used(pattern: str) -> None:
    chosen = script(argv=("run",), schema={"properties": {"input": {"pattern": pattern}}})

    assert not definition_mistakes(chosen)
    assert item_mistakes(chosen, ["?"], 1) == [(0, f"'?' does not match {pattern!r}.")]


@pytest.mark.parametrize(
    ("items", "is_refused"),
    [
        ([1, "1", True, None, [1], {"a": 1}], False),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], True),
        ([1, 2, 1.0], True),
        ([True, 1], False),
        (["a", *range(3000)], False),
    ],
)
def test_items_that_must_differ_are_compared_within_milliseconds(
    items: list[Any], is_refused: bool
) -> None:
    one = script(schema={"properties": {"items": {"type": "array", "uniqueItems": True}}})
    began = time.process_time()

    assert bool(mistakes(one, {"items": items})) == is_refused
    assert time.process_time() - began < 0.5


def test_many_long_items_for_a_slow_pattern_are_refused() -> None:
    slow = {"properties": {"input": {"type": "string", "pattern": ".*a.*b?$"}}}
    chosen = script(argv=("run",), schema=slow)
    began = time.process_time()

    with pytest.raises(TooManySteps):
        item_mistakes(chosen, ["a" * 150] * 10_000, 20)
    assert time.process_time() - began < 3
    assert item_mistakes(chosen, ["a" * 20] * 1000, 20) == []


def test_an_item_is_checked_as_its_argument() -> None:
    assert item_mistakes(script(), ["/a"], 20) == []
    (place, text), *_ = item_mistakes(script(), ["/a", "relative", "other"], 20)
    assert place == 1
    assert "relative" in text
    assert len(item_mistakes(script(), ["relative"] * 50, 20)) == 20


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": {"type": "string"}}, "schema"),
        ({"schema": {"properties": {"Bad Name": {}}}}, "schema"),
        ({"schema": {"properties": {"input": {"type": "text"}}}}, "schema"),
        ({"schema": {"$ref": "http://example.org/schema"}}, "schema"),
        ({"schema": [1]}, "schema"),
        ({"argv": ()}, "argv"),
        ({"argv": (["run"],)}, "argv"),
        ({"argv": ("run", 5)}, "argv"),
        ({"argv": ("run", "{unknown}")}, "argv"),
        ({"item_argument": "unknown"}, "item_argument"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(changes: dict[str, Any], field: str) -> None:
    assert [where for where, _ in definition_mistakes(script(**changes))] == [field]


def test_the_shipped_scripts_can_be_used() -> None:
    for facts in SHIPPED:
        names = ("name", "argv", "schema", "item_argument")
        assert definition_mistakes(Script(**{n: facts[n] for n in names})) == [], facts["name"]


def test_a_request_gets_what_the_script_says_unless_it_says_so_itself() -> None:
    one = script(memory_bytes=5, usual_s=45, time_limit_s=600)

    assert request(one, {}) == {
        "name": "run", "gpu_memory": 5, "estimate": 45, "time_limit": 600,
    }  # fmt: skip
    assert request(one, {"estimate": "1h", "name": "mine"}) == {"gpu_memory": 5, "time_limit": 600}
    assert request(script(gpu=GpuUse.NO, memory_bytes=5), {"gpus": 1}) == {
        "name": "run", "gpus": 0,
    }  # fmt: skip


def test_a_result_is_json_of_limited_size() -> None:
    assert read_result(b"") is None
    assert read_result(b'{"a": [1, null]}') == {"output": {"a": [1, None]}}
    for bad in (b"{", b"NaN", b"[" * 20_000, b'"' + b"x" * LARGEST_RESULT + b'"', b'"\\u0000"'):
        assert list(read_result(bad) or {}) == ["problem"]


def test_ffmpeg_opens_files_only() -> None:
    words = keyframes.arguments(Path("/a/http:b.mp4"), Path("/out"), 64)

    assert "file:/a/http:b.mp4" in words
    assert words[words.index("-protocol_whitelist") + 1] == "file"


def test_the_program_for_embeddings_says_which_package_is_missing(tmp_path: Path) -> None:
    text = tmp_path / "in.txt"
    text.write_text("hello\n")
    done = subprocess.run(
        [sys.executable, "-S", "-E", keyframes.__file__.replace("keyframes", "embed"), text,
         tmp_path / "out", "--model=x"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 3
    assert "sentence-transformers is not installed" in done.stderr


def test_other_models_are_run_by_the_package_sentence_transformers(tmp_path: Path) -> None:
    """The package itself is not installed here: its interface is what its documentation says."""
    (tmp_path / "sentence_transformers.py").write_text(
        "class SentenceTransformer:\n"
        "    def __init__(self, name): self.size = {'all-mpnet-base-v2': 768}[name]\n"
        "    def encode(self, texts): return [[float(len(t))] * self.size for t in texts]\n"
    )
    (tmp_path / "in.txt").write_text("a\nbcd\n")
    result, output = tmp_path / "result.json", tmp_path / "out"
    subprocess.run(
        [sys.executable, embed.__file__, tmp_path / "in.txt", output,
         "--model=all-mpnet-base-v2"],
        env={"PYTHONPATH": str(tmp_path), "GPUCOORD_RESULT_FILE": str(result)}, check=True,
    )  # fmt: skip

    vectors = [json.loads(line)["vector"] for line in output.read_text().splitlines()]
    assert vectors == [[1.0] * 768, [3.0] * 768]
    expected = {"lines": 2, "dimensions": 768, "output": str(output)}
    assert json.loads(result.read_text()) == expected


def test_lines_are_embedded_in_order_with_progress_and_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, output = tmp_path / "progress", tmp_path / "out"
    monkeypatch.setenv("GPUCOORD_PROGRESS_FILE", str(progress))
    lines = [f"line {number}" for number in range(100)]

    assert embed.embed(lambda part: [[len(text)] * 768 for text in part], lines, output) == 768

    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["text"] for line in written] == lines
    assert progress.read_text() == "100/100 100 of 100 lines"


@pytest.mark.parametrize("reference", ["#", "#/$defs/loop", "#/$defs/none"])
def test_a_reference_to_itself_or_to_nothing_is_refused(reference: str) -> None:
    schema = {
        "properties": {"input": {}},
        "$defs": {"loop": {"$ref": "#/$defs/loop"}},
        "allOf": [{"$ref": reference}],
    }

    found = definition_mistakes(script(schema=schema, argv=("run",)))

    assert [where for where, _ in found] == ["schema"]


def test_an_item_is_checked_by_the_definitions_of_the_schema() -> None:
    schema = {
        "properties": {"input": {"$ref": "#/$defs/path"}},
        "$defs": {"path": {"type": "string", "pattern": "^/"}},
    }
    one = script(schema=schema, argv=("run", "{input}"))

    assert definition_mistakes(one) == []
    assert [place for place, _ in item_mistakes(one, ["/a", "relative"], 20)] == [1]


@pytest.mark.parametrize("text", ["[" * 5000, "1e999", "9" * 5000, "nan", "-Infinity"])
def test_a_number_that_json_cannot_hold_is_refused(text: str) -> None:
    found = mistakes(script(), read_arguments(script(), {"input": "/a", "width": text}))

    assert [place for place, _ in found] == ["width"]


def test_arguments_that_no_check_can_work_with_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    schema = {"properties": {"x": {"type": "number", "multipleOf": 0.1}}}

    assert mistakes(script(schema=schema), {"x": deep})
    assert mistakes(script(schema=schema), {"x": 10**400})
    assert mistakes(script(schema=schema), {"x": float("nan")}) == [
        ("", "A number must be finite.")
    ]  # fmt: skip


def test_many_mistakes_are_named_within_a_bounded_time() -> None:
    schema = {"properties": {"tags": {"type": "array", "items": {"type": "integer"}}}}

    assert len(mistakes(script(schema=schema), {"tags": ["a"] * 3000})) == 10
