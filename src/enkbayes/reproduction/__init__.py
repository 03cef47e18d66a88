"""The experimental part of the paper, reproduced: every table and figure beside the paper's claim, with a verdict."""
