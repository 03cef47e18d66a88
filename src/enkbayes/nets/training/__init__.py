"""Training: deep ensembles, and image classifiers on the CPU."""
