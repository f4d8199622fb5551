"""JSON of others: whatever the text, the answer is a value or a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts import input_rules


@given(st.binary())
def test_any_text_is_a_value_or_a_value_error(text: bytes) -> None:
    try:
        value = input_rules.parse_json(text)
    except ValueError:
        return
    assert repr(value) == repr(json.loads(text))


@pytest.mark.parametrize("nested", ["[" * 200_000, '{"a":' * 200_000, b"[" * 200_000])
def test_a_text_that_is_nested_too_deeply_is_a_value_error(nested: str | bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        input_rules.parse_json(nested)


def test_nan_is_refused_where_it_is_not_allowed() -> None:
    assert input_rules.parse_json("[Infinity]") == [float("inf")]
    with pytest.raises(ValueError, match="NaN is no JSON"):
        input_rules.parse_json("[NaN]", allows_nan=False)
