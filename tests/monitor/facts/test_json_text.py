"""JSON of others: whatever the text, the answer is a value or a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts import json_text


@given(st.binary())
def test_any_text_is_a_value_or_a_value_error(text: bytes) -> None:
    try:
        value = json_text.parse(text)
    except ValueError:
        return
    assert repr(value) == repr(json.loads(text))


@pytest.mark.parametrize("nested", ["[" * 200_000, '{"a":' * 200_000, b"[" * 200_000])
def test_a_text_that_is_nested_too_deeply_is_a_value_error(nested: str | bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        json_text.parse(nested)


def test_nan_is_refused_where_it_is_not_allowed() -> None:
    assert json_text.parse("[Infinity]") == [float("inf")]
    with pytest.raises(ValueError, match="NaN is no JSON"):
        json_text.parse("[NaN]", allows_nan=False)
