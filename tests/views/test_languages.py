"""The page in other languages: what a table of sentences lacks, and what its entries must keep."""

import re
from collections import Counter

import pytest

from specviz.views.bundle import web_file
from specviz.views.languages import languages
from tests.helpers.translations import ELEMENT, PLACE, SAID, Table

NUMBER = re.compile(r"\d[\d.,]*")
each_language = pytest.mark.parametrize("language", languages())


def numbers(text):
    return Counter(number.rstrip(".,") for number in NUMBER.findall(PLACE.sub("", text).replace("Pos1", "Home")))


@each_language
@pytest.mark.parametrize("place", SAID)
def test_a_table_lacks_nothing_that_is_said(language, place):
    table = Table(languages()[language])
    assert sorted({text for text in SAID[place]() if text and not table.knows(text)}) == []


@each_language
def test_a_sentence_stands_in_one_room(language):
    times = Counter(english for table in languages()[language].values() for english in table)
    assert [english for english, number in times.items() if number > 1] == []


@each_language
def test_an_entry_keeps_numbers_names_and_elements(language):
    """A number that differs from the English one would be a false claim in one language."""
    wrong = {}
    for english, other in Table(languages()[language]).entries.items():
        pieces = zip(english.split(ELEMENT), other.split(ELEMENT), strict=False)
        kept = {
            "numbers": numbers(english) == numbers(other),
            "names": Counter(PLACE.findall(english)) == Counter(PLACE.findall(other)),
            "elements": english.count(ELEMENT) == other.count(ELEMENT),
            "a text where there was none": all(piece.strip() or not said.strip() for piece, said in pieces),
            "words": bool(other.strip()),
        }
        if missing := [what for what, is_kept in kept.items() if not is_kept]:
            wrong[english] = missing
    assert wrong == {}


def test_the_browser_offers_every_table():
    source = web_file("core/language.js").read_text("utf-8")
    (offered,) = re.findall(r"export const LANGUAGES = \{(.*?)\}", source)
    assert re.findall(r"(\w+):", offered) == list(languages())
