"""The limits in the threat model are those of the code (SEC-03, RTR-13, AGT-03)."""

from typing import Any

import agent.readiness
import agent.rounds
import agent.settings
import agent.supervise.output
import controlplane.settings
import router.control
import router.keys
import router.settings
import router.upstream
from controlplane import identities
from controlplane.api import app, body
from controlplane.catalog import load, source, web
from controlplane.leadership import notice, teller
from controlplane.listeners import connection, door, files, handshake, http, join, refusals, routers, upgrade
from controlplane.services import auth, joining
from llmgw.identity import authority, pem, tls
from llmgw.identity import joining as join_client
from llmgw.runtime import yamlfile
from llmgw.runtime.settings import Settings
from llmgw.wire import frames, routing
from tests.unit.project.tree import ROOT

PAGE = ROOT / "docs/explanation/threat-model.md"

KIB, MIB = 1024, 1024 * 1024


def size(number: float) -> str:
    """Bytes as the page writes them."""
    return f"{number / MIB:g} MiB" if number >= MIB else f"{number / KIB:g} KiB"


def rows() -> dict[str, str]:
    """The table of limits."""
    text = PAGE.read_text().split("## Limits on what comes from outside")[1].split("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {what: limit for what, limit in found if what != "what"}


def by_default(settings: Settings, name: str) -> Any:
    """A setting's default."""
    return settings.index[name].default


def test_limits_are_those_of_the_code() -> None:
    """Every row, and no other."""
    assert handshake.LIMIT == tls.HANDSHAKE_LIMIT
    ours, theirs = controlplane.settings.SETTINGS, router.settings.SETTINGS
    header, most = by_default(theirs, "limits.header_bytes"), by_default(theirs, "limits.header_count")
    wanted = {
        "TLS handshake with agents, routers, joiners, the admin API: time in all": f"{handshake.LIMIT:g} s",
        "peers of one listener in their handshake at once; then the longest silent goes": f"{handshake.MAX_WAITING}",
        "agents: time from handshake to hello": f"`agents.hello`, {by_default(ours, 'agents.hello')}",
        "agents: connections before hello, all together": (
            f"`agents.max_pending`, {by_default(ours, 'agents.max_pending')}"
        ),
        "agents: connections before hello of one identity": f"{door.MAX_EACH}",
        "agents: head of the request for a session": f"{size(upgrade.MAX_HEAD)}, {upgrade.MAX_HEADERS} fields",
        "a frame, either way": size(frames.MAX_FRAME),
        "frames that wait for an agent that does not read": size(connection.MAX_QUEUED),
        "routers and admin API: connections at once; then who asked for nothing goes": f"{http.MAX_CONNECTIONS}",
        "join listener: connections at once, the same": f"{join.MOST}",
        "open files that a control plane needs for these bounds": f"{files.WANTED}",
        "what a log line about a refusal repeats of a field; lines a minute for one reason": (
            f"{refusals.LONGEST} characters; {refusals.TOLD}"
        ),
        "time to the first request, and for its head; between two requests": f"{http.HEAD:g} s; {http.IDLE:g} s",
        "body of a report or of usage from a router": size(routing.MAX_REPORT),
        "bodies of routers that are read at once, all together": size(routers.MAX_BODIES),
        "endpoints in a report of a router's process; in the last ones of all": (
            f"{routing.MAX_LOADS}; {routers.MAX_ENDPOINTS}"
        ),
        "body of a request to join": size(join.MAX_REQUEST),
        "join tokens that are looked up at once; the others wait": f"{join.LOOKUPS}, {join.PATIENCE:g} s",
        "body of a request to the admin API, and its nesting": f"{size(app.MAX_BODY)}, {body.MAX_DEPTH} levels",
        "a router's wait for a table": f"{routers.MAX_WAIT:g} s",
        "the word of a control plane that it leads; the answer; time for both": (
            f"{size(notice.MAX_NOTICE)}; {size(notice.MAX_NOTICE)}; {teller.LIMIT:g} s"
        ),
        "a signing request": size(authority.MAX_REQUEST),
        "certificates in a file or an answer": f"{size(pem.MAX_BUNDLE)}, {pem.MAX_CERTIFICATES}",
        "certificates signed at once; the others wait": f"{identities.SIGNERS}",
        "a join token: life, wrong secrets until it is void": f"{joining.LIFE / 60:g} min, {joining.MAX_WRONG}",
        "an API key as it is sent; an admin token": f"{router.keys.MAX_KEY}; {auth.MAX_TOKEN} characters",
        "clients of a router: connections of a worker": (
            f"`limits.connections`, {by_default(theirs, 'limits.connections')}"
        ),
        "clients: head of a request, its fields": (
            f"`limits.header_bytes`, {size(header)}; `limits.header_count`, {most}"
        ),
        "clients: time for the head; for the body": "`timeouts.header`, {}; `timeouts.body`, {}".format(
            *(str(by_default(theirs, name)).replace("s", " s") for name in ("timeouts.header", "timeouts.body"))
        ),
        "clients: body of a request": f"`limits.body_bytes`, {size(by_default(theirs, 'limits.body_bytes'))}",
        "an engine's answer: head, its fields": f"{size(router.upstream.MAX_HEAD)}, {router.upstream.MAX_FIELDS}",
        "an engine's answer to the agent's question whether it is ready": (
            f"{size(agent.readiness.MAX_ANSWER)}, {agent.readiness.TIMEOUT:g} s"
        ),
        "an engine's output on disk, a file": size(agent.supervise.output.MAX_OUTPUT),
        "a control plane's answer to a router: table; others": (
            f"{size(routing.MAX_TABLE)}; {size(router.control.MAX_ANSWER)}, with certificates "
            f"{size(router.control.MAX_IDENTITY)}"
        ),
        "a join listener's answer": f"{size(join_client.MAX_BODY)}, {join_client.LIMIT:g} s",
        "control planes found by multicast DNS that are tried": f"{agent.rounds.MAX_FOUND}",
        "a settings file; the catalog": (
            f"{size(yamlfile.MAX_FILE)}; {size(load.MAX_CATALOG)}, {load.MAX_FILES} files"
        ),
        "redirects of a source; its list of files": f"{web.MAX_HOPS}; {size(source.MAX_LISTING)}",
        "a node's devices, engines, shards in one message": "1024, 256, 256",
        "silence in a session": f"`agents.silence`, {by_default(ours, 'agents.silence')}",
    }
    for name in ("agents: time from handshake to hello", "silence in a session"):
        wanted[name] = wanted[name].removesuffix("s") + " s"
    found = rows()
    assert {what: found.get(what) for what in wanted} == wanted
    assert found.keys() == wanted.keys()
