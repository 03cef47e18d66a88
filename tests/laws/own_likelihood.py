"""The likelihood that docs/develop/add_a_likelihood.md builds, read from that page."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "develop" / "add_a_likelihood.md"


def blocks():
    """The Python of the page, block by block: the class, its use, streams and files."""
    return [part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]


def run(*sources):
    """The names that these blocks define."""
    names = {"__name__": "own_likelihood"}
    for source in sources:
        exec(compile(source, str(PAGE), "exec"), names)
    return names


Poisson = run(blocks()[0])["Poisson"]
