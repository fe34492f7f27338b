"""Every setting of the control plane (declared once: see ``llmgw.runtime.settings``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.catalog.locator import HUB, parse_url
from controlplane.clustersettings import file_rows
from controlplane.store.opening import remote, url_fault
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import (
    ADDRESS,
    BOOLEAN,
    DURATION,
    INTEGER,
    PATH,
    TEXT,
    Fault,
    Kind,
    Loaded,
    Setting,
    Settings,
    SettingsError,
    choice,
)
from llmgw.wire.versions import RECONNECT_LIMIT


def _url(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a URL such as https://host")
    return parse_url(value, ("http", "https")).rstrip("/")


URL = Kind("URL", _url, {"type": "string", "pattern": "^https?://"})

SENT = {
    "agents": "agents",
    "routers": "routers",
    "admin": "people and their tools",
    "join": "nodes and routers that join",
}
"""Listeners that others may be sent to by a control plane that stands by, and who is."""

SETTINGS = Settings(
    "controlplane",
    (
        Setting("state_dir", PATH, "/var/lib/llmgw/controlplane", "Directory of the store and the decision journal."),
        Setting("catalog", PATH, "/etc/llmgw/catalog.yaml", "The catalog: a YAML file, or a directory of them."),
        Setting(
            "identity",
            PATH,
            None,
            "Directory with this control plane's certificate and key, whom it trusts, and the issuer it signs with "
            "(llmgw ctl cert issue). Read again when files change.",
            shown="STATE_DIR/identity",
        ),
        Setting("agents.listen", ADDRESS, "127.0.0.1:7001", "Where agents connect to, with their certificates."),
        Setting(
            "mdns.advertise",
            BOOLEAN,
            False,
            "Whether agents on the local network may find agents.listen by multicast DNS (_llmgw._tcp).",
        ),
        Setting(
            "agents.heartbeat", DURATION, "10s", "How often an agent sends a heartbeat.", minimum=0.05, maximum=300
        ),
        Setting(
            "agents.silence",
            DURATION,
            "30s",
            "A session is closed when nothing was heard for this long.",
            minimum=0.1,
            maximum=3600,
        ),
        Setting(
            "agents.hello",
            DURATION,
            "10s",
            "Time a new connection has for its TLS handshake, and again until its hello.",
            minimum=0.05,
        ),
        Setting(
            "agents.max_pending",
            INTEGER,
            1024,
            "Connections that have not said hello yet; more are turned away.",
            minimum=1,
        ),
        Setting(
            "routers.listen", ADDRESS, "127.0.0.1:7002", "Where routers fetch their table, with their certificates."
        ),
        Setting(
            "join.listen",
            ADDRESS,
            "127.0.0.1:7003",
            "Where nodes and routers that have a join token get their first certificate, and nothing else is served.",
        ),
        Setting(
            "admin.listen",
            ADDRESS,
            "127.0.0.1:7000",
            "Where the admin API answers. Off loopback it needs admin.certificate and admin.key.",
        ),
        Setting(
            "admin.certificate",
            PATH,
            None,
            "PEM file with the certificate of the admin API and those that signed it; then it speaks TLS. "
            "Read again on SIGHUP.",
        ),
        Setting("admin.key", PATH, None, "PEM file (mode 0600) with the key of admin.certificate."),
        Setting("log.level", choice(*LEVELS), "info", "Least level that is logged; changes live on SIGHUP."),
        Setting("log.format", choice("text", "json"), "text", "Log lines for people or for collectors."),
        Setting("loop.interval", DURATION, "5s", "Longest time between two passes.", minimum=0.01, maximum=300),
        Setting("nodes.unreachable_after", DURATION, "30s", "Silence after which a node gets nothing new."),
        Setting("nodes.lost_after", DURATION, "5m", "Silence after which a node's replicas are rebuilt elsewhere."),
        Setting(
            "settling.steady", DURATION, "40s", "After a start, nothing is placed until the node count held this long."
        ),
        Setting("settling.limit", DURATION, "90s", "Settling ends after this time at the latest."),
        Setting("drain.grace", DURATION, "5m", "Time a draining replica has to finish its requests."),
        Setting("stop.grace", DURATION, "10s", "Time between SIGTERM and SIGKILL for an engine.", minimum=0),
        Setting("backoff.first", DURATION, "5s", "Wait after a model's first failed start.", minimum=0.01),
        Setting("backoff.limit", DURATION, "5m", "Longest wait between a model's starts.", minimum=0.01),
        Setting("parking.failures", INTEGER, 5, "Failed starts in a row after which a model is parked.", minimum=1),
        Setting(
            "store.url",
            TEXT,
            "",
            "The store: postgresql://USER@HOST:PORT/DATABASE, or sqlite:///PATH. Empty: llmgw.db in state_dir.",
            shown="llmgw.db in state_dir",
        ),
        Setting(
            "store.password_file",
            TEXT,
            "",
            "File (mode 0600) with the password for store.url. Empty: none, or what libpq finds by itself.",
            shown="none",
        ),
        Setting(
            "store.timeout", DURATION, "5s", "Longest wait for the store by a change that people ask for.", minimum=0.1
        ),
        Setting(
            "ha.enabled",
            BOOLEAN,
            False,
            "Whether this control plane shares its store with others, of which one leads (HA-01).",
        ),
        Setting("ha.name", TEXT, "", "What people call this one of them.", shown="the host's name"),
        Setting(
            "ha.ttl",
            DURATION,
            "30s",
            "How long the lead lasts without a renewal: so long a standby waits after a crash.",
            minimum=1.0,
            maximum=3600,
        ),
        Setting("ha.renew", DURATION, "5s", "How often the one that leads renews its lead.", minimum=0.1, maximum=600),
        *(
            Setting(
                f"ha.advertise.{listener}",
                ADDRESS,
                None,
                f"Where {who} are sent to this control plane. Default: {listener}.listen.",
            )
            for listener, who in SENT.items()
        ),
        Setting(
            "usage.spool_bytes",
            INTEGER,
            1024 * 1024 * 1024,
            "Disk space for usage that waits for the store; when it is full, routers keep theirs.",
            unit="bytes",
            minimum=1024 * 1024,
        ),
        Setting("sources.hf_endpoint", URL, HUB, "The hub that hf: sources come from, or a mirror with the same API."),
        Setting(
            "sources.hf_token_file", PATH, None, "File (mode 0600) with a token for that hub, for gated repositories."
        ),
        Setting("sources.ca_file", PATH, None, "PEM file of certificates that sources may have, beside the system's."),
        Setting("sources.timeout", DURATION, "20s", "Longest time to look for one source.", minimum=0.1, maximum=300),
        Setting(
            "journal.max_bytes",
            INTEGER,
            64 * 1024 * 1024,
            "Size at which the decision journal is rotated; four older files are kept.",
            unit="bytes",
            minimum=4096,
        ),
        *file_rows(),
    ),
)


_SECRETS = ("state_dir", "identity", "admin.key", "store.password_file", "sources.hf_token_file")


def secret_files(loaded: Loaded) -> tuple[Path, ...]:
    """Files, and directories with all beneath, that hold secrets of this process."""
    return tuple(Path(loaded[name]).expanduser() for name in _SECRETS if loaded[name])


def identity_folder(loaded: Loaded) -> Path:
    """Where this control plane's identity is."""
    return Path(loaded["identity"] or loaded["state_dir"] / "identity")


