"""How sums over rows are computed: array libraries, chunks, threads, float32, files, several processes."""

from enkbayes.engine.processes import ProcessLost, connect
from enkbayes.engine.row_files import NpyRows, NpzRows, ParquetRows, open_rows

__all__ = ["NpyRows", "NpzRows", "ParquetRows", "ProcessLost", "connect", "open_rows"]
