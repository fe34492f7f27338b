"""Scopes, and reports of what their keys used, over a real control plane."""

import csv
import io
from itertools import count
from typing import Any

from llmgw.wire.routing import RequestRecord, UsageBatch, encode
from tests.fakes.controlplane import until
from tests.fleet.controlplane.resources.asking import SIM, Api

_sequence = count(1)


def report(api: Api, *records: RequestRecord) -> None:
    """What a router sends of finished requests."""
    batch = UsageBatch(boot="test", sequence=next(_sequence), records=records)
    url = f"{api.control_plane.routers}/router/v1/usage"
    headers = {"Content-Type": "application/json"}
    answer = api.control_plane.router().post(url, data=encode(batch), headers=headers, timeout=10)
    assert answer.status_code == 204, answer.text


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(**{"ago": 1.0, "model": "sim-small", "status": 200, **fields})


def test_the_tree_of_scopes(shared_api: Api) -> None:
    """TEN-01: a parent first, three levels, a title that changes; the version is obeyed."""
    orphan = shared_api.refused(422, "POST", "scopes", {"path": "tree/team"})
    assert "'tree' does not exist" in orphan["faults"][0]["message"]
    for path in ("tree", "tree/team", "tree/team/project"):
        shared_api.ok("POST", "scopes", {"path": path, "title": f"The {path}"})
    assert "three parts" in shared_api.refused(422, "POST", "scopes", {"path": "a/b/c/d"})["faults"][0]["message"]
    for path in ("Tree", "tree//x", "/tree", "tree/", "trée"):
        shared_api.refused(422, "POST", "scopes", {"path": path})
    shared_api.refused(409, "POST", "scopes", {"path": "tree"})
    kinds = {row["path"]: row["kind"] for row in shared_api.ok("GET", "scopes?under=tree")["scopes"]}
    assert kinds == {"tree": "org", "tree/team": "team", "tree/team/project": "project"}
    assert shared_api.ok("PUT", "scopes/tree", {"title": "Wood"}, If_Match='"1"')["title"] == "Wood"
    shared_api.refused(412, "PUT", "scopes/tree", {"title": "Stone"}, If_Match='"1"')
    assert "did you mean tree/team?" in shared_api.refused(404, "GET", "scopes/tree/teem")["message"]


def test_a_scope_in_use_stays(shared_api: Api) -> None:
    """TEN-01: the refusal names what uses it: scopes, keys, models, grants."""
    for path in ("used", "used/below"):
        shared_api.ok("POST", "scopes", {"path": path})
    shared_api.ok("POST", "models", {"name": "uses", "owner": "used", **SIM})
    key = shared_api.ok("POST", "keys", {"name": "a key", "scope": "used"})
    shared_api.ok("POST", "users", {"name": "user-of-used", "roles": [{"role": "owner", "scope": "used"}]})
    words = shared_api.refused(409, "DELETE", "scopes/used")["message"]
    assert all(name in words for name in ("used/below", key["id"], "models uses", "user-of-used")), words
    shared_api.ok("DELETE", "models/uses")
    shared_api.ok("DELETE", f"keys/{key['id']}")
    assert shared_api.ask("DELETE", "users/user-of-used").status_code == 204
    assert shared_api.ask("DELETE", "scopes/used/below").status_code == 204
    assert shared_api.ask("DELETE", "scopes/used").status_code == 204
    shared_api.refused(404, "DELETE", "scopes/used")


def test_only_admins_change_scopes(shared_api: Api) -> None:
    """API-08: an operator sees all, an owner its own and what is beneath."""
    shared_api.ok("POST", "scopes", {"path": "seen"})
    shared_api.ok("POST", "scopes", {"path": "seen/sub"})
    operator = shared_api.user("op-scopes", {"role": "operator"})
    owner = shared_api.user("own-scopes", {"role": "owner", "scope": "seen/sub"})
    operator.refused(403, "POST", "scopes", {"path": "mine"})
    assert "seen" in {row["path"] for row in operator.ok("GET", "scopes")["scopes"]}
    assert [row["path"] for row in owner.ok("GET", "scopes")["scopes"]] == ["seen/sub"]
    owner.refused(404, "GET", "scopes/seen")