def short_settling(loaded: Loaded) -> dict[str, str]:
    """``settling.steady`` if it does not outlast the agents' longest wait between two tries:
    words that follow it (REC-24)."""
    if loaded["settling.steady"] > RECONNECT_LIMIT:
        return {}
    words = (
        f"is {loaded['settling.steady']:g} s, and an agent may wait {RECONNECT_LIMIT:g} s before it comes back: after "
        "a start what its node runs may be placed a second time, or shown as missing; give more, the default is 40s"
    )
    return {"settling.steady": words}


def sent_nowhere(loaded: Loaded) -> dict[str, str]:
    """Listeners that others are sent to at an address which only this machine reaches, although control
    planes run on several, by the setting: words that follow it (HA-01)."""
    sent = {name: loaded[f"ha.advertise.{name}"] or loaded[f"{name}.listen"] for name in SENT}
    alone = all(address.loopback for address in sent.values()) and not remote(loaded["store.url"])
    if not loaded["ha.enabled"] or alone:
        return {}
    found = {
        f"ha.advertise.{name}": f"sends {who} to {sent[name]}, which only this machine reaches; "
        f"name the address that others reach {name}.listen at"
        for name, who in SENT.items()
        if sent[name].loopback
    }
    if loaded["ha.advertise.admin"] is not None:
        found.pop("ha.advertise.admin", None)  # so it was meant: who administers it does so on its machine
    elif "ha.advertise.admin" in found:
        found["ha.advertise.admin"] += f", or {sent['admin']} if people are to log in to this machine"
    return found


