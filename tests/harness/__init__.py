"""Runs the real parts as processes on loopback, for tests that go through all of them.

Nothing is left behind, however a test ends: parts and engines carry marks of the
cluster in their environment and are ended by them.
"""

from tests.harness.cluster import Cluster
from tests.harness.waiting import until

__all__ = ["Cluster", "until"]
