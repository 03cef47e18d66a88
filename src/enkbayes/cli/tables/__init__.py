"""Tables: reading and writing files with columns, and the features that models compute from them."""

from enkbayes.cli.tables.preprocessing import CategoryColumn, NumberColumn, Preprocessing
from enkbayes.cli.tables.read import not_a_file, read, stream
from enkbayes.cli.tables.table import Table, check_classes, class_labels
from enkbayes.cli.tables.write import check_output, table_writer

__all__ = [
    "CategoryColumn",
    "NumberColumn",
    "Preprocessing",
    "Table",
    "check_classes",
    "check_output",
    "class_labels",
    "not_a_file",
    "read",
    "stream",
    "table_writer",
]
