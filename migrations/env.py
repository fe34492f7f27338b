"""Alembic's entry point: runs on the connection that the caller made.

The caller begins and ends the transaction, so that a step that fails leaves the
schema as it was.
"""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes.get("metadata"),
    render_as_batch=True,
)
context.run_migrations()
