"""One PostgreSQL server for all tests of a run that leave it running."""

from tests.fakes.postgresql import postgresql_server

__all__ = ["postgresql_server"]
