"""Examples of the gallery run, draw one figure and end in a sentence. `make docs` runs those that train networks."""

import runpy
from pathlib import Path

import matplotlib
import pytest

GUIDE = Path(__file__).parents[2] / "examples/guide"
LIGHT = ("add_a_likelihood", "drift", "informative_prior", "medical_abstention", "ordinal", "simulator")
DRAWN = ("hugging_face", "imagenet_500_labels", "spam_embeddings")


@pytest.mark.parametrize("name", LIGHT)
def test_light_examples_run(name, monkeypatch, capsys):
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")  # what other tests of this process have left open
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(len(plt.get_fignums())))
    runpy.run_path(str(GUIDE / f"plot_{name}.py"))
    plt.close("all")
    assert shown == [1]
    assert capsys.readouterr().out.rstrip().endswith(".")


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_and_sentences_of_the_heavy_examples_are_stored(name):
    images = GUIDE.parents[1] / "docs/images"
    text = (GUIDE / f"{name}.py").read_text(encoding="utf-8")
    assert f".. image:: /images/{name}.png" in text
    assert (images / f"{name}.png").stat().st_size < 100_000
    assert (images / f"{name}.txt").read_text(encoding="utf-8").strip()


def test_the_flow_is_drawn_by_its_script(tmp_path):
    from PIL import Image

    main = runpy.run_path(str(GUIDE.parent / "flow_of_an_ensemble.py"))["main"]
    main(tmp_path / "flow.gif", frames=4)
    stored = GUIDE.parents[1] / "docs/images/flow.gif"
    with Image.open(tmp_path / "flow.gif") as drawn, Image.open(stored) as shown:
        assert drawn.size == shown.size
        assert drawn.n_frames >= 4
        assert shown.n_frames > 40
