"""Batches, their lines, and their files."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("endpoint", sa.String(40), nullable=False),
        sa.Column("input_file_id", sa.String(40), nullable=False),
        sa.Column("client", sa.String(255), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("times", sa.Text, nullable=False),
        sa.Column("output_seconds", sa.Integer),
        sa.Column("metadata", sa.Text),
        sa.Column("errors", sa.Text),
        sa.Column("model", sa.String(255)),
        sa.Column("model_id", sa.Integer),
        sa.Column("is_steered", sa.Boolean, nullable=False),
        sa.Column("attached", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_file_id", sa.String(40)),
        sa.Column("error_file_id", sa.String(40)),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_batches_listed", "batches", ["created_at", "id"])
    batch = "batches.id"
    op.create_table(
        "files",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("purpose", sa.String(20), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("batch_id", sa.String(40), sa.ForeignKey(batch, ondelete="CASCADE")),
        sa.Column("is_of_failed", sa.Boolean, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_files_listed", "files", ["created_at", "id"])
    file = sa.ForeignKey("files.id", ondelete="CASCADE")
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.String(40), file, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "batch_lines",
        sa.Column(
            "batch_id", sa.String(40), sa.ForeignKey(batch, ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("is_failed", sa.Boolean, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    for table in ("batch_lines", "file_parts", "files", "batches"):
        op.drop_table(table)
