"""Model files and checkpoints: one container (`container.py`), one codec (`codec.py`), and one table of the types that
files may hold (`stored_types.py`).
"""
