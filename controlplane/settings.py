"""Every setting of the control plane (declared once: see ``llmgw.runtime.settings``)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.catalog.locator import HUB, parse_url
from controlplane.clustersettings import file_rows
from controlplane.store.opening import url_fault
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import (
    ADDRESS,
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


def _url(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a URL such as https://host")
    return parse_url(value, ("http", "https")).rstrip("/")


URL = Kind("URL", _url, {"type": "string", "pattern": "^https?://"})

SETTINGS = Settings(
    "controlplane",
    (
        Setting("state_dir", PATH, "/var/lib/llmgw/controlplane", "Directory of the store and the decision journal."),
        Setting("catalog", PATH, "/etc/llmgw/catalog.yaml", "The catalog: a YAML file, or a directory of them."),
        Setting(
            "fleet_tokens",
            PATH,
            "/etc/llmgw/fleet-tokens.yaml",
            "File (mode 0600) with the tokens of nodes and routers.",
        ),
        Setting("agents.listen", ADDRESS, "127.0.0.1:7001", "Where agents connect to. Loopback only."),
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
            "agents.hello", DURATION, "10s", "Time a new connection has until its hello is complete.", minimum=0.05
        ),
        Setting(
            "agents.max_pending",
            INTEGER,
            256,
            "Connections that have not said hello yet; more are turned away.",
            minimum=1,
        ),
        Setting("routers.listen", ADDRESS, "127.0.0.1:7002", "Where routers fetch their table. Loopback only."),
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


_SECRETS = ("state_dir", "fleet_tokens", "admin.key", "store.password_file", "sources.hf_token_file")


def secret_files(loaded: Loaded) -> tuple[Path, ...]:
    """Files, and directories with all beneath, that hold secrets of this process."""
    return tuple(Path(loaded[name]).expanduser() for name in _SECRETS if loaded[name])


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


LISTENERS = ("agents.listen", "routers.listen", "admin.listen")

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
    faults = [
        Fault(
            name,
            f"{loaded[name]} can be reached from other machines, which is refused until connections there "
            "are authenticated by certificates: use a loopback address such as 127.0.0.1 or [::1]",
        )
        for name in ("agents.listen", "routers.listen")
        if not loaded[name].loopback
    ]
    faults += _admin_faults(loaded)
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
