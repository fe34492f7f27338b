"""Schema migrations of the store, walked by Alembic. Imports no application code."""
