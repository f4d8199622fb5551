"""Invalid tokens cost few look-ups in the database, and valid ones go on beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler.language_models.model_proxy import rows
from scheduler.language_models.model_proxy.api.book import Book
from scheduler.language_models.model_proxy.policy import (
    INTERVAL_S,
    LOOKUPS,
    MOST_ADDRESSES,
    REFUSED_FOR_S,
    Caller,
    Refused,
    UnknownTokens,
)


def test_an_address_has_some_look_ups_at_once_and_then_a_steady_rate() -> None:
    unknown = UnknownTokens()

    assert [unknown.delay("a", 5.0) for _ in range(LOOKUPS)] == [0.0] * LOOKUPS
    assert unknown.delay("a", 5.0) == pytest.approx(INTERVAL_S)
    assert unknown.delay("b", 5.0) == 0
    assert unknown.delay("a", 5.0 + INTERVAL_S) == 0
    assert unknown.delay("a", 5.0 + INTERVAL_S) > 0


def test_look_ups_of_valid_tokens_do_not_count() -> None:
    unknown = UnknownTokens()
    for _ in range(10 * LOOKUPS):
        assert unknown.delay("a", 5.0) == 0
        unknown.give_back("a")


def test_a_refused_token_is_refused_without_a_look_up_for_a_second() -> None:
    unknown = UnknownTokens()
    unknown.add("wrong", 5.0)

    assert unknown.is_refused("wrong", 5.0 + REFUSED_FOR_S / 2)
    assert not unknown.is_refused("wrong", 5.0 + REFUSED_FOR_S)
    assert not unknown.is_refused("other", 5.0)


def test_addresses_beyond_the_most_share_one_limit() -> None:
    unknown = UnknownTokens()
    for number in range(MOST_ADDRESSES):
        unknown.delay(f"10.0.{number}", 5.0)
    for number in range(LOOKUPS):
        assert unknown.delay(f"10.1.{number}", 5.0) == 0

    assert unknown.delay("10.2.0", 5.0) > 0
    # Addresses without recent look-ups are forgotten.
    assert unknown.delay("10.2.0", 5.0 + 2 * INTERVAL_S) == 0


class Tokens:
    """Stands for the table of tokens. looked_up: the tokens of each query."""

    def __init__(self) -> None:
        self.valid: dict[str, Caller] = {}
        self.looked_up: list[str] = []

    def caller_of(self, token: str, _now: object) -> Caller | None:
        self.looked_up.append(token)
        return self.valid.get(token)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    made = Tokens()
    monkeypatch.setattr(rows, "caller_of", made.caller_of)
    return made


@pytest.fixture
def book() -> Iterator[Book]:
    made = Book("here")
    yield made
    made.close()


async def test_a_flood_of_invalid_tokens_costs_a_bounded_number_of_queries(
    book: Book, tokens: Tokens
) -> None:
    ada = tokens.valid["ada"] = Caller(user_id=1, name="ada")
    await book.caller("ada", "10.0.0.1", "/v1/models")
    refused = []
    for number in range(2 * LOOKUPS):
        try:
            assert await book.caller(f"wrong {number}", "10.0.0.1", "/v1/models") is None
        except Refused as error:
            refused.append(error)

    assert LOOKUPS <= len(tokens.looked_up) <= 1.5 * LOOKUPS
    assert {(each.status, each.retry_after_s) for each in refused} == {(429, 1)}
    # A token that was valid before is looked up again, and a new one from another address.
    book._callers.update({token: (0.0, caller) for token, (_, caller) in book._callers.items()})
    assert await book.caller("ada", "10.0.0.1", "/v1/models") == ada
    assert await book.caller("ada", "10.0.0.2", "/v1/models") == ada


async def test_the_same_invalid_token_is_looked_up_once_a_second(
    book: Book, tokens: Tokens
) -> None:
    for _ in range(20):
        assert await book.caller("revoked", "10.0.0.1", "/v1/models") is None

    assert len(tokens.looked_up) <= 2


async def test_a_token_works_as_soon_as_it_is_made(book: Book, tokens: Tokens) -> None:
    assert await book.caller("other", "10.0.0.1", "/v1/models") is None
    tokens.valid["new"] = Caller(user_id=1, name="ada")

    assert await book.caller("new", "10.0.0.1", "/v1/models") is not None


async def test_a_token_that_becomes_invalid_is_forgotten(book: Book, tokens: Tokens) -> None:
    tokens.valid["ada"] = Caller(user_id=1, name="ada")
    await book.caller("ada", "10.0.0.1", "/v1/models")
    tokens.valid.clear()
    book._callers["ada"] = (0.0, book._callers["ada"][1])

    assert await book.caller("ada", "10.0.0.1", "/v1/models") is None
    assert "ada" not in book._callers
