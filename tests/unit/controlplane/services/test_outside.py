"""Who may say where an external model is and which key goes there; whose engines load an
adapter (API-08, CAT-10, CAT-14, SEC-03, SEC-04)."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.services.changes import Principal
from controlplane.services.errors import Refused
from controlplane.store.values import Grant
from tests.unit.controlplane.services.harness import ADMIN, SIM, World, ask

OPERATOR = Principal("op", "tok-op", (Grant("operator"),))
OWNER = Principal("olga", "tok-ow", (Grant("owner", "acme"),))
URL = "https://llm.example.com/v1"


def outside(url: str = URL, file: str | None = None, **more: Any) -> dict[str, Any]:
    key = {} if file is None else {"api_key_file": file}
    return {"external": {"url": url, "model": "m", **key}, **more}


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    for path in ("acme", "beta"):
        made.scopes.create(ask(), path, path)
    yield made
    made.close()


def refusal(world: World, principal: Principal, name: str, definition: dict[str, Any], **options: Any) -> str:
    before = world.catalog.current
    with pytest.raises(Refused) as refused:
        world.models.put(ask(principal=principal), name, definition, **options)
    assert (refused.value.code, refused.value.status) == ("forbidden", 403)
    assert world.catalog.current is before, "something changed"
    return str(refused.value)


@pytest.mark.parametrize("principal", [OPERATOR, OWNER])
def test_only_an_admin_pairs_a_key_file_with_an_address(world: World, principal: Principal) -> None:
    """Else whoever may add a model is sent any file that the control plane can read, as a
    bearer token: its own admin.token for one. Neither a new model, nor another url for a
    key that is there, nor another file, nor a dry run."""
    mine = {"owner": "acme"}
    words = refusal(world, principal, "m", outside(file="/etc/llmgw/provider.key", **mine))
    assert words.startswith("models.m.external.api_key_file: ") and "ask one" in words
    refusal(world, principal, "m", outside(file="/x.key", **mine), dry_run=True)
    world.models.put(ask(), "m", outside(file="/etc/llmgw/provider.key", **mine))
    refusal(world, principal, "m", outside("https://evil.example/v1", "/etc/llmgw/provider.key", **mine))
    refusal(world, principal, "m", outside(file="/etc/llmgw/other.key", **mine))


@pytest.mark.parametrize("principal", [OPERATOR, OWNER])
def test_what_stays_as_it_was_is_nobody_s_change(world: World, principal: Principal) -> None:
    """The model's other parts are its owner's and the operators' to change, and so is to
    do without the key."""
    world.models.put(ask(), "m", outside(file="/etc/llmgw/provider.key", owner="acme"))
    changed = outside(file="/etc/llmgw/provider.key", owner="acme", aliases=["big"])
    assert world.models.put(ask(principal=principal), "m", changed).stored is not None
    assert world.models.patch(ask(principal=principal), "m", {"class": "critical"}).stored is not None
    assert world.models.remove(ask(principal=principal), "m").name == "m"


def test_an_owner_asks_an_operator_for_an_address(world: World) -> None:
    """Requests leave from the routers' network, which is not the owner's."""
    words = refusal(world, OWNER, "m", outside(owner="acme"))
    assert words.startswith("models.m.external.url: ")
    assert world.models.put(ask(principal=OPERATOR), "m", outside(owner="acme")).stored is not None
    refusal(world, OWNER, "m", outside("http://10.0.0.5/v1", owner="acme"))


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0", "224.0.0.1"])
def test_nobody_points_routers_at_what_no_provider_has(world: World, host: str) -> None:
    """SEC-04: addresses of a cloud's metadata, and such. Those inside the site are allowed."""
    assert "external.url: " in refusal(world, ADMIN, "m", outside(f"http://{host}/v1"))
    assert world.models.put(ask(), "m", outside("http://10.1.2.3:8000/v1")).stored is not None


def test_an_adapter_is_the_base_s_owner_s_to_add(world: World) -> None:
    """It changes what the engines of another scope's model load."""
    vllm = {"engine": "vllm", "source": "hf:a/b", "gpus": 1, "gpu_class": "h100-80g"}
    off = {"scaling": {"min": 0, "max": 0}}
    world.models.put(ask(), "theirs", {"owner": "beta", "aliases": ["t"], "profiles": [vllm], **off})
    world.models.put(ask(), "own", {"owner": "acme", "profiles": [vllm], **off})
    for base in ("theirs", "t"):
        adapter = {"owner": "acme", "adapter": {"base": base, "source": "hf:evil/lora"}}
        assert refusal(world, OWNER, "lora", adapter).startswith("models.lora.adapter.base: ")
    mine = {"owner": "acme", "adapter": {"base": "own", "source": "hf:good/lora"}}
    assert world.models.put(ask(principal=OWNER), "lora", mine).stored is not None


def test_a_name_of_others_is_taken_and_no_more_is_said(world: World) -> None:
    """API-08: an owner is not advised to change what it cannot see."""
    world.models.create(ask(), "theirs", {**SIM, "owner": "beta"})
    with pytest.raises(Refused, match="'theirs' is taken: choose another"):
        world.models.create(ask(principal=OWNER), "theirs", {**SIM, "owner": "acme"})
    with pytest.raises(Refused, match="exists already: change it with PUT"):
        world.models.create(ask(principal=OPERATOR), "theirs", SIM)
