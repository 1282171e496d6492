"""TokenText: bytes of an id depend on the id alone, and emitted texts join to exactly the generated text."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from specviz.errors import SpecvizError
from specviz.models.chat import render_chat
from specviz.models.tokens import MAX_CHARACTERS, TokenText, differing_ids
from tests.helpers.tiny_models import EOS, tiny_tokenizer

BYTE_LEVEL = TokenText(tiny_tokenizer())


def sentencepiece():
    """A tokenizer as Llama 2 and Gemma have it: a mark for spaces, bytes as pieces, a start token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    core = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece():
    core = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "play": 2, "##ing": 3}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")


def joined(text, ids):
    decoder = text.incremental()
    return "".join(decoder.push(token).text for token in ids)


def decoded(text, ids):
    return text.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@given(st.text(max_size=60))
def test_emitted_texts_join_to_the_text(written):
    ids = BYTE_LEVEL.encode(written)
    assert joined(BYTE_LEVEL, ids) == decoded(BYTE_LEVEL, ids)
    if EOS not in written:
        assert joined(BYTE_LEVEL, ids) == written


@given(st.lists(st.integers(0, BYTE_LEVEL.num_ids - 1), max_size=30))
@example([169, 94])
def test_any_ids_join_to_what_the_tokenizer_decodes(ids):
    ours, theirs = joined(BYTE_LEVEL, ids), decoded(BYTE_LEVEL, ids)
    assert theirs.startswith(ours)
    held = theirs[len(ours) :]
    is_surrogate = _written(ids).endswith(tuple(bytes([0xED, second]) for second in range(0xA0, 0xC0)))
    assert held in ("", "��" if is_surrogate else "�")  # a character that is still incomplete, or half a surrogate


def _written(ids):
    return b"".join(BYTE_LEVEL.bytes_of(token) for token in ids)


def test_half_a_character_is_empty_text_and_its_bytes():
    ids = BYTE_LEVEL.encode("🦊")
    decoder = BYTE_LEVEL.incremental()
    tokens = [decoder.push(token) for token in ids]
    assert len(ids) > 1
    assert [token.text for token in tokens] == [""] * (len(ids) - 1) + ["🦊"]
    assert bytes.fromhex("".join(token.bytes for token in tokens)) == "🦊".encode()


def test_a_whole_character_has_no_bytes():
    assert BYTE_LEVEL.incremental().push(BYTE_LEVEL.encode("fox")[0]).bytes is None


def test_bytes_that_never_become_a_character_are_replaced():
    lead, letter = BYTE_LEVEL.encode("é")[0], BYTE_LEVEL.encode("a")[0]
    assert joined(BYTE_LEVEL, [lead, letter]) == "�a"


def test_a_piece_stands_alone():
    lead = BYTE_LEVEL.encode("🦊")[0]
    assert BYTE_LEVEL.piece(BYTE_LEVEL.encode(" the")[0]) == (" the", None)
    assert BYTE_LEVEL.piece(lead) == ("�", BYTE_LEVEL.bytes_of(lead).hex())


def test_labels_show_bytes_texts_and_ids_without_a_token():
    fox = BYTE_LEVEL.encode("🦊")
    assert BYTE_LEVEL.label(fox[0]).startswith("<F0")
    assert BYTE_LEVEL.label(BYTE_LEVEL.encode(" the")[0]) == " the"
    assert BYTE_LEVEL.label(BYTE_LEVEL.num_ids - 1) == EOS
    assert BYTE_LEVEL.label(BYTE_LEVEL.num_ids + 5) == f"<id {BYTE_LEVEL.num_ids + 5}>"


def test_special_and_added_tokens_show_their_own_text():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<think> more"])
    text = TokenText(tokenizer)
    assert text.piece(text.num_ids - 1) == ("<think> more", None)
    assert text.piece(text.num_ids - 2) == (EOS, None)


@given(st.text("ab 🦊é", max_size=20))
def test_sentencepiece_texts_join(written):
    text = TokenText(sentencepiece())
    ids = text.encode(written, special=False)
    assert joined(text, ids) == (f" {written}" if written else "")


