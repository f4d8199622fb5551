"""Validation of REST bodies and parameters; unknown fields are refused. Bodies of answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import wraps
from types import NoneType
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError

from monitor.facts.formats import AnswerField
from monitor.facts.input_rules import (
    CHARACTER_SENTENCE,
    TIME_SENTENCE,
    character_problem,
    holds_unstorable,
    is_storable,
    parse_time,
)
from monitor.owners.policy import Viewer
from monitor.pages.requests import SENTENCE, InvalidInput

BLANK_SENTENCE = "This is blank. Leave the field out, or write null for its default."
# A text that is not blank, in JSON Schema.
NOT_BLANK = r"\S"


def caller(request: HttpRequest) -> User:
    """The user of a request to REST."""
    person: User = request.auth  # type: ignore[attr-defined]
    return person


def calling_viewer(request: HttpRequest) -> Viewer:
    """The user of a request to REST, as the privacy rules need it."""
    person = caller(request)
    return Viewer(person.get_username(), operator=person.is_staff)


def sentence_error(text: str, field: str = "") -> PydanticCustomError:
    """A validation error with a sentence; `field` names another field than the one checked."""
    return PydanticCustomError(SENTENCE, "{text}", {"text": text, "field": field})


class RequestBody(BaseModel):
    """A JSON object without unknown fields; its texts can be stored.

    A text that can be null is not blank: null means the default. takes_blank: fields in which an
    empty text is a value.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    takes_blank: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _check_characters(cls, data: Any) -> Any:
        for name, value in data.items() if isinstance(data, Mapping) else ():
            if not is_storable(name):
                raise sentence_error(CHARACTER_SENTENCE, ascii(name)[1:-1])
            if not cls._holds_bodies(name) and holds_unstorable(value):
                raise sentence_error(CHARACTER_SENTENCE, name)
            if isinstance(value, str) and not value.strip() and cls._refuses_blank(name):
                raise sentence_error(BLANK_SENTENCE, name)
        return data

    @classmethod
    def _holds_bodies(cls, name: str) -> bool:
        """Whether its parts are bodies, which check their own fields and so name them."""
        field = cls.model_fields.get(name)
        kinds = get_args(field.annotation) if field is not None else ()
        return any(isinstance(kind, type) and issubclass(kind, RequestBody) for kind in kinds)

    @classmethod
    def _refuses_blank(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        kinds = get_args(field.annotation) if field is not None else ()
        return {str, NoneType} <= set(kinds) and name not in cls.takes_blank

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name in filter(cls._refuses_blank, properties):
            properties[name].setdefault("pattern", NOT_BLANK)
        return schema

    @model_validator(mode="wrap")
    @classmethod
    def _name_unknown_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if not any(map(_is_unknown_field, details)):
                raise
            names = {field.alias or name for name, field in cls.model_fields.items()}
            lines = [_with_suggestion(each, names) for each in details]
            raise ValidationError.from_exception_data(error.title, lines) from None


def answer_model(
    name: str, base: type[BaseModel], answers: Iterable[AnswerField]
) -> type[BaseModel]:
    """A body of answers with these values, and those of `base`."""
    values: dict[str, Any] = {f.name: (f.json, Field(description=f.help)) for f in answers}
    return create_model(name, __base__=base, **values)


def body_of(answer: type[BaseModel], row: object, /, **others: Any) -> dict[str, Any]:
    """The fields of an answer: the attributes of `row` with their names, and `others`."""
    names = answer.model_fields.keys() - others.keys()
    return {name: getattr(row, name) for name in names} | others


def _is_unknown_field(error: ErrorDetails) -> bool:
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1


def _with_suggestion(error: ErrorDetails, names: set[str]) -> InitErrorDetails:
    """The same error; that of an unknown field suggests one of these names."""
    kind: str | PydanticCustomError = error["type"]
    if _is_unknown_field(error):
        kind = sentence_error(unknown_name(str(error["loc"][0]), names))
    elif kind == SENTENCE:
        kind = sentence_error(**error["ctx"])
    context = error.get("ctx", {})
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"], ctx=context)


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        return parse_time(value if isinstance(value, str) else "")
    except ValueError:
        raise sentence_error(TIME_SENTENCE) from None


def _plain(text: str) -> str:
    if problem := character_problem(text):
        raise sentence_error(problem)
    return text


def _lines(text: str) -> str:
    if problem := character_problem(text, lines=True):
        raise sentence_error(problem)
    return text


def stated(kind: Any, **limits: Any) -> Any:
    """A type whose limits are in the schema alone: the form or the row checks them."""
    return Annotated[kind, Field(json_schema_extra=limits)]


# A time with its offset, in UTC afterwards.
Moment = Annotated[datetime, BeforeValidator(_time)]
# A name or a reason: neither control nor format characters. Lines: line ends are possible.
PlainText = Annotated[str, AfterValidator(_plain)]
PlainLines = Annotated[str, AfterValidator(_lines)]


def refuse_unknown_parameters(view: Callable[..., Any]) -> Callable[..., Any]:
    """Answer 422 when the address has a parameter that the operation does not know."""
    parameters = _query_names(view)

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if request.GET:
            in_path = request.resolver_match.kwargs if request.resolver_match else {}
            _refuse_unknown(request.GET, parameters - set(in_path))
        return view(request, *args, **kwargs)

    return checked


def _refuse_unknown(query: Mapping[str, Any], parameters: set[str]) -> None:
    unknown = [name for name in query if name not in parameters]
    if unknown:
        raise InvalidInput([(name[:100], unknown_name(name, parameters)) for name in unknown[:10]])


def unknown_name(name: str, names: set[str]) -> str:
    """The sentence for a field or parameter that does not exist."""
    close = get_close_matches(name[:100], names - {name}, 1)
    return f"There is no such field.{f' Did you mean {close[0]}?' if close else ''}"


def _query_names(view: Callable[..., Any]) -> set[str]:
    hints = get_type_hints(view, include_extras=True)
    in_models = {
        field.alias or name
        for hint in hints.values()
        for model in [_query_model(hint)]
        if model is not None
        for name, field in model.model_fields.items()
    }
    return in_models | {
        _alias(hint) or name
        for name, hint in hints.items()
        if name not in ("request", "return")
        and not (isinstance(hint, type) and issubclass(hint, BaseModel | HttpResponse))
        and _query_model(hint) is None
        and not any(_is_header(mark) for mark in getattr(hint, "__metadata__", ()))
    }


def _query_model(hint: object) -> type[BaseModel] | None:
    """The schema of several parameters: Annotated[Schema, Query()]."""
    kind = get_args(hint)[0] if getattr(hint, "__metadata__", ()) else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _alias(hint: object) -> str | None:
    """The name of the parameter in the address, if it differs from the argument's."""
    marks = getattr(hint, "__metadata__", ())
    return next((mark.alias for mark in marks if getattr(mark, "alias", None)), None)


def _is_header(mark: object) -> bool:
    source = getattr(mark, "_param_source", None)
    return callable(source) and source() == "header"
