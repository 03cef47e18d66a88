"""Every message of the package is explained on docs/troubleshooting.md, with cause and cure."""

import re
from pathlib import Path

import pytest
from package_messages import ANY, messages, of_package

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
ENTRIES = {part.splitlines()[0]: part for part in PAGE.split("\n### ")[1:]}


def patterns(text):
    """Return the patterns of the code blocks of a text."""
    return [line for block in text.split("```text\n")[1:] for line in block.split("```")[0].splitlines()]


def compiled(pattern):
    return re.compile("".join(".*" if letter == ANY else re.escape(letter) for letter in pattern), re.DOTALL)


@pytest.fixture(scope="module")
def said():
    return of_package(ROOT / "src/enkbayes")


def test_no_message_is_missing(said):
    known = [compiled(pattern) for pattern in patterns(PAGE)]
    missing = {text: place for text, place in said.items() if not any(each.fullmatch(text) for each in known)}
    assert not missing, f"add these to docs/troubleshooting.md: {missing}"


def test_no_entry_is_about_messages_that_no_longer_exist(said):
    assert not [pattern for pattern in patterns(PAGE) if not any(compiled(pattern).fullmatch(text) for text in said)]


@pytest.mark.parametrize("title", ENTRIES)
def test_every_entry_has_messages_cause_and_cure(title):
    assert patterns(ENTRIES[title])
    assert all(f"\n**{word}.** " in ENTRIES[title] for word in ("Cause", "Cure"))


def test_patterns_have_words_of_their_own():
    assert not [pattern for pattern in patterns(PAGE) if len(re.findall(r"[A-Za-z]{2,}", pattern)) < 2]


def test_messages_are_found_in_source():
    source = "TEXT = 'no rows here'\nif few:\n    raise ValueError(TEXT if few else f'{n} are too many')\n"
    assert [text for _, text in messages(source)] == ["no rows here", f"{ANY} are too many"]
    for warn in ("warn", "warnings.warn"):
        assert [text for _, text in messages(f"{warn}(f'no {{a}}' + ' room', Warning)")] == [f"no {ANY} room"]
    assert not list(messages("raise ValueError(str(error))\nraise ValueError(f'{what}; {how}')"))
