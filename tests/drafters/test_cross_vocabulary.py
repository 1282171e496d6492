"""Two vocabularies: exact laws on byte tables, q by its formula, tokens that spell to the byte what follows."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.drafter import Context
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.cross_vocabulary import METHOD
from specviz.drafters.cross_vocabulary.respelled import Respelled
from specviz.drafters.method import Part, Parts
from specviz.errors import SpecvizError
from specviz.models.tokens import TokenText, encode_after, ends_whole, shared_ids, whole_start
from specviz.rules import RULES
from specviz.settings import assets_dir
from tests.helpers.tiny_models import TRAINING_TEXT, tiny, tiny_tokenizer
from tests.helpers.toys import TableLM, plan_of, target_distribution, text_distribution, total_variation

EXACT = 1e-12
PROMPT = (2, 0, 1)
SAMPLINGS = [
    Sampling(),
    Sampling(0.7, top_k=2),
    Sampling(1.3, top_p=0.8),
    Sampling(1.3, min_p=0.6),
    Sampling(0.0),
    Sampling(0.6, draft_temperature=1.5),
]
LOSSLESS = [rule for rule in RULES.values() if rule.lossless]
WAYS = ["reencode", "shared"]
MIXED = "Zoë said: “ça va?” 🦊🦊 naïve — café.\n\n  if x:\n\treturn 1 # 日本語\n" * 2


class BytesText:
    """A vocabulary given as a table of bytes; cuts greedily, the longest piece first."""

    class tokenizer:
        bos_token_id = None

    def __init__(self, *pieces, special=()):
        self.pieces, self.num_ids, self.special_ids = pieces, len(pieces), frozenset(special)

    def bytes_of(self, token):
        return self.pieces[token] if token < self.num_ids else b""

    def piece(self, token):
        return self.bytes_of(token).decode("utf-8", "replace"), None

    def encode(self, text, *, special=True):
        rest, ids = text.encode(), []
        while rest:
            token = max((t for t, raw in enumerate(self.pieces) if raw and rest.startswith(raw)), key=self._length)
            ids.append(token)
            rest = rest[len(self.pieces[token]) :]
        return ids

    def _length(self, token):
        return len(self.pieces[token])


TARGET = BytesText(b"a", b"b", b"ab")
DRAFT = BytesText(b"b", b"ba", b"a", b"aa")


def over_tables(way, sampling_seed=2, **params):
    target, draft = TableLM(1, 3), TableLM(sampling_seed, 4)
    parts = Parts(Part("target", target, None, TARGET), Part("draft", draft, None, DRAFT))
    return METHOD.build(parts, METHOD.validate({"way": way, **params}))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
def test_the_text_has_the_targets_distribution(way, sampling, rule):
    mine = text_distribution(plan_of(TableLM(1, 3), over_tables(way), 2, sampling, rule), PROMPT, 3)
    assert total_variation(mine, target_distribution(TableLM(1, 3), PROMPT, 3, sampling)) < EXACT


@pytest.mark.parametrize("policy", ["heuristic", "moving_average", "confidence"])
@pytest.mark.parametrize("way", WAYS)
def test_no_draft_length_changes_the_distribution(way, policy):
    mine = text_distribution(plan_of(TableLM(1, 3), over_tables(way, k_policy=policy), 2), PROMPT, 3)
    assert total_variation(mine, target_distribution(TableLM(1, 3), PROMPT, 3, Sampling())) < EXACT


def test_q_is_the_drafts_row_on_the_shared_tokens():
    """By hand: the target's a, b and ab are the draft's ids 2, 0 and none; the text abab reads b a ... to the draft."""
    for sampling in (Sampling(), Sampling(0.7), Sampling(1.0, top_k=1)):
        for seed in range(8):
            draft = over_tables("shared").draft(Context(list(PROMPT), sampling, Seeded(seed), 3), 3)
            own = DRAFT.encode("abab")
            for node, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
                row = TableLM(2, 4).row([*own, *({0: 2, 1: 0}[one] for one in draft.tokens[:node])])
                expected = torch.zeros(3, dtype=torch.float64)
                expected[:2] = (row[[2, 0]] / sampling.temperature).softmax(-1)
                if sampling.top_k:
                    expected = (expected == expected.max()).double()
                assert (q - expected).abs().max() < EXACT
                assert q[token] > 0


def test_the_share_is_what_q_had_on_shared_tokens():
    draft = over_tables("shared").draft(Context(list(PROMPT), Sampling(), Seeded(1), 3), 1)
    row = TableLM(2, 4).row(DRAFT.encode("abab")).softmax(-1)
    assert abs(draft.evidence["shared"] - float(row[0] + row[2])) < 1e-6


def test_tokens_drawn_from_the_shared_vocabulary_follow_q():
    first = over_tables("shared").draft(Context(list(PROMPT), Sampling(), Seeded(1), 3), 1).probs[0]

    def experiment(draws):
        return over_tables("shared").draft(Context(list(PROMPT), Sampling(), draws, 3), 1).tokens[0]

    assert total_variation(distribution(experiment), dict(enumerate(first.tolist()))) < EXACT


def test_re_encoded_tokens_are_point_masses_of_the_drafts_most_likely_text():
    draft = over_tables("reencode").draft(Context(list(PROMPT), Sampling(), None, 3), 3)  # no draws at all
    own, written = DRAFT.encode("abab"), []
    for _ in range(8):
        written.append(int(TableLM(2, 4).row([*own, *written]).argmax()))
    text = b"".join(map(DRAFT.bytes_of, written))
    assert draft.tokens
    assert set(draft.probs) == {None}
    assert text.startswith(b"".join(map(TARGET.bytes_of, draft.tokens)))


def test_vocabularies_without_a_common_token_are_refused():
    parts = Parts(
        Part("target", TableLM(1, 2), None, BytesText(b"a", b"b")), Part("draft", TableLM(2, 1), None, BytesText(b"c"))
    )
    with pytest.raises(SpecvizError, match="no token in common"):
        METHOD.build(parts, METHOD.validate({"way": "shared"}))


def test_shared_ids_pair_equal_bytes_and_special_with_special():
    one = BytesText(b"a", b"b", b"", b"</s>", b"a", special=[3])
    other = BytesText(b"</s>", b"b", b"a", b"x", b"</s>", special=[0])
    assert set(shared_ids(one, other)) == {(4, 2), (1, 1), (3, 0)}


def test_whole_characters():
    fox = "🦊".encode()
    assert [ends_whole(fox[:size]) for size in range(5)] == [True, False, False, False, True]
    assert ends_whole(b"\xffa")
    assert not ends_whole(b"a\xc3")
    assert [whole_start(b"a" + fox[:size]) for size in (2, 4)] == [b"a", b"a" + fox]
    assert whole_start(b"a\xffb") == b"a"


# ---- real tokenizers ------------------------------------------------------------------------------------------------


def pieces_of_words():
    """A tokenizer that writes spaces as a mark and puts one before every text, as sentencepiece does."""
    words = ["▁", "▁the", "▁fox", "▁f", "ox", "he", *"thefoxsaidlrn.,! ", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: token for token, piece in enumerate(dict.fromkeys(words))}
    core = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token=None))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=core)


def lower_case():
    """A tokenizer that loses capital letters."""
    tokenizer = tiny_tokenizer(300)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def bundled(name):
    return AutoTokenizer.from_pretrained(assets_dir() / "models" / name)


PAIRS = {
    "bundled": lambda: (bundled("fable-target"), bundled("fable-draft-othervocab")),
    "bundled, reversed": lambda: (bundled("fable-draft-othervocab"), bundled("fable-target")),
    "tiny": lambda: (tiny_tokenizer(400, 1), tiny_tokenizer(290, 2)),
    "marks": lambda: (tiny_tokenizer(400, 1), pieces_of_words()),
    "marks, reversed": lambda: (pieces_of_words(), tiny_tokenizer(400, 1)),
    "lower case": lambda: (tiny_tokenizer(400, 1), lower_case()),
}


def texts(name):
    one, other = PAIRS[name]()
    return TokenText(one), TokenText(other)


def joined(text, ids):
    return b"".join(map(text.bytes_of, ids))


@pytest.mark.parametrize("name", PAIRS)
def test_what_continues_a_text_spells_it_to_the_byte(name):
    text, _ = texts(name)
    whole = MIXED + "".join(TRAINING_TEXT)
    num_found = 0
    for place in range(1, 200):
        before, added = whole[:place].encode(), whole[place : place + 12].encode()
        ids = encode_after(text, before[-24:], added)
        assert not ids or joined(text, ids) == added
        num_found += bool(ids)
    assert num_found > 190


def test_ids_that_do_not_spell_what_was_added_continue_nothing(monkeypatch):
    text = BytesText(b"x", b"")
    monkeypatch.setattr(text, "encode", lambda words, special: [0, 1], raising=False)
    assert encode_after(text, b"", b"ax") == []


def test_a_word_that_goes_on_is_cut_as_the_tokenizer_cuts_it_there():
    """ " the" behind "see" stays one token; "x" behind "fo" has a token of its own, though "fox" is one."""
    text = TokenText(bundled("fable-target"))
    assert encode_after(text, b"I see", b" the") == text.encode(" the", special=False)
    assert joined(text, encode_after(text, b"a little fo", b"x ran")) == b"x ran"


@pytest.mark.parametrize("name", ["bundled", "bundled, reversed", "tiny"])
def test_a_growing_text_is_cut_like_a_whole_one(name):
    target, draft = texts(name)
    respelled, tokens, num_alike, num_asked = Respelled(target, draft), [], 0, 0
    for token in target.encode(MIXED + "".join(TRAINING_TEXT), special=False):
        tokens.append(token)
        raw = joined(target, tokens)
        assert respelled.follow(tokens) == ends_whole(raw)
        if ends_whole(raw):
            assert joined(draft, respelled.ids) == raw
            num_alike += respelled.ids == draft.encode(raw.decode())
            num_asked += 1
    assert num_asked > 50
    assert num_alike >= 0.98 * num_asked


def test_the_list_of_ids_stays_the_same_object_while_it_only_grows():
    target, draft = texts("bundled, reversed")
    respelled, tokens, before, num_backed = Respelled(target, draft), [], None, 0
    for token in target.encode("".join(TRAINING_TEXT), special=False):
        tokens.append(token)
        known = None if before is None else list(before)
        respelled.follow(tokens)
        if before is respelled.ids:
            assert respelled.ids[: len(known)] == known
            assert respelled.backed[0] == 0
        elif known is not None:
            assert respelled.backed[0] > 0
            num_backed += 1
            assert joined(draft, respelled.ids).decode().endswith(respelled.backed[1])
        before = respelled.ids
    assert num_backed > 0


@pytest.mark.parametrize("name", PAIRS)
def test_another_text_is_read_anew(name):
    target, draft = texts(name)
    respelled, fresh = Respelled(target, draft), Respelled(target, draft)
    one = target.encode("the fox said " * 30, special=False)
    other = target.encode("said the fox", special=False)
    respelled.follow(one)
    respelled.follow(other)
    fresh.follow(other)
    assert respelled.ids == fresh.ids
    assert len(fresh.ids) > 0


# ---- real models ----------------------------------------------------------------------------------------------------


def over_models(way, name="tiny", **params):
    target, draft = texts(name)
    big = tiny("llama", vocab_size=target.num_ids, seed=1)
    lms = [CachedLM(big, 256), CachedLM(tiny("llama", vocab_size=draft.num_ids, layers=1, seed=2), 256)]
    parts = Parts(Part("target", lms[0], None, target), Part("draft", lms[1], None, draft))
    return big, target, METHOD.build(parts, METHOD.validate({"way": way, **params}))


@pytest.mark.parametrize("name", ["tiny", "marks", "marks, reversed", "lower case"])
@pytest.mark.parametrize("way", WAYS)
def test_greedy_text_is_the_targets_own(way, name):
    big, target, drafter = over_models(way, name)
    prompt = target.encode("the fox said the fox", special=False)
    expected = big.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, eos_token_id=None)[0]
    plan = plan_of(CachedLM(big, 256), drafter, 4, Sampling(0.0))
    steps = list(speculate(prompt, lambda: plan, Seeded(1), max_new_tokens=30))
    assert [*prompt, *(token for step in steps for token in step.tokens)] == expected.tolist()
    assert any(len(step.draft) for step in steps)


@pytest.mark.parametrize("name", ["tiny", "marks", "marks, reversed", "lower case"])
def test_every_re_encoded_token_continues_what_the_draft_wrote(name):
    big, target, drafter = over_models("reencode", name)
    prompt = target.encode("the fox said the fox", special=False)
    text = list(prompt)
    for step in speculate(prompt, lambda: plan_of(CachedLM(big, 256), drafter, 4), Seeded(3), max_new_tokens=40):
        if not ends_whole(joined(target, text)):
            assert len(step.draft) == 0
        if len(step.draft):
            written = "".join(token["text"] for token in step.draft.evidence["draft_tokens"])
            shown, _, half = written.partition("\N{REPLACEMENT CHARACTER}")
            shown, proposed = shown.encode(), joined(target, step.draft.tokens)
            assert shown.startswith(proposed) or (half and proposed.startswith(shown))
            assert tuple(token["id"] for token in step.draft.evidence["target_tokens"]) == step.draft.tokens
        text += step.tokens


@pytest.mark.parametrize("way", WAYS)
def test_beyond_the_drafts_context_nothing_is_proposed(way):
    target, draft = texts("tiny")
    lms = CachedLM(tiny("llama", vocab_size=400), 256), CachedLM(tiny("llama", vocab_size=290, layers=1), 12)
    parts = Parts(Part("target", lms[0], None, target), Part("draft", lms[1], None, draft))
    drafter, tokens, num_proposed = METHOD.build(parts, METHOD.validate({"way": way})), [], 0
    for token in target.encode("".join(TRAINING_TEXT)[:120], special=False):
        tokens.append(token)
        proposed = drafter.draft(Context(tokens, Sampling(), Seeded(1), 400), 4)
        num_ids = len(draft.encode(joined(target, tokens).decode()))
        assert not len(proposed) or (num_ids <= 12 and len(proposed) <= 4)
        assert len(proposed) <= max(0, 13 - num_ids) or way == "reencode"  # its tokens may be longer
        num_proposed += len(proposed)
    assert num_proposed > 0


def test_ids_beyond_the_drafts_table_are_not_read():
    target, draft = texts("tiny")
    lms = CachedLM(tiny("llama", vocab_size=400), 256), CachedLM(tiny("llama", vocab_size=100, layers=1), 256)
    parts = Parts(Part("target", lms[0], None, target), Part("draft", lms[1], None, draft))
    for way in WAYS:
        drafter = METHOD.build(parts, METHOD.validate({"way": way}))
        tokens = target.encode("the fox", special=False)
        assert len(drafter.draft(Context(tokens, Sampling(), Seeded(1), 400), 4)) == 0


def test_asked_again_and_about_another_text_it_says_the_same():
    for way in WAYS:
        _, target, drafter = over_models(way)
        context = Context(target.encode("the fox said", special=False), Sampling(), Seeded(1), 400)
        other = Context(target.encode("a dog and a fox", special=False), Sampling(), Seeded(1), 400)
        first = drafter.draft(context, 4).tokens
        assert drafter.draft(context, 4).tokens == first
        assert drafter.draft(other, 4).tokens == over_models(way)[2].draft(other, 4).tokens
        assert drafter.draft(context, 4).tokens == first
