"""The settings of the continuous export of the log to Parquet; see ``http_edge.config``."""

from __future__ import annotations

from pydantic import Field

from eventstore.parquet.database_folders import folder_of_database
from http_edge.config_types import MIB, Section


class Export(Section):
    """Export of the log to Parquet files beside the serving mediator; also poste export."""

    to: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^(/.*|[a-z][a-z0-9+.-]*://.+)$",
        json_schema_extra={
            "expected": "an absolute path or a URI, for example s3://bucket/folder?region=eu-west-1"
        },
    )
    """Where the log is exported to while the mediator serves. Unset: nowhere. Keep keys of a store
    out of it; S3 finds them in its own environment variables and files. In a cluster every node may
    have the same: one exports each database, the others stand by and take over within lag_s_max."""
    lag_s_max: float = Field(default=10, gt=0, le=86_400)
    """An event is exported at most this long after it was stored, plus the time to write it. Each
    time makes a file, if anything happened."""
    rows_per_file_max: int = Field(default=262_144, ge=1_000, le=10_000_000)
    """Rows of one file, up to the end of the transaction that reaches it."""
    bytes_per_step_max: int = Field(default=64 * MIB, ge=MIB, le=1_024 * MIB)
    """Bytes of events that are exported at once, up to the end of the transaction that reaches it.
    The exporting process needs about eight times as much memory."""
    compact_files_min: int = Field(default=16, ge=2, le=10_000)
    """Steps of the export that are put together once there are so many small ones in a row."""
    replaced_kept_s: float = Field(default=3_600, ge=0, le=604_800)
    """Small files stay this long after they were put together: a rebuild that began before reads
    them to its end."""
    retry_s_max: float = Field(default=60, gt=0, le=3_600)
    """Longest wait before an export that failed is tried again; the mediator serves meanwhile."""

    def of_database(self, number: int) -> Export:
        """The same for one database of several."""
        to = None if self.to is None else folder_of_database(self.to, number)
        return self.model_copy(update={"to": to})
