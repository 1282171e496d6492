"""Held-out text is new to the models: what training text gives away leaves it, document by document."""

from pathlib import Path

import pytest

from specviz.errors import SpecvizError
from specviz.zoo.data.corpus import TokenFile, documents, held_out, load_sources, prepare
from specviz.zoo.data.tokenizer import train_tokenizer
from tests.helpers.small_zoo import SOURCES, write_texts

CORPUS = Path(__file__).parents[3] / "shared" / "corpus"
"""The real texts, where they lie beside the repository."""


def words(start, count):
    return " ".join(f"word{number}" for number in range(start, start + count))


def split_of(folder, **documents):
    """What `stories` and `code` hold out; their files: stories, stories_valid, code, code_valid."""
    for name, source in SOURCES.items():
        write_texts(folder / f"{source.train}.xz", documents.get(name, [words(10_000, 50)]))
        write_texts(folder / f"{source.valid}.xz", documents.get(f"{name}_valid", [words(20_000, 50)]))
    return {name: list(held_out(folder, source, SOURCES.values())) for name, source in SOURCES.items()}


def test_a_held_out_document_that_repeats_training_text_of_any_source_is_left_out(tmp_path):
    """Of 112 words' 100 runs of 13 words, 5 are allowed to be in the training text, which is what 17 words make."""
    allowed = f"{words(0, 17)} {words(100, 95)}"
    over = f"{words(30, 18)} {words(300, 94)}"
    fresh = words(500, 112)
    kept = split_of(
        tmp_path,
        stories=[words(0, 100)],
        code=["x = 1"],
        stories_valid=[allowed, over, fresh],
        code_valid=[over, fresh],
    )
    assert kept == {"stories": [allowed, fresh], "code": [fresh]}


def test_a_short_held_out_document_is_left_out_only_if_training_has_the_same(tmp_path):
    kept = split_of(tmp_path, stories=["x = 1", words(0, 50)], code_valid=["x = 1", "x = 2", words(0, 5)])
    assert kept["code"] == ["x = 2", words(0, 5)]


def test_a_source_of_which_nothing_is_held_out_is_named(tmp_path):
    with pytest.raises(SpecvizError, match=r"code\.valid\.txt holds nothing out: training text has over 5% of each"):
        split_of(tmp_path, stories=[words(0, 50)], code_valid=[words(10, 30)])


def test_what_is_encoded_as_held_out_is_what_is_held_out(tmp_path):
    kept = split_of(tmp_path, stories=[words(0, 50)], code_valid=[words(10, 30), words(100, 30)])
    tokenizer = train_tokenizer(documents(tmp_path, "stories.txt"), 320)
    prepare(tmp_path, tmp_path, tokenizer, SOURCES.values())
    tokens = TokenFile.open(tmp_path, "code", "valid").tokens
    assert tokenizer.decode(tokens.tolist(), skip_special_tokens=True) == "".join(kept["code"])


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not beside the repository")
def test_under_one_percent_of_each_held_out_file_is_in_the_training_text():
    """Counted again in another way: runs of 13 words as tuples."""
    sources = [source for source in load_sources().values() if source.train or source.valid]
    kept = {
        source.name: [run for text in held_out(CORPUS, source, sources) for run in tuples(text)]
        for source in sources
        if source.valid
    }
    wanted, known = {run for runs in kept.values() for run in runs}, set()
    for source in sources:
        for text in source.texts(CORPUS, "train"):
            known |= wanted.intersection(tuples(text))
    shares = {name: sum(run in known for run in runs) / len(runs) for name, runs in kept.items()}
    assert len(shares) == 6
    assert max(shares.values()) < 0.01, shares


def tuples(text):
    words = text.split()
    return zip(*(words[start:] for start in range(13)), strict=False)
