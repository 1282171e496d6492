"""The tokenizer doctor: counts against the vocabularies themselves, words for what differs, check_pair's verdict."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from specviz.alignment.causes.chat_forms import chat_difference
from specviz.alignment.causes.doctor import MOST_IDS, examine
from specviz.cli.main import main
from specviz.cli.models import diagnosis_text
from specviz.errors import SpecvizError
from specviz.models.catalog import resolve
from specviz.models.pool import check_pair
from tests.helpers.tiny_models import CHAT_TEMPLATE, EOS, tiny, tiny_folder, tiny_tokenizer


@pytest.fixture
def saved(tmp_path):
    """Writes a tokenizer with a configuration, and a weight file that nobody could read; returns the folder's name."""

    def write(tokenizer, name, **config):
        values = {"vocab_size": tokenizer_size(tokenizer), "eos_token_id": tokenizer.eos_token_id} | config
        folder = tiny_folder(tmp_path / name, tiny("llama", layers=1, hidden=8, **values), tokenizer)
        (folder / "model.safetensors").write_bytes(b"damaged")
        return str(folder)

    return write


def tokenizer_size(tokenizer):
    return 1 + max(tokenizer.get_vocab().values())


def without(tokenizer, ids):
    """The same tokenizer without these ids, without what is merged from them and without its end token."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = {piece: token for piece, token in state["model"]["vocab"].items() if token not in ids}
    merges = [(a, b) for a, b in state["model"]["merges"] if {a, b, a + b} <= kept.keys()]
    state["model"] |= {"vocab": kept, "merges": merges}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state | {"added_tokens": []})))


def with_template(template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def counted(ours, theirs, special):
    """The counts from the pieces themselves: in a byte-level vocabulary they are the bytes under other names."""
    a, b = ({token: piece for piece, token in vocabulary.items()} for vocabulary in (ours, theirs))
    ordinary = [{piece for piece in vocabulary if piece not in special} for vocabulary in (ours, theirs)]
    differ = [token for token in a if token in b and a[token] != b[token]]
    both_special = [token for token in differ if a[token] in special and b[token] in special]
    return {
        "num_same": sum(a[token] == b.get(token) for token in a),
        "num_differing": len(differ) - len(both_special),
        "num_other_special": len(both_special),
        "num_only_target": len(a.keys() - b.keys()),
        "num_only_draft": len(b.keys() - a.keys()),
        "num_common_texts": len(ordinary[0] & ordinary[1]),
        "num_target_texts": len(ordinary[0]),
        "num_draft_texts": len(ordinary[1]),
    }


OTHERS = {
    "same": tiny_tokenizer,
    "swapped": lambda: tiny_tokenizer(swap=(260, 300)),
    "larger": lambda: tiny_tokenizer(vocab_size=340),
    "other": lambda: tiny_tokenizer(seed=2),
    "cut": lambda: without(tiny_tokenizer(), range(300, 320)),
    "gap": lambda: without(tiny_tokenizer(), range(305, 308)),
}


@pytest.mark.parametrize("draft", OTHERS)
@pytest.mark.parametrize("target", ["same", "larger", "gap"])
def test_counts_are_those_of_the_vocabularies(saved, target, draft):
    pair = OTHERS[target](), OTHERS[draft]()
    diagnosis = examine(*map(saved, pair, ("a", "b")))
    expected = counted(*(tokenizer.get_vocab() for tokenizer in pair), special={EOS})
    assert {field: getattr(diagnosis, field) for field in expected} == expected
    assert (diagnosis.target.num_ids, diagnosis.draft.num_ids) == tuple(map(tokenizer_size, pair))


@pytest.mark.parametrize(
    ("name", "is_direct"), [("same", True), ("swapped", False), ("larger", False), ("other", False), ("cut", True)]
)
def test_the_verdict_is_that_of_check_pair(pool, name, is_direct):
    tokenizers = tiny_tokenizer(), OTHERS[name]()
    models = (tiny("llama", vocab_size=tokenizer_size(item), layers=1, hidden=8) for item in tokenizers)
    target, draft = (pool.load(pair) for pair in zip(models, tokenizers, strict=True))
    assert examine(target, draft).is_direct == is_direct
    try:
        check_pair(target, draft)
    except SpecvizError:
        assert not is_direct
    else:
        assert is_direct


def test_a_swap_is_named_by_both_labels(saved):
    first, second = tiny_tokenizer().convert_ids_to_tokens([260, 300])
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(OTHERS["swapped"](), "b"))
    spelled = [piece.replace("Ġ", "␣").replace("Ċ", "⏎") for piece in (first, second)]
    found = [(target.id, target.label, draft.label) for target, draft in diagnosis.differing]
    assert found == [(260, *spelled), (300, *reversed(spelled))]


def test_only_the_first_differing_ids_are_kept(saved):
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(OTHERS["other"](), "b"))
    assert len(diagnosis.differing) == 10 < diagnosis.num_differing
    assert f"and {diagnosis.num_differing - 10:,} more" in diagnosis_text(diagnosis)


def test_padding_is_counted_and_harmless(saved):
    tokenizer = tiny_tokenizer()
    padded = len(tokenizer) + 8
    diagnosis = examine(
        saved(tokenizer, "a", vocab_size=padded, eos_token_id=len(tokenizer) - 1), saved(tokenizer, "b")
    )
    assert diagnosis.is_direct
    assert (diagnosis.target.table, diagnosis.target.num_ids, diagnosis.draft.table) == (padded, padded - 8, padded - 8)
    assert "a table of 328 (8 padding)" in diagnosis_text(diagnosis)
    assert diagnosis.notes == ()


def test_a_table_that_ends_early_and_a_short_context_are_noted(saved):
    tokenizer = tiny_tokenizer()
    draft = saved(tokenizer, "b", vocab_size=300, eos_token_id=None, max_position_embeddings=128)
    first, second = examine(saved(tokenizer, "a"), draft).notes
    assert re.search(r"\b128 tokens .* 256\b", first)
    assert " 20 ids " in second
    assert examine(draft, saved(tokenizer, "a")).notes == ()


def test_a_folder_and_its_loaded_model_are_one(pool, tmp_path):
    tokenizer = tiny_tokenizer(chat=True)
    model = tiny("llama", vocab_size=len(tokenizer), eos_token_id=[7, 9])
    folders = [str(tiny_folder(tmp_path / name, model, tokenizer)) for name in ("a", "b")]
    diagnosis = examine(*folders)
    assert diagnosis == examine(*map(pool.load, folders))
    assert [item.id for item in _special(diagnosis, "end").target] == [7, 9, len(tokenizer) - 1]


def test_generation_settings_say_first_what_ends_a_text(saved, tmp_path):
    name = saved(tiny_tokenizer(), "a", eos_token_id=5)
    (tmp_path / "a" / "generation_config.json").write_text('{"eos_token_id": 6}')
    assert [item.id for item in _special(examine(name, name), "end").target] == [6, 319]


def test_damaged_generation_settings_leave_those_of_the_configuration(saved, tmp_path):
    tokenizer = tiny_tokenizer()
    name = saved(tokenizer, "a", eos_token_id=5)
    for damaged in ("{", "[]", '{"eos_token_id": null}'):
        (tmp_path / "a" / "generation_config.json").write_text(damaged)
        assert [item.id for item in _special(examine(name, name), "end").target] == [5, len(tokenizer) - 1]


# ---- special tokens -------------------------------------------------------------------------------------------------


def _special(diagnosis, kind):
    (found,) = [special for special in diagnosis.special if special.kind == kind]
    return found


def test_the_same_special_tokens_do_not_differ(saved):
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(tiny_tokenizer(), "b"))
    assert [special.differs for special in diagnosis.special] == [False] * 5
    assert f"{EOS} (id 319), the same" in diagnosis_text(diagnosis)


def test_another_end_token_matters(saved):
    target, draft = saved(tiny_tokenizer(), "a"), saved(tiny_tokenizer(), "b", eos_token_id=300)
    end = _special(examine(target, draft), "end")
    assert (end.differs, end.matters) == (True, True)
    assert [item.id for item in end.draft] == [300, 319]


def test_the_same_end_token_under_another_id_does_not_matter(saved):
    end = _special(examine(saved(tiny_tokenizer(), "a"), saved(OTHERS["larger"](), "b")), "end")
    assert (end.differs, end.matters) == (True, False)


def test_a_start_token_that_only_one_tokenizer_adds_matters(saved):
    starting = tiny_tokenizer()
    starting.backend_tokenizer.post_processor = processors.TemplateProcessing(f"{EOS} $A", None, [(EOS, 319)])
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(starting, "b"))
    before = _special(diagnosis, "before a text")
    assert (before.target, [item.id for item in before.draft], before.matters) == ((), [319], True)
    assert diagnosis.is_direct


def test_other_padding_does_not_matter(saved):
    padding = tiny_tokenizer()
    padding.pad_token = EOS
    pad = _special(examine(saved(tiny_tokenizer(), "a"), saved(padding, "b")), "padding (pad)")
    assert (pad.differs, pad.matters) == (True, False)


# ---- chat forms -----------------------------------------------------------------------------------------------------

NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHAT_TEMPLATE
LAST_ONLY = "{% set messages = messages[-1:] %}" + CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("target", "draft"),
    [(None, None), (CHAT_TEMPLATE, CHAT_TEMPLATE), (CHAT_TEMPLATE, "{# said otherwise #}" + CHAT_TEMPLATE)],
)
def test_templates_that_render_alike_do_not_differ(target, draft):
    assert chat_difference(with_template(target), with_template(draft)) is None


@pytest.mark.parametrize(
    ("target", "draft", "told"),
    [
        (CHAT_TEMPLATE, None, "target .* draft has none"),
        (None, CHAT_TEMPLATE, "draft .* target has none"),
        (
            CHAT_TEMPLATE,
            CHAT_TEMPLATE.replace("<|assistant|>", "<|model|>"),
            r'two\?⏎<\|" .*"assistant\|>", .*"model\|>"',
        ),
        (CHAT_TEMPLATE, "[INST]" + CHAT_TEMPLATE, r'"<\|user\|>What is two and␣", .*"\[INST\]<\|user\|>What is tw"'),
        (CHAT_TEMPLATE, CHAT_TEMPLATE + "Answer:", r'"o and two\?⏎<\|assistant\|>" .*nothing, .*"Answer:"'),
        (CHAT_TEMPLATE, NO_SYSTEM, "a system message .*: the draft's"),
        (NO_SYSTEM, CHAT_TEMPLATE, "a system message .*: the target's"),
        (LAST_ONLY, NO_SYSTEM.replace("messages %}", "messages[-1:] %}"), "a system message"),
        (CHAT_TEMPLATE, "{% for %}", "one question: the draft's"),
    ],
)
def test_the_first_difference_of_two_templates_is_told(target, draft, told):
    assert re.search(told, chat_difference(with_template(target), with_template(draft)))


def test_a_template_that_forgets_the_dialogue_is_found_by_the_third():
    forgets = CHAT_TEMPLATE.replace("in messages", "in messages if message.role != 'assistant'")
    assert chat_difference(with_template(CHAT_TEMPLATE), with_template(forgets)).startswith("a question, an answer and")


def test_both_refusing_is_alike():
    other = NO_SYSTEM.replace("'no'", "'never'")
    assert chat_difference(with_template(NO_SYSTEM), with_template(other)) is None


@pytest.mark.parametrize(
    ("templates", "words"),
    [
        ((None, None), "neither model has a chat template"),
        ((CHAT_TEMPLATE, CHAT_TEMPLATE), "the same template"),
        ((CHAT_TEMPLATE, "{##}" + CHAT_TEMPLATE), "two templates that render three dialogues alike"),
        ((CHAT_TEMPLATE, None), "differs: the target has a chat template"),
    ],
)
def test_the_report_says_how_the_chat_forms_compare(saved, templates, words):
    names = [saved(with_template(template), f"m{place}") for place, template in enumerate(templates)]
    assert f"Chat format\n  {words}" in diagnosis_text(examine(*names))


# ---- verdict and report ---------------------------------------------------------------------------------------------


def test_each_way_that_is_possible_is_named_with_what_runs_it(saved, capsys):
    target, draft = saved(tiny_tokenizer(), "a"), saved(OTHERS["swapped"](), "b")
    for name in (target, draft):  # with weights that can be read
        tokenizer = AutoTokenizer.from_pretrained(name)
        tiny_folder(Path(name), tiny("llama", layers=1, hidden=8, vocab_size=tokenizer_size(tokenizer)), tokenizer)
    diagnosis = examine(target, draft)
    assert {way.name: way.works for way in diagnosis.ways} == {
        "direct": False,
        "re-encoding": True,
        "shared vocabulary": True,
    }
    for way in diagnosis.ways[1:]:
        assert f"\n  possible: {way.name}, with {way.command}\n" in diagnosis_text(diagnosis)
        asked = ["run", "--prompt", "Once upon", "--target", target, "--draft", draft, "--max-new-tokens", "4"]
        assert main([*asked, *way.command.split()]) == 0
    assert "cannot draft for" not in capsys.readouterr().err


def test_the_direct_way_is_a_method(saved):
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(tiny_tokenizer(), "b"))
    direct, *others = diagnosis_text(diagnosis).split("Ways to draft\n")[1].splitlines()
    assert " yes: " in direct
    assert all(" not needed: " in way for way in others)
    assert diagnosis_text(diagnosis).startswith("b can draft for a directly\n\nIds\n")


def test_a_context_that_longrope_cuts_short_is_told(saved):
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0], "rope_theta": 1e4}
    rope["original_max_position_embeddings"] = 40
    names = saved(tiny_tokenizer(), "a", rope_parameters=rope), saved(tiny_tokenizer(), "b")
    diagnosis = examine(*names)
    assert diagnosis.target.context_limit == 40
    assert re.search("note: a: .* 40 tokens .*LongRoPE", diagnosis_text(diagnosis))


def test_nothing_in_the_report_steers_a_terminal(saved):
    diagnosis = examine(saved(tiny_tokenizer(), "a"), saved(OTHERS["other"](), "b"))
    rude = replace(diagnosis, target=replace(diagnosis.target, name="a\x1b[2J\n\u202e"))
    assert all(char.isprintable() or char in "\n\u00a0" for char in diagnosis_text(rude))
    assert diagnosis_text(rude).count("\n") == diagnosis_text(diagnosis).count("\n")


def test_an_unknown_model_is_refused_in_words(saved):
    with pytest.raises(SpecvizError, match="hub id"):
        examine(saved(tiny_tokenizer(), "a"), "no/such/folder")


def test_a_vocabulary_that_claims_too_much_is_refused(saved):
    core = Tokenizer(models.WordLevel({"a": 0, "b": MOST_IDS}, unk_token="a"))
    huge = saved(PreTrainedTokenizerFast(tokenizer_object=core), "huge", vocab_size=16)
    with pytest.raises(SpecvizError, match=r"huge .* 4,000,001; .* 4,000,000"):
        examine(saved(tiny_tokenizer(), "a"), huge)


def test_the_bundled_draft_of_another_vocabulary():
    place = resolve("fable-target").parent / "fable-draft-othervocab"
    ours, theirs = (
        json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
        for folder in (resolve("fable-target"), place)
    )
    diagnosis = examine("fable-target", str(place))
    expected = counted(ours, theirs, special={"<|endoftext|>"})
    assert {field: getattr(diagnosis, field) for field in expected} == expected
    assert not diagnosis.is_direct
    assert examine("fable-target", "fable-draft").is_direct
