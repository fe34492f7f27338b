"""What engines inherit from the agent, and the markers they carry."""

from collections.abc import Mapping

from llmgw.wire.messages import ShardKey

MARK_NODE = "LLMGW_NODE"
MARK_SHARD = "LLMGW_SHARD"
MARK_STATE = "LLMGW_AGENT_STATE"

_INHERITED = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR"}
)


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the agent that an engine gets: never its settings or tokens."""
    return {name: value for name, value in environment.items() if name in _INHERITED}


def markers(node_id: str, key: ShardKey, state_dir: str) -> dict[str, str]:
    """The variables by which an agent finds its engines again (AGT-07)."""
    return {MARK_NODE: node_id, MARK_SHARD: str(key), MARK_STATE: state_dir}


def parse_mark(text: str) -> ShardKey | None:
    """The shard that a marker names, or ``None`` if it is not one of ours."""
    replica, slash, rest = text.rpartition("/")
    rank, dot, incarnation = rest.partition(".")
    if not slash or not dot or not replica or not rank.isdecimal() or not incarnation.isdecimal():
        return None
    return ShardKey(replica, int(rank), int(incarnation))
