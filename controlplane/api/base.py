"""What every resource uses: strict schemas, the blueprint, the services, the actor."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import marshmallow as ma
from flask import Request, current_app, request
from flask_smorest import Blueprint as SmorestBlueprint
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import BadRequest

from controlplane.services.context import Services
from controlplane.services.fleet import Plain

View = TypeVar("View", bound=Callable[..., Any])

PREFIX = "/api/v1"
EXTENSION = "llmgw-services"
ACTOR_HEADER = "Llmgw-Actor"
MAX_ACTOR = 100

MODEL_OR_ALIAS = ma.validate.Regexp(
    r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}\Z", error="is not the name of a model or alias"
)


class Schema(ma.Schema):
    """Unknown fields are refused on the way in; unknown values are absent on the way out."""

    class Meta:
        """Marshmallow's options."""

        unknown = ma.RAISE

    @ma.post_dump
    def leave_out_unknown(self, data: Plain, **_: Any) -> Plain:
        """An absent field is unknown, which is not zero."""
        return {key: value for key, value in data.items() if value is not None}


class Empty(Schema):
    """A body without fields."""


class _Parser(FlaskParser):
    DEFAULT_UNKNOWN_BY_LOCATION = {"json": ma.RAISE, "query": ma.RAISE}

    def _raw_load_json(self, req: Request) -> Any:
        try:
            body = super()._raw_load_json(req)
            if body is not ma.missing:
                json.dumps(body, ensure_ascii=False).encode()
        except RecursionError as error:
            raise BadRequest("the body is nested too deeply") from error
        except UnicodeEncodeError as error:  # half of a surrogate pair: nothing could store or show it
            raise BadRequest("the body holds text that is not Unicode") from error
        return body


class Blueprint(SmorestBlueprint):  # type: ignore[misc]
    """A resource's routes, whose unknown query and body fields are refused.

    The decorators are flask-smorest's, with types.
    """

    ARGUMENTS_PARSER = _Parser()

    def view(self, method: str, rule: str) -> Callable[[View], View]:
        """The view of one method of one route."""
        return cast(Callable[[View], View], self.route(rule, methods=[method]))

    def takes(self, schema: type[Schema], **options: Any) -> Callable[[View], View]:
        """What the view is given: the JSON body, or the query."""
        return cast(Callable[[View], View], self.arguments(schema, **options))

    def answers(self, status: int, schema: type[Schema]) -> Callable[[View], View]:
        """What the view returns."""
        return cast(Callable[[View], View], self.response(status, schema))


def services() -> Services:
    """The services of the application that handles the request."""
    return cast(Services, current_app.extensions[EXTENSION])


def actor() -> str:
    """Who asks, as the client says it, fit for a log: for people to know, not a proof."""
    said = request.headers.get(ACTOR_HEADER, "")[:MAX_ACTOR]
    return re.sub(r"[^A-Za-z0-9@._+:()\- ]", "?", said).strip() or "api"


class Figure(ma.fields.Float):
    """A number for people: three decimals. What JSON cannot write is unknown."""

    def _serialize(self, value: Any, *_: Any, **__: Any) -> Any:
        return round(float(value), 3) if value is not None and math.isfinite(value) else None


def number(**options: Any) -> Figure:
    """A figure that may be unknown."""
    return Figure(**options)


def items(schema: type[Schema]) -> Any:
    """The list of a collection."""
    return ma.fields.List(ma.fields.Nested(schema), required=True)
