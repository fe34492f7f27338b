"""What a registration must be before anything is built on it. Sans-IO.

What a single field can hold is the wire's business (``llmgw.wire.messages``); here is
what only the whole can tell.
"""

import ipaddress
import re

from llmgw.wire.messages import Register

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9-]{1,63})*\.?")


def fault(register: Register) -> str | None:
    """Why a registration is not taken, with the remedy; ``None`` if it is."""
    inventory = register.inventory
    if (why := _address_fault(inventory.address)) is not None:
        return f"the node's address {inventory.address[:64]!r} {why}: correct the setting address of the agent"
    uuids = [device.uuid for device in inventory.devices]
    if len(set(uuids)) < len(uuids):
        twice = next(uuid for uuid in uuids if uuids.count(uuid) > 1)
        return f"the device {twice[:64]!r} is named twice: what has one owner must have one name"
    names = [engine.name for engine in inventory.engines or ()]
    if len(set(names)) < len(names):
        return "an engine is named twice"
    return None


def _address_fault(address: str) -> str | None:
    """Why routers cannot be sent there: they send prompts, and the engine's key."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return None if _HOST.fullmatch(address) else "is neither an IP address nor a host name"
    if number.is_unspecified or number.is_multicast or number.is_link_local:
        return "is no address of one machine that routers on others can reach"
    return None