def open_doors(loaded: Loaded) -> dict[str, str]:
    """Listeners that others can reach and that answer without being told who asks, by the
    setting: words that follow it (SEC-06)."""
    if loaded["admin.listen"].loopback:
        return {}
    words = (
        f"{loaded['admin.listen']} can be reached from other machines, and /metrics and /healthz there answer "
        "without a token: let a firewall admit those alone who may know the names and figures of the fleet"
    )
    return {"admin.listen": words}


def _admin_faults(loaded: Loaded) -> list[Fault]:
    """Tokens must not cross a network in the clear (API-02)."""
    given = [name for name in ("admin.certificate", "admin.key") if loaded[name] is not None]
    if len(given) == 1:
        other = "admin.key" if given == ["admin.certificate"] else "admin.certificate"
        return [Fault(other, f"is missing: {given[0]} needs it")]
    if not given and not loaded["admin.listen"].loopback:
        return [
            Fault(
                "admin.listen",
                f"{loaded['admin.listen']} can be reached from other machines: name a certificate and its key with "
                "admin.certificate and admin.key, or use a loopback address such as 127.0.0.1 or [::1]",
            )
        ]
    return []


LISTENERS = ("agents.listen", "routers.listen", "join.listen", "admin.listen")

MARGIN = 6
"""The part of its lead's length before whose end a leader stops acting: a sixth."""


def _ha_faults(loaded: Loaded) -> list[Fault]:
    """What a lead by a lease needs (HA-01)."""
    if not loaded["ha.enabled"]:
        return []
    faults = []
    ttl, renew = loaded["ha.ttl"], loaded["ha.renew"]
    if renew > ttl / 3:
        words = f"must be at most a third of ha.ttl ({renew:g} s, and ha.ttl is {ttl:g} s): a renewal may fail"
        faults.append(Fault("ha.renew", words))
    if not loaded["store.url"]:
        faults.append(Fault("store.url", "must name a store that all control planes use: ha.enabled needs it"))
    for listener in SENT:
        listens = loaded[f"{listener}.listen"]
        if loaded[f"ha.advertise.{listener}"] is None and listens.host in ("0.0.0.0", "::"):  # noqa: S104 - is none
            words = f"is missing: nobody can be sent to {listens}, which {listener}.listen is"
            faults.append(Fault(f"ha.advertise.{listener}", words))
    return faults


_ORDERED = (
    ("agents.heartbeat", "agents.silence"),
    ("nodes.unreachable_after", "nodes.lost_after"),
    ("settling.steady", "settling.limit"),
    ("backoff.first", "backoff.limit"),
)


def load(
    file: Path | None, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Loaded:
    """Settings of this process, checked each and against each other.

    Raises ``SettingsError`` with all faults.
    """
    loaded = SETTINGS.load(file, environment, flags)
    faults = _admin_faults(loaded)
    faults += _ha_faults(loaded)
    faults += [
        Fault(low, f"must be less than {high} ({loaded[low]:g} s is not less than {loaded[high]:g} s)")
        for low, high in _ORDERED
        if loaded[low] >= loaded[high]
    ]
    if words := url_fault(loaded["store.url"]):
        faults.append(Fault("store.url", words))
    taken: dict[Any, str] = {}
    for name in LISTENERS:
        address = loaded[name]
        if address.port and address in taken:
            faults.append(Fault(name, f"{address} is the address of {taken[address]} too: give each its own port"))
        taken.setdefault(address, name)
    if faults:
        raise SettingsError(str(file) if file else "controlplane settings", faults)
    return loaded
