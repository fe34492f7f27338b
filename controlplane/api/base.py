"""What every resource uses: strict schemas, the blueprint, the services, the actor."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, wraps
from typing import Any, Protocol, TypeVar, cast

import marshmallow as ma
from flask import Request, Response, current_app, g, request
from flask_smorest import Blueprint as SmorestBlueprint
from webargs.flaskparser import FlaskParser, is_json_request
from werkzeug.exceptions import BadRequest

from controlplane.api.body import BadBody, read_body
from controlplane.api.dump import Plan, dump, plan
from controlplane.api.slices import render
from controlplane.services.changes import Asked, Changed, Principal, Replayed, etag, request_digest
from controlplane.services.context import Services
from controlplane.services.errors import Refused, invalid
from controlplane.services.fleet import Plain
from controlplane.services.paging import page_by_name
from controlplane.store.values import Role

T = TypeVar("T")
View = TypeVar("View", bound=Callable[..., Any])

PREFIX = "/api/v1"
EXTENSION = "llmgw-services"
ACTOR_HEADER = "Llmgw-Actor"
MAX_ACTOR = 100

READ: tuple[Role, ...] = ("admin", "operator", "auditor")
READ_SCOPED: tuple[Role, ...] = (*READ, "owner")
OPERATE: tuple[Role, ...] = ("admin", "operator")
OPERATE_SCOPED: tuple[Role, ...] = (*OPERATE, "owner")
ADMIN_ONLY: tuple[Role, ...] = ("admin",)
AUDIT: tuple[Role, ...] = ("admin", "auditor")
"""Who may use an operation (API-08). Where ``owner`` is among them the service limits what
is read or changed to the principal's scopes."""

NEEDS: dict[str, tuple[Role, ...]] = {}
"""The roles of every operation, by Flask endpoint."""

MAX_PAGE = 5000

KEY_HEADER = "Idempotency-Key"
KEY = re.compile(r"[\x21-\x7e]{1,200}")
TAGS = re.compile(r'\*|(?:W/)?"[\x21\x23-\x7e]{0,100}"(?:\s*,\s*(?:W/)?"[\x21\x23-\x7e]{0,100}"){0,20}')

MODEL_OR_ALIAS = ma.validate.Regexp(
    r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}\Z", error="is not the name of a model or alias"
)


class Schema(ma.Schema):
    """Unknown fields are refused on the way in; unknown values are absent on the way out."""

    class Meta:
        """Marshmallow's options."""

        unknown = ma.RAISE

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """A field of a mapping is an entry of it, never one of its methods (``keys``)."""
        return obj.get(attr, default) if isinstance(obj, dict) else super().get_attribute(obj, attr, default)

    @cached_property
    def _plan(self) -> Plan | None:
        return plan(self, "leave_out_unknown")

    def dump(self, obj: Any, *, many: bool | None = None) -> Any:
        """``obj`` as plain values; a dict, which is what services answer with, by a short cut."""
        if type(obj) is not dict or many or self.many or self._plan is None:
            return super().dump(obj, many=many)
        return dump(self._plan, obj)

    @ma.post_dump
    def leave_out_unknown(self, data: Plain, **_: Any) -> Plain:
        """An absent field is unknown, which is not zero."""
        return {key: value for key, value in data.items() if value is not None}


class Empty(Schema):
    """A body without fields."""


class PageQuery(Schema):
    """Which part of a list (API-04)."""

    limit = ma.fields.Integer(
        load_default=500, validate=ma.validate.Range(1, MAX_PAGE), metadata={"description": "Most entries to answer."}
    )
    cursor = ma.fields.String(
        validate=ma.validate.Length(1, 500),
        metadata={"description": "The field next of the answer before; leave it out for the beginning."},
    )


class PageAnswer(Schema):
    """Part of a list. ``next`` is absent at the end."""

    next = ma.fields.String(metadata={"description": "Send it as cursor to go on."})


class _Parser(FlaskParser):
    DEFAULT_UNKNOWN_BY_LOCATION = {"json": ma.RAISE, "query": ma.RAISE}

    def _raw_load_json(self, req: Request) -> Any:
        if not is_json_request(req):
            return ma.missing
        data = req.get_data(cache=True)
        if not data:
            return ma.missing
        try:
            return read_body(data)
        except BadBody as error:
            raise BadRequest(str(error)) from error


