"""What is told of a control plane by mDNS (AGT-03)."""

from llmgw.runtime.mdns import own_addresses, usable


def test_only_addresses_that_others_can_reach_are_told():
    """AGT-03: a wildcard stands for the machine's addresses, without those for itself alone."""
    told = ["127.0.0.1", "::1", "fe80::1", "169.254.1.1", "10.0.0.5", "10.0.0.5", "fd00::5", "nonsense"]
    assert usable(told) == ["10.0.0.5", "fd00::5"]
    assert usable(told, four_only=True) == ["10.0.0.5"]
    assert own_addresses("192.0.2.4") == ["192.0.2.4"]
    assert "127.0.0.1" in own_addresses("localhost")
    assert not {"127.0.0.1", "::1"} & set(own_addresses("0.0.0.0"))
