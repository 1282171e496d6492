"""The page's tokenizer gives the ids of the `tokenizers` library, and the texts, bytes and labels of `TokenText`."""

import random
import re
import unicodedata
from functools import cache

import pytest
from transformers import AutoTokenizer

from specviz.models.tokens import TokenText
from tests.live.engine import TARGET, ask, folder_of

SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]  # U+0085, U+00A0, U+2028 and the others
JOINERS = ["\u200b", "\u200c", "\u200d", "\u2060", "\ufe0f", "\ufeff", "\u202e", "\u2066"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪", "❤️", "🧑🏿‍🚀", "😀"]
CODE = "def add(a, b):\n    return a + b  # they're it's we'll I'd\n\n\tif x != 10: print(f'{x:>8}')\r\n"
WORDS = ["Once", "upon", "a", "time", "THERE", "was", "fox,", "who", "said:", "don't!", "12345", "times.", "end."]
END = "<|endoftext|>"
SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


@cache
def characters():
    """All that both the tables of this Python and those of node know: a newer one may be a letter in one alone."""
    known = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Co", "Cn")]
    return [each for each, is_known in zip(known, ask("assigned", characters=known), strict=True) if is_known]


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(folder_of(TARGET))


def of_one_script(generator):
    """Neighbours in the table of characters, mostly of one script."""
    start = generator.randrange(len(characters()))
    near = characters()[start : start + generator.choice((8, 60))]
    return "".join(generator.choice((generator.choice(near), generator.choice(near), " ")) for _ in range(40))


def of_any_characters(generator):
    return "".join(generator.choices(characters(), k=30))


def of_white_space(generator):
    parts = [*SPACES, *SPACES, *JOINERS, *WORDS, "7", "!", "'"]
    return "".join(generator.choice(parts) * generator.choice((1, 1, 1, 2, 30)) for _ in range(20))


def of_control_characters(generator):
    return "".join(chr(generator.randrange(0xA0)) for _ in range(60))


def of_broken_bytes(generator):
    return generator.randbytes(60).decode("utf-8", "replace")


def of_code(generator):
    start = generator.randrange(len(CODE))
    return (CODE[start:] + CODE) * generator.choice((1, 4)) + " " * generator.randrange(200) + "\n" * 9


def of_emoji(generator):
    return "".join(generator.choice([*EMOJI, *JOINERS, " ", "a"]) for _ in range(20))


def of_words(generator):
    words = [generator.choice((word, word.upper(), word * 3, END, "<|endoftext", "|>")) for word in WORDS]
    generator.shuffle(words)
    return generator.choice((" ", "", "\n", " " * 50)).join(words)


KINDS = (
    of_one_script,
    of_any_characters,
    of_white_space,
    of_control_characters,
    of_broken_bytes,
    of_code,
    of_emoji,
    of_words,
)


def texts(count, seed=0):
    generator = random.Random(seed)
    return ["", END, END * 3, " ", *(KINDS[number % len(KINDS)](generator) for number in range(count - 4))]


def differing(read):
    """The texts whose ids are not those of the library."""
    mine, theirs = ask("encode", folder=folder_of(TARGET), texts=read), tokenizer()(read, verbose=False).input_ids
    assert sum(map(len, theirs)) > 10 * len(read)
    return [(text, got, right) for text, got, right in zip(read, mine, theirs, strict=True) if got != right]


def test_a_text_has_the_ids_of_the_tokenizers_library():
    assert differing(texts(5_000)) == []


@pytest.mark.slow
def test_every_character_has_the_ids_of_the_tokenizers_library():
    """Alone, twice, inside a word, behind a space and before a number."""
    assert len(characters()) > 130_000
    assert differing([f"a{each}b {each} {each}{each}7\n{each}" for each in characters()]) == []


@cache
def token_text():
    return TokenText(tokenizer())


def token_of(token, text, raw):
    return {"id": token, "text": text} if raw is None else {"id": token, "text": text, "bytes": raw}


def check_pieces(ids, pieces):
    """Half a surrogate pair in UTF-8 is known to be none by its second byte; Python waits for the third to say so."""
    decoder = token_text().incremental()
    pushed = [decoder.push(token) for token in ids]
    is_late = SURROGATE.search(b"".join(map(token_text().bytes_of, ids)))
    assert "".join(piece["text"] for piece in pieces) == "".join(token.text for token in pushed)
    assert is_late or pieces == [token_of(each.id, each.text, each.bytes) for each in pushed]
    return bool(is_late)


def test_every_id_has_its_text_bytes_and_label():
    ids = [*range(4_096), 4_096, 5_000]  # the last ones have no token
    (answer,) = ask("decode", folder=folder_of(TARGET), texts=[ids])
    check_pieces(ids, answer["pieces"])
    assert answer["alone"] == [token_of(token, *token_text().piece(token)) for token in ids]
    assert answer["labels"] == [token_text().label(token) for token in ids]


def test_ids_one_by_one_have_the_texts_of_whole_characters_only():
    generator = random.Random(1)
    halves = [token for token in range(4_096) if token_text().piece(token)[1]]
    read = [generator.choices(range(4_096), k=60) for _ in range(60)]
    read += [[generator.choice((*halves, generator.randrange(4_096))) for _ in range(60)] for _ in range(80)]
    read += tokenizer()(texts(120, seed=2)).input_ids
    read = [[*ids, *tokenizer()(".").input_ids] for ids in read]  # which ends any half character
    answers = ask("decode", folder=folder_of(TARGET), texts=read)
    assert sum("bytes" in piece for answer in answers for piece in answer["pieces"]) > 3_000
    late = [check_pieces(ids, answer["pieces"]) for ids, answer in zip(read, answers, strict=True)]
    assert sum(late) < 200