class Blueprint(SmorestBlueprint):  # type: ignore[misc]
    """A resource's routes, whose unknown query and body fields are refused.

    The decorators are flask-smorest's, with types.
    """

    ARGUMENTS_PARSER = _Parser()

    def view(
        self,
        method: str,
        rule: str,
        roles: Sequence[Role],
        *,
        changes: bool | None = None,
        versioned: bool | None = None,
        tagged: bool = False,
    ) -> Callable[[View], View]:
        """The view of one method of one route, for users with one of the roles.

        ``changes``: it goes through ``change`` or ``act``, and so obeys Idempotency-Key
        (default: all but GET). ``versioned``: it obeys If-Match (default: every PUT, PATCH
        and DELETE of one thing). ``tagged``: its answer has an ETag. All three go into the
        OpenAPI document.
        """
        if changes is None:
            changes = method != "GET"
        if versioned is None:
            versioned = method in ("PUT", "PATCH", "DELETE") and "<" in rule

        def add(view: View) -> View:
            NEEDS[f"{self.name}.{view.__name__}"] = tuple(roles)
            notes = {"x-llmgw-roles": list(roles), "x-llmgw-changes": changes, "x-llmgw-versioned": versioned}
            notes["x-llmgw-tagged"] = tagged
            return cast(View, self.route(rule, methods=[method])(self.doc(**notes)(view)))

        return add

    def alternatively(self, status: int, **options: Any) -> Callable[[View], View]:
        """Another answer of the view, for the document: its ``schema``, ``content_type``."""
        return cast(Callable[[View], View], self.alt_response(status, **options))

    def takes(self, schema: type[Schema], **options: Any) -> Callable[[View], View]:
        """What the view is given: the JSON body, or the query."""
        parsed = cast(Callable[[View], View], self.arguments(schema, **options))
        body = options.get("location", "json") == "json" and options.get("required", True)
        if not body or any(field.required for field in schema().load_fields.values()):
            return parsed  # an empty body lacks those fields

        def add(view: View) -> View:
            given = parsed(view)

            @wraps(given)
            def checked(*args: Any, **kwargs: Any) -> Any:
                if not request.get_data():
                    raise invalid("", "the request has no body: send JSON")
                return given(*args, **kwargs)

            return cast(View, checked)

        return add

    def answers(self, status: int, schema: type[Schema] | None = None, **options: Any) -> Callable[[View], View]:
        """What the view returns: fields of ``schema``, written as JSON in slices, so that
        a long list (which may be an iterator) does not hold the hub. Without a schema the
        answer has no body (status 204)."""
        documented = self.response(status, schema, **options)
        dumped = schema() if schema else None

        def add(view: View) -> View:
            @wraps(view)
            def written(*args: Any, **kwargs: Any) -> Any:
                result = view(*args, **kwargs)
                if isinstance(result, Response):
                    return result
                if dumped is None:
                    empty = Response(status=status)
                    del empty.headers["Content-Type"]
                    return empty
                return Response(render(dumped, result), status, mimetype="application/json")

            return cast(View, documented(written))

        return add


def services() -> Services:
    """The services of the application that handles the request."""
    return cast(Services, current_app.extensions[EXTENSION])


def principal() -> Principal:
    """Who was proven to ask."""
    return cast(Principal, g.principal)


def asked(operation: str) -> Asked:
    """The change that the request at hand asks for; ``operation`` names it in the audit.
    Raises ``Refused`` for headers that cannot be what they should."""
    return Asked(
        principal=principal(),
        operation=operation,
        said=said(),
        request_id=g.request_id,
        if_match=_header("If-Match", TAGS, 'must be an entity tag as ETag had it, such as "3", or *'),
        if_none_match=_header("If-None-Match", TAGS, 'must be *, or an entity tag as ETag had it, such as "3"'),
        idempotency_key=_header(KEY_HEADER, KEY, "must be 1 to 200 printable ASCII characters without spaces"),
        digest=request_digest(request.method, request.full_path, request.get_data()),
    )


def _header(name: str, pattern: re.Pattern[str], words: str) -> str | None:
    value = request.headers.get(name)
    if value is not None and not pattern.fullmatch(value):
        raise invalid(name, words)
    return value


def change(operation: str, make: Callable[[Asked], T], again: Callable[[str], T]) -> T:
    """Carry out a change; a request that was carried out before, under the same
    Idempotency-Key, is answered with what ``again`` reads of its target now."""
    order = asked(operation)
    try:
        try:
            return make(order)
        except Refused as error:
            if order.idempotency_key is not None and error.code != "store_unavailable":
                # A twin of the request may have been carried out while we looked at this one.
                services().changes.recall(order)
            raise
    except Replayed as error:
        g.replayed = True
        return again(error.target)


def act(operation: str, work: Callable[[Asked], Changed[T]], again: Callable[[str], T]) -> T:
    """The same for what changes something outside the store, which must work while the
    store is away: ``work`` does it and says what it did (``Changes.carry_out``)."""
    return change(operation, lambda asked: services().changes.carry_out(asked, lambda: work(asked)), again)


def tag(version: int, *, live: bool = False) -> None:
    """Send the resource's version as ETag. ``live``: the answer shows more than what has
    the version, such as a state, so it is never answered with 304."""
    g.etag = etag(version)
    g.live = live


def tagged(shown: Plain) -> Plain:
    """The answer that shows a resource beside its version: with its ETag."""
    tag(shown["version"], live=True)
    return shown


def said() -> str:
    """Who asks, as the client says it, fit for a log: for people to know, not a proof."""
    said = request.headers.get(ACTOR_HEADER, "")[:MAX_ACTOR]
    return re.sub(r"[^A-Za-z0-9@._+:()\- ]", "?", said).strip()


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


def page(field: str, found: Mapping[str, T], query: Plain, show: Callable[[T], Plain]) -> Plain:
    """A ``PageAnswer``: in ``field`` the part of what is found that a ``PageQuery`` asks for,
    ordered by key. Raises ``Refused``."""
    keys, after = page_by_name(sorted(found), query["limit"], query.get("cursor"))
    return {field: (show(found[key]) for key in keys), "next": after}


class _Made(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> float: ...


Made = TypeVar("Made", bound=_Made)


def by_age(rows: Iterable[Made]) -> dict[str, Made]:
    """Rows by a key that orders them by age, the oldest first."""
    return {f"{row.created_at:020.6f} {row.id}": row for row in rows}
