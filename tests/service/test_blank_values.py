"""Blank values are refused: by every option of every command, and by every field that can be null.

A blank value comes from a variable that is not set, as in `--name "$NAME"`.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser
from collections.abc import Iterator
from types import NoneType
from typing import get_args

import pytest
from pydantic import ValidationError

from gpucoord_site.cli import completion
from gpucoord_site.http.api import api
from monitor.api import BLANK_SENTENCE, RequestBody

OPTIONS = [
    pytest.param(parser, action, id=f"{name} {action.option_strings[-1]}")
    for name, parser in completion.parsers().items()
    for action in parser._actions
    if action.option_strings and action.nargs != 0
]


@pytest.mark.parametrize(("parser", "action"), OPTIONS)
def test_an_option_refuses_a_blank_value(
    parser: ArgumentParser, action: Action, capsys: pytest.CaptureFixture[str]
) -> None:
    for blank in ("", "  ", "\t"):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([f"{action.option_strings[-1]}={blank}"])

        assert ended.value.code == 2
        assert "the value is blank; " in capsys.readouterr().err


def _bodies(base: type[RequestBody] = RequestBody) -> Iterator[type[RequestBody]]:
    for body in base.__subclasses__():
        yield body
        yield from _bodies(body)


def _nullable_texts() -> list[object]:
    # It imports every body.
    assert api.urls
    return [
        pytest.param(body, name, id=f"{body.__name__}.{name}")
        for body in sorted(set(_bodies()), key=lambda each: (each.__module__, each.__name__))
        for name, field in body.model_fields.items()
        if {str, NoneType} <= set(get_args(field.annotation)) and name not in body.takes_blank
    ]


NULLABLE = _nullable_texts()


@pytest.mark.parametrize(("body", "name"), NULLABLE)
def test_a_field_that_can_be_null_refuses_a_blank_text(body: type[RequestBody], name: str) -> None:
    for blank in ("", "  ", "\t\n"):
        assert BLANK_SENTENCE in _refused(body, name, blank)
    assert BLANK_SENTENCE not in _refused(body, name, None)


@pytest.mark.parametrize(("body", "name"), NULLABLE)
def test_the_schema_says_that_a_blank_text_is_refused(body: type[RequestBody], name: str) -> None:
    assert "pattern" in body.model_json_schema()["properties"][name]


def test_the_table_has_the_fields_of_a_job() -> None:
    assert len(NULLABLE) > 30


def _refused(body: type[RequestBody], name: str, value: str | None) -> str:
    try:
        body.model_validate({name: value})
    except ValidationError as error:
        return str(error)
    return ""
