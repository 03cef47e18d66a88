"""How sums over rows are computed: array libraries, chunks, threads, files, processes."""
