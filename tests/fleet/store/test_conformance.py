"""The tests of the store and of what writes into it, once more: on PostgreSQL.

They are written for either database and get theirs from the fixtures of their group.
"""

from tests.unit.controlplane.operations.conftest import soon  # noqa: F401 - a fixture that each test here has
from tests.unit.controlplane.operations.test_feed import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.operations.test_history import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.operations.test_leftovers import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_decisions import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_enrolment import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_identity import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_lease import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_records import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_scans import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_schema import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_transactions import *  # noqa: F403 - they are collected here
from tests.unit.controlplane.store.test_usage import *  # noqa: F403 - they are collected here
