"""The page of many classes says what was measured."""

import json
from pathlib import Path

import many_classes

ROOT = Path(many_classes.__file__).parent.parent


def test_the_page_of_many_classes_is_made_of_the_results():
    results = json.loads((ROOT / "benchmarks/results/many_classes.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs/results/many_classes.md").read_text(encoding="utf-8") == many_classes.page(results)
