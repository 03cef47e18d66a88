"""Tables: reading and writing files with columns, and the features that models compute from them."""

from enkbayes.cli.tables.read import not_a_file, read, stream
from enkbayes.cli.tables.write import check_output, table_printer, table_writer
from enkbayes.estimators.preprocessing import Preprocessing
from enkbayes.estimators.table import Table, check_classes, class_labels

__all__ = [
    "Preprocessing",
    "Table",
    "check_classes",
    "check_output",
    "class_labels",
    "not_a_file",
    "read",
    "stream",
    "table_printer",
    "table_writer",
]