def test_usage_by_what_one_asks(shared_api: Api) -> None:
    """TEN-06, CLI-05: sums by key, scope, model and time; single requests with all that is
    known of them; unknown tokens are no zeros."""
    shared_api.ok("POST", "scopes", {"path": "counted"})
    shared_api.ok("POST", "scopes", {"path": "counted/team"})
    one = shared_api.ok("POST", "keys", {"name": "one", "scope": "counted"})["id"]
    two = shared_api.ok("POST", "keys", {"name": "two", "scope": "counted/team"})["id"]
    report(
        shared_api,
        record(id="req-1", key=one, prompt_tokens=10, completion_tokens=5, duration=1.5, endpoint="sim-small-1"),
        record(id="req-2", key=two, status=503, code="overloaded", retried=("connect",), asked="small"),
        record(id="req-3", key=two, prompt_tokens=7, completion_tokens=3),
    )
    until(lambda: shared_api.ask("GET", "requests/req-3").status_code == 200, "the request in the store")
    rows = {row["key"]: row for row in shared_api.ok("GET", "usage?by=key,day&scope=counted")["usage"]}
    assert (rows[one]["requests"], rows[one]["prompt_tokens"], rows[one]["key_name"]) == (1, 10, "one")
    assert (rows[two]["requests"], rows[two]["failed"], rows[two]["uncounted"]) == (2, 1, 1)
    (whole,) = shared_api.ok("GET", "usage?by=model&scope=counted")["usage"]
    assert (whole["model"], whole["requests"], whole["completion_tokens"]) == ("sim-small", 3, 8)
    found = shared_api.ok("GET", "requests/req-2")
    assert found["retried"] == ["connect"] and found["asked"] == "small" and "prompt_tokens" not in found
    failed = shared_api.ok("GET", "requests?scope=counted&failed=true")["requests"]
    assert [row["id"] for row in failed] == ["req-2"]
    first = shared_api.ok("GET", "requests?scope=counted&limit=2")
    rest = shared_api.ok("GET", f"requests?scope=counted&limit=2&cursor={first['next']}")
    assert {row["id"] for row in [*first["requests"], *rest["requests"]]} == {"req-1", "req-2", "req-3"}
    unknown = shared_api.refused(404, "GET", "requests/req-none")
    assert "kept for 7 days" in unknown["message"]

    owner = shared_api.user("own-usage", {"role": "owner", "scope": "counted/team"})
    assert {row["id"] for row in owner.ok("GET", "requests")["requests"]} == {"req-2", "req-3"}
    assert owner.ok("GET", "usage?by=scope")["usage"][0]["requests"] == 2
    owner.refused(404, "GET", "requests/req-1")
    owner.refused(403, "GET", "usage?scope=counted")
    both = shared_api.user("own-both", {"role": "owner", "scope": "counted"}, {"role": "owner", "scope": "seen"})
    assert "counted, seen" in both.refused(422, "GET", "usage")["faults"][0]["message"]


def test_a_table_that_a_spreadsheet_opens_without_harm(shared_api: Api) -> None:
    """TEN-06: CSV by Accept or by format; what would be a formula is text."""
    key = shared_api.ok("POST", "keys", {"name": "=cmd|' /C calc'!A0"})["id"]
    report(shared_api, record(id="req-csv", key=key, prompt_tokens=1, completion_tokens=1))
    until(lambda: shared_api.ask("GET", "requests/req-csv").status_code == 200, "the request in the store")
    answer = shared_api.ask("GET", f"usage?by=key,hour&key={key}", Accept="text/csv")
    assert (
        answer.headers["Content-Type"].startswith("text/csv") and "attachment" in answer.headers["Content-Disposition"]
    )
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["key_name"] == "'=cmd|' /C calc'!A0" and row["requests"] == "1" and row["start"].endswith("+00:00")
    answer = shared_api.ask("GET", f"requests?format=csv&key={key}")
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row["id"] == "req-csv" and row["stream"] == "false" and row["first_byte_seconds"] == ""
    # JSON goes first where both would do.
    assert shared_api.ask("GET", "usage", Accept="*/*").headers["Content-Type"] == "application/json"


def test_the_request_log_can_be_off(shared_api: Api) -> None:
    """API-06, TEN-06: then sums are kept all the same, and the 404 says why."""
    key = shared_api.ok("POST", "keys", {"name": "unlogged"})["id"]
    shared_api.ok("PUT", "settings/requests.log", {"value": False})
    report(shared_api, record(id="req-off", key=key))
    until(lambda: shared_api.ok("GET", f"usage?key={key}")["usage"], "the sum")
    assert "requests.log" in shared_api.refused(404, "GET", "requests/req-off")["message"]
    shared_api.ok("DELETE", "settings/requests.log")
