"""``llmgw ctl``: what the control plane knows, and what it can be told.

Commands are imported when they are used: ``ctl status`` is asked for in a hurry.
"""

import click

from llmgw.cli.groups import Group
from llmgw.cli.options import example

_HERE = "llmgw.cli.ctl"

COMMANDS = {
    "status": (f"{_HERE}.status", "status"),
    "nodes": (f"{_HERE}.nodes", "nodes"),
    "models": (f"{_HERE}.models", "models"),
    "replicas": (f"{_HERE}.replicas", "replicas"),
    "explain": (f"{_HERE}.models", "explain"),
    "top": (f"{_HERE}.top", "top"),
    "events": (f"{_HERE}.events", "events"),
    "routers": (f"{_HERE}.enrol", "routers"),
    "join-tokens": (f"{_HERE}.enrol", "join_tokens"),
    "node": (f"{_HERE}.nodes", "node"),
    "replica": (f"{_HERE}.replicas", "replica"),
    "cordon": (f"{_HERE}.intent", "cordon"),
    "uncordon": (f"{_HERE}.intent", "uncordon"),
    "label": (f"{_HERE}.intent", "label"),
    "holds": (f"{_HERE}.intent", "holds"),
    "hold": (f"{_HERE}.intent", "hold"),
    "release": (f"{_HERE}.intent", "release"),
    "model": (f"{_HERE}.model", "model"),
    "retry": (f"{_HERE}.models", "retry"),
    "restart": (f"{_HERE}.replicas", "restart"),
    "catalog": (f"{_HERE}.catalog", "catalog"),
    "requests": (f"{_HERE}.usage", "requests"),
    "request": (f"{_HERE}.usage", "request"),
    "usage": (f"{_HERE}.usage", "usage"),
    "audit": (f"{_HERE}.events", "audit"),
    "keys": ("llmgw.cli.keys", "keys"),
    "scopes": (f"{_HERE}.people", "scopes"),
    "scope": (f"{_HERE}.people", "scope"),
    "users": (f"{_HERE}.people", "users"),
    "user": (f"{_HERE}.people", "user"),
    "tokens": (f"{_HERE}.people", "tokens"),
    "token": (f"{_HERE}.people", "token"),
    "secrets": (f"{_HERE}.secrets", "secrets"),
    "whoami": (f"{_HERE}.people", "whoami"),
    "cert": (f"{_HERE}.cert", "cert"),
    "settings": (f"{_HERE}.settings", "settings"),
    "log-level": (f"{_HERE}.catalog", "log_level"),
}


@click.group(cls=Group, lazy=COMMANDS, epilog=example("llmgw ctl status", "llmgw ctl explain smollm2-135m"))
def ctl() -> None:
    """Look at the fleet and steer it. All times are UTC."""
