"""How sums over rows are computed: array libraries, chunks, threads, float32, files, several processes."""

from enkbayes.engine.processes import ProcessLost, connect
from enkbayes.engine.row_files import NpyRows, NpzRows, ParquetRows, open_rows
from enkbayes.engine.threads import product
from enkbayes.engine.threads import threads_for_chunks as resources

__all__ = ["NpyRows", "NpzRows", "ParquetRows", "ProcessLost", "connect", "open_rows", "product", "resources"]
