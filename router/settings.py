"""Settings of a router. See ``docs/reference`` for the generated table."""

import os
import socket
import ssl
from pathlib import Path

from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity, valid_name
from llmgw.runtime.files import open_regular
from llmgw.runtime.logs import LEVELS
from llmgw.runtime.settings import (
    ADDRESS,
    ADDRESSES,
    DURATION,
    INTEGER,
    PATH,
    TEXT,
    Fault,
    Loaded,
    Setting,
    Settings,
    SettingsError,
    choice,
)

SETTINGS = Settings(
    "router",
    (
        Setting("listen", ADDRESS, "127.0.0.1:8080", "where clients connect"),
        Setting("workers", INTEGER, 2, "worker processes", minimum=1, maximum=256),
        Setting(
            "control_planes",
            ADDRESSES,
            ["127.0.0.1:7002"],
            "the control planes' listeners for routers; the one that leads is asked",
        ),
        Setting(
            "router_id", TEXT, socket.gethostname(), "this router's name in its certificate", shown="the host's name"
        ),
        Setting(
            "identity",
            PATH,
            None,
            "directory of this router's certificate, its key and the authorities it trusts, as llmgw join makes it",
            shown="STATE_DIR/identity",
        ),
        Setting(
            "state_dir",
            PATH,
            "/var/lib/llmgw/router",
            "where the last route table, and usage records not sent yet, are kept (mode 0600)",
        ),
        Setting(
            "limits.connections",
            INTEGER,
            4096,
            "client connections per worker, idle ones too",
            minimum=1,
            maximum=1000000,
        ),
        Setting(
            "limits.header_bytes", INTEGER, 32768, "largest request head", "bytes", minimum=1024, maximum=1024 * 1024
        ),
        Setting("limits.header_count", INTEGER, 100, "most header fields in a request", minimum=8, maximum=1000),
        Setting(
            "limits.body_bytes",
            INTEGER,
            33554432,
            "largest request body; images in a chat count as text",
            "bytes",
            minimum=1024,
            maximum=1024**3,
        ),
        Setting(
            "limits.buffered_answer",
            INTEGER,
            1048576,
            "an answer that is not a stream is held back up to this size, so that it can still be retried",
            "bytes",
            minimum=1024,
            maximum=256 * 1024 * 1024,
        ),
        Setting(
            "limits.usage_records",
            INTEGER,
            200000,
            "most usage records per worker that wait for the control plane to take them; past that the oldest go",
            minimum=10000,
            maximum=10000000,
        ),
        Setting(
            "upstream.ca_file",
            PATH,
            None,
            "authorities (PEM) to trust for external providers, beside those of the system",
        ),
        Setting("timeouts.header", DURATION, "10s", "for a request's head to arrive, from its first byte", minimum=0.1),
        Setting("timeouts.body", DURATION, "120s", "for a request's whole body to arrive", minimum=0.1),
        Setting("timeouts.keep_alive", DURATION, "75s", "an idle client connection is closed after this", minimum=0.1),
        Setting("timeouts.client_write", DURATION, "30s", "for a client to take 64 KiB of an answer", minimum=0.1),
        Setting("timeouts.connect", DURATION, "3s", "for a connection to an engine", minimum=0.05),
        Setting(
            "timeouts.connect_external",
            DURATION,
            "10s",
            "for a connection to an external provider: its name, its address, TLS",
            minimum=0.1,
        ),
        Setting(
            "timeouts.first_byte",
            DURATION,
            "10m",
            "for the first byte of a stream: queue and prefill",
            minimum=0.1,
        ),
        Setting(
            "timeouts.answer", DURATION, "10m", "for the first byte of an answer that is not a stream", minimum=0.1
        ),
        Setting("timeouts.between_bytes", DURATION, "2m", "silence of an engine within an answer", minimum=0.1),
        Setting("timeouts.drain", DURATION, "120s", "how long running answers may go on after a stop", minimum=0),
        Setting("log.level", choice(*LEVELS), "info", "least important lines to log"),
        Setting("log.format", choice("text", "json"), "text", "lines for people, or objects for collectors"),
    ),
)
"""Every setting of ``router.yaml``."""

TABLE_FILE = "route-table.json"
USAGE_DIRECTORY = "usage"

MAX_CA = 4 * 1024 * 1024


def load(file: Path | None, log_level: str | None = None) -> Loaded:
    """Settings from ``log_level``, the environment, ``file`` and the defaults.

    Raises ``SettingsError`` with all faults; a state directory that cannot be used is
    one of them.
    """
    settings = SETTINGS.load(file, os.environ, {"log.level": log_level})
    faults = []
    router_id: str = settings["router_id"]
    if not valid_name(router_id):
        faults.append(
            Fault("router_id", f"{router_id[:64]!a} must be 1 to 253 letters, digits, dots, dashes or underscores")
        )
    ca_file: Path | None = settings["upstream.ca_file"]
    if ca_file is not None:
        try:
            with open_regular(ca_file) as stream:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
                    cadata=stream.read(MAX_CA).decode("ascii")
                )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            faults.append(Fault("upstream.ca_file", f"{ca_file} cannot be used as PEM certificates: {why}"))
    state_dir: Path = settings["state_dir"]
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(state_dir, os.W_OK | os.X_OK):
            faults.append(Fault("state_dir", f"{state_dir} cannot be written by this user"))
    except OSError as error:
        faults.append(Fault("state_dir", f"{state_dir} cannot be made: {error.strerror}"))
    if faults:
        raise SettingsError(str(file or "router settings"), faults)
    return settings


def load_whole(file: Path | None, log_level: str | None = None) -> Loaded:
    """The same, with an identity that can be used. Raises ``SettingsError``."""
    settings = load(file, log_level)
    if faults := holder(settings).faults():
        raise SettingsError(str(file or "router settings"), faults)
    return settings


def holder(settings: Loaded) -> Holder:
    """The router's identity, not loaded yet."""
    path: Path = settings["identity"] or settings["state_dir"] / "identity"
    return Holder(path, Identity("router", settings["router_id"]))
