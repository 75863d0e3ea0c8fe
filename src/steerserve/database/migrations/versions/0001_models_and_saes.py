"""Models and SAEs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(255), nullable=False, index=True),
        sa.Column("source", sa.String(20), nullable=False),
        sa.Column("repo_id", sa.String(255)),
        sa.Column("revision", sa.String(100)),
        sa.Column("local_path", sa.String(4096)),
        sa.Column("quantization", sa.String(10), nullable=False),
        sa.Column("trust_remote_code", sa.Boolean, nullable=False),
        sa.Column("num_parameters", sa.BigInteger),
        sa.Column("architecture", sa.String(255)),
        sa.Column("dtype", sa.String(20)),
        sa.Column("disk_size_mb", sa.Integer, nullable=False),
        sa.Column("estimated_memory_mb", sa.Integer, nullable=False),
        sa.Column("supports_embeddings", sa.Boolean, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("error_message", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("local_path", "quantization", name="uq_models_local_path"),
        sa.UniqueConstraint("name", "quantization", name="uq_models_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "saes",
        sa.Column("id", sa.String(50), primary_key=True),
        sa.Column("repository_id", sa.String(255)),
        sa.Column("revision", sa.String(100)),
        sa.Column("local_path", sa.String(4096), unique=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("format", sa.String(50), nullable=False),
        sa.Column("architecture", sa.String(50), nullable=False),
        sa.Column("d_in", sa.Integer, nullable=False),
        sa.Column("d_sae", sa.Integer, nullable=False),
        sa.Column("dtype", sa.String(20), nullable=False),
        sa.Column("hook_name", sa.String(255)),
        sa.Column("site", sa.String(50)),
        sa.Column("trained_on", sa.String(255)),
        sa.Column("trained_layer", sa.Integer),
        sa.Column("average_l0", sa.Float),
        sa.Column("file_size_bytes", sa.BigInteger),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("error_message", sa.Text),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("saes")
    op.drop_table("models")