def test_sentencepiece_pieces():
    text = TokenText(sentencepiece())
    assert text.piece(text.tokenizer.convert_tokens_to_ids("<0x0A>")) == ("\n", None)
    assert text.label(text.tokenizer.convert_tokens_to_ids("<0xF0>")) == "<F0>"
    assert text.label(text.tokenizer.convert_tokens_to_ids("▁a")) == " a"
    assert text.label(1) == "<s>"


def test_other_decoders_are_read_by_what_an_id_adds():
    text = TokenText(wordpiece())
    assert [text.label(token) for token in (2, 3)] == [" play", "ing"]
    assert joined(text, [1, 2, 3]) == " a playing"


def test_the_start_token_is_added_once():
    text = TokenText(sentencepiece())
    assert text.encode("a b").count(1) == 1
    assert text.encode("<s> a b", special=False).count(1) == 1


def test_end_tokens_of_model_and_tokenizer_are_joined():
    tokenizer = tiny_tokenizer()
    assert TokenText(tokenizer).eos_ids == {tokenizer.eos_token_id}
    assert TokenText(tokenizer, [3, 4]).eos_ids == {3, 4, tokenizer.eos_token_id}


def test_equal_vocabularies_have_equal_hashes():
    assert TokenText(tiny_tokenizer()).sha == BYTE_LEVEL.sha
    assert TokenText(tiny_tokenizer(swap=(280, 290))).sha != BYTE_LEVEL.sha


def test_differing_ids_are_found_and_special_ones_may_differ():
    assert differing_ids(BYTE_LEVEL, TokenText(tiny_tokenizer(swap=(280, 290)))) == (280, 290)
    renamed = tiny_tokenizer(vocab_size=319)
    renamed.add_special_tokens({"additional_special_tokens": ["<|other end|>"]})
    assert differing_ids(TokenText(tiny_tokenizer(vocab_size=319)), TokenText(renamed)) == ()


def test_too_long_a_text_is_refused():
    with pytest.raises(SpecvizError, match="too long: at most 1,000,000 characters"):
        BYTE_LEVEL.encode("a" * (MAX_CHARACTERS + 1))


def test_a_text_with_half_a_character_is_refused():
    with pytest.raises(SpecvizError, match=r"half a character \(U\+D800\), which no tokenizer reads"):
        TokenText(tiny_tokenizer()).encode("a\ud800b")


def test_a_text_that_the_tokenizer_cannot_split_is_refused():
    core = Tokenizer(models.WordLevel({"a": 0}, unk_token="none"))
    with pytest.raises(SpecvizError, match=r"the tokenizer cannot split this text: WordLevel error: Missing \[UNK\]"):
        TokenText(PreTrainedTokenizerFast(tokenizer_object=core)).encode("b")


def test_a_panic_of_the_tokenizers_library_is_an_error_in_words():
    """Its expression is tried in more ways than the library takes, and the library breaks off."""
    state = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": False}
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, state["pre_tokenizer"]]}
    text = TokenText(PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state))))
    assert text.encode("a")
    with pytest.raises(SpecvizError, match="the tokenizers library broke off: Onig: Regex search error"):
        text.encode("x" * 60)


def test_a_chat_is_rendered_from_a_prompt_or_from_messages():
    tokenizer = tiny_tokenizer(chat=True)
    assert render_chat(tokenizer, "hello") == "<|user|>hello\n<|assistant|>"
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert render_chat(tokenizer, messages) == "<|system|>be kind\n<|user|>hello\n<|assistant|>"


def test_a_chat_without_a_working_template_is_refused():
    with pytest.raises(SpecvizError, match="has no chat template"):
        render_chat(tiny_tokenizer(), "hello")
    broken = tiny_tokenizer(chat=True)
    broken.chat_template = "{{ raise_exception('system messages are not allowed') }}"
    with pytest.raises(SpecvizError, match="cannot render these messages: system messages are not allowed"):
        render_chat(broken, "hello")
