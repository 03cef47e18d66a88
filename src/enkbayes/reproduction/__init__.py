"""The experiments of the paper, run again: every table and figure beside the paper's claim, with a verdict.

`experiments` runs them by name, `demo` is a short version on built-in data, `datasets` loads the data, and `theory`
solves the mean-field equations that the paper's theorem compares with.
"""
