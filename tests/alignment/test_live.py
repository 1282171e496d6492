"""Many prompts on the Compare page, over tiny models: what is asked, how far it is, what is found, what is refused."""

import json

import pytest

from specviz.alignment.report.live import MOST_CHARACTERS, MOST_PROMPTS, many_prompts
from specviz.errors import SpecvizError
from specviz.prompts import prompts_file
from specviz.session import workbench as session
from specviz.views.blocks import WordsBlock
from tests.helpers import tiny_server
from tests.helpers.one_file import unpacked
from tests.helpers.visits import Visit, made

SECTION = "many-prompts"
VALUES = {"drafts": "models", "prompts": "own", "own": "One day\n\n  a fox \nran", "tokens": "8"}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture
def visit(pool, monkeypatch):
    """A browser before the page, whose library is that of the process, as when the page is served."""

    def visit(trace=None):
        new = Visit(pool, trace)
        monkeypatch.setattr(session, "_shared", [new.bench])
        return new

    return visit


def pressed(visit, **changes):
    """All that the page was told while it worked, section by section."""
    data = {"section": SECTION, "do": "analyse", "values": {**VALUES, **changes}, "place": {"run": visit.run}}
    messages = [json.loads(message) for message in visit.pages["compare"].act("one", data)]
    return [section for message in messages for section in message["sections"] if section["id"] == SECTION]


def kinds(section):
    return [block["kind"] for block in section["blocks"]]


def summary_of(section):
    (saved,) = [block for block in section["blocks"] if block["kind"] == "download"]
    return json.loads(saved["text"])


def test_before_it_is_asked_the_section_says_so(visit):
    section = visit().look("compare")[SECTION]
    assert kinds(section) == ["words", "example"]
    assert [control["kind"] for control in section["controls"]] == ["choice", "choice", "lines", "button"]
    titles = [words for words, _ in section["controls"][1]["options"]]
    assert titles[1:-1] == [kind["title"] for kind in prompts_file()["kinds"]]


def test_own_prompts_are_analysed_with_the_settings_of_the_page(visit):
    shown = pressed(visit())
    widths = [section["blocks"][0]["width"] for section in shown[:-2] if kinds(section)[0] == "progress"]
    assert widths == sorted(widths)
    assert widths[-1] == 100.0
    summary = summary_of(shown[-1])
    assert (summary["num_prompts"], summary["target"], summary["max_new_tokens"]) == (3, "tiny-target", 8)
    assert shown[-1]["blocks"][0]["words"] == "3 own prompts."
    assert [draft["name"] for draft in summary["drafts"]] == ["tiny-draft"]
    folds = {block["title"]: block["blocks"] for block in shown[-1]["blocks"] if block["kind"] == "details"}
    (texts,) = [block for block in folds["Texts, token by token"] if block["kind"] == "texts"]
    prompts = [unpacked(chunk)["words"][0] for chunk in texts["chunks"]]
    assert len(texts["entries"]) == 3
    assert prompts[0].endswith("One day")


def test_the_settings_are_those_of_the_run_that_is_looked_at(visit, pool):
    trace = made(pool, num_speculative_tokens=3, temperature=0.5, top_p=0.9)
    summary = summary_of(pressed(visit(trace))[-1])
    assert summary["k"] == 3
    assert summary["sampling"]["temperature"] == 0.5
    assert summary["sampling"]["top_p"] == 0.9


def test_costs_that_were_measured_above_give_a_speedup(visit, pool):
    new = visit(made(pool))
    assert summary_of(pressed(new)[-1])["costs"] == {}
    new.press("compare", "costs", "measure", {"context_length": "16"})
    assert list(summary_of(pressed(new)[-1])["costs"]) == ["tiny-draft"]


def test_a_kind_of_ready_prompts_is_asked_and_its_name_is_the_tag(visit):
    (kind,) = [kind for kind in prompts_file()["kinds"] if kind["name"] == "code"]
    last = pressed(visit(), prompts="code")[-1]
    summary = summary_of(last)
    assert last["blocks"][0]["words"] == f"{len(kind['prompts'])} ready prompts: {kind['title']}."
    assert summary["num_prompts"] == len(kind["prompts"])
    assert {each["value"] for each in summary["slices"] if each["kind"] == "tag"} == {"code"}


def test_the_result_stays_when_the_page_is_opened_again(visit):
    new = visit()
    last = pressed(new)[-1]
    assert new.look("compare")[SECTION] == last


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own": " \n "}, "write at least one prompt"),
        (
            {"own": "x\n" * (MOST_PROMPTS + 1)},
            rf"at most {MOST_PROMPTS} .*got {MOST_PROMPTS + 1} and .*specviz align for more",
        ),
        ({"own": "x" * (MOST_CHARACTERS + 1)}, r"and 50,000 characters .got 1 and 50,001"),
        ({"own": "\U0001f600" * (MOST_CHARACTERS // 2 + 1)}, r"and 50,000 characters .got 1 and 50,002"),
        ({"prompts": "nothing"}, "prompts must be one of"),
        ({"drafts": "nobody"}, "drafts must be one of models, heads, both"),
        ({"drafts": "heads"}, "no draft heads for tiny-target are known"),
        ({"tokens": "4"}, "tokens must be a whole number"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(visit, changes, words):
    with pytest.raises(SpecvizError, match=words):
        pressed(visit(), **changes)


def test_the_page_can_stop_the_work(visit):
    new = visit()
    data = {"section": SECTION, "do": "analyse", "values": {**VALUES, "prompts": "every"}, "place": {"run": None}}
    work = new.pages["compare"].act("one", data)
    next(work)
    new.pages["compare"].halt("one")
    *_, last = work
    assert "table" not in [block["kind"] for each in json.loads(last)["sections"] for block in each["blocks"]]


def test_the_command_for_more_names_no_folder_by_its_base_name(visit):
    """Typed again, the name alone would find another model or none."""
    assert "align --target FOLDER --draft FOLDER" in json.dumps(pressed(visit())[-1])


def test_a_result_stays_while_the_next_one_is_made(visit):
    new = visit()
    first = pressed(new)[-1]
    again = pressed(new, own="another one")
    assert kinds(again[0]) == ["progress", *kinds(first)]
    assert again[0]["blocks"][1:] == first["blocks"]
    assert again[-1]["blocks"][0]["words"] == "1 own prompt."


def test_progress_and_nothing_yet():
    section = many_prompts([("Story", "story")], progress=(3, 12, "reading the texts: 3 of 12 prompts"))
    (bar,) = section.blocks
    assert bar.width == 25.0
    (words,) = many_prompts([]).blocks
    assert isinstance(words, WordsBlock)
