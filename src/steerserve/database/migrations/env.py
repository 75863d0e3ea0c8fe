"""The entry point for Alembic. Migrations run on the connection that the service passes in."""

from alembic import context

from steerserve.database.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
