"""A byte-level BPE tokenizer: all text round-trips, digits stand alone, a line break keeps its indentation."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from specviz.errors import SpecvizError
from specviz.zoo.config import TokenizerRecipe
from specviz.zoo.data.corpus import END_OF_TEXT, CorpusSource

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]+[ \t]*|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Learn `vocab_size` tokens from `texts`; the end-of-text token has id 0, the 256 bytes follow."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def training_texts(
    corpus: Path, recipe: TokenizerRecipe, sources: Mapping[str, CorpusSource]
) -> Iterator[str]:
    """Documents of each source up to its share of the recipe's sample size."""
    total = sum(recipe.mixture.values())
    return chain.from_iterable(
        head(
            sources[name].texts(corpus, "train") or iter(()),
            int(recipe.sample_bytes * share / total),
        )
        for name, share in recipe.mixture.items()
    )


def head(texts: Iterator[str], num_characters: int) -> Iterator[str]:
    """The first texts that together reach `num_characters`."""
    for text in texts:
        if num_characters <= 0:
            return
        num_characters -= len(text)
        yield text


def load_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise SpecvizError(
            f"there is no {path.name} in the work folder; run `python -m specviz.zoo tokenizers` first"
        )
    return Tokenizer.from_file(str(path))
