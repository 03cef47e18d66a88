"""The words of a verdict, from best to worst."""

GOOD, USABLE, BAD = "good", "usable", "do not trust"
