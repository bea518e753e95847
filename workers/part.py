"""Writes one part: row groups of a fixed number of rows, so that its bytes do not depend on how rows came in."""

from __future__ import annotations

import contextlib
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from .footer import KEY, Footer, dump

ROW_GROUP_ROWS = 16_384


class PartWriter:
    """Holds at most one row group. Either ``close`` or ``abort`` ends it; the file stays open."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self.schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """``table`` has the part's schema."""
        self._pending.append(table)
        self._pending_rows += len(table)
        self.rows += len(table)
        while self._pending_rows >= ROW_GROUP_ROWS:
            self._flush(ROW_GROUP_ROWS)

    def close(self, footer: Footer) -> None:
        if self._pending_rows:
            self._flush(self._pending_rows)
        self._writer.add_key_value_metadata({KEY: dump(footer)})
        self._writer.close()

    def abort(self) -> None:
        """The bytes will be thrown away: nothing may be raised because of them."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()

    def _flush(self, rows: int) -> None:
        table = pa.concat_tables(self._pending)
        self._writer.write_table(table.slice(0, rows).unify_dictionaries(), row_group_size=rows)
        rest = table.slice(rows)
        self._pending = [rest] if len(rest) else []
        self._pending_rows = len(rest)
