"""What a registration must be before anything is built on it. Sans-IO.

What a single field can hold is the wire's business (``llmgw.wire.messages``); here is
what only the whole can tell.
"""

from llmgw.runtime.settings import Address
from llmgw.wire.messages import Register


def fault(register: Register) -> str | None:
    """Why a registration is not taken, with the remedy; ``None`` if it is."""
    inventory = register.inventory
    if not Address(inventory.address, 0).loopback:
        return (
            f"the node's address {inventory.address[:64]!r} is not loopback: prompts and engine keys would cross the "
            "network in clear; correct the setting address of the agent"
        )
    uuids = [device.uuid for device in inventory.devices]
    if len(set(uuids)) < len(uuids):
        twice = next(uuid for uuid in uuids if uuids.count(uuid) > 1)
        return f"the device {twice[:64]!r} is named twice: what has one owner must have one name"
    names = [engine.name for engine in inventory.engines or ()]
    if len(set(names)) < len(names):
        return "an engine is named twice"
    return None
