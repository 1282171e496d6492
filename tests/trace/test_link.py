"""Laws of a link: what is put in comes out, it stays small, and what is no link is refused in words."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zlib
from dataclasses import replace

import pytest

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace.link import MAX_BYTES, MAX_CHARACTERS, Link, decode, digest, encode

PLAIN = Request(prompt="Once upon a time", target="fable-target", draft="fable-draft", seed=5)
EVERY_FIELD = Request(
    prompt='Zwölf "Füchse" 🦊\n<script>alert(1)</script>\u202e',
    chat=True,
    target="Qwen/Qwen2.5-7B-Instruct",
    draft="Qwen/Qwen2.5-0.5B-Instruct",
    method="tree",
    rule="speculative_sampling",
    params={"width": 3, "beam": 0.25, "shape": "even", "also": None, "on": True},
    num_speculative_tokens=32,
    temperature=0.73,
    top_k=1_000,
    top_p=0.01,
    min_p=0.25,
    draft_temperature=0.0,
    draft_top_k=7,
    draft_top_p=0.9,
    draft_min_p=0.0,
    seed=2**53 - 1,
    max_new_tokens=4096,
    stop=("\n\n", "</s>"),
)
LINK = Link(EVERY_FIELD, (41, "last"), 64, digest([5, 7, 11]), (120, 1_000_000), goes_on=True)


def packed(told):
    """The letters of any JSON value, made without the code under test."""
    return spelled(zlib.compress(told if isinstance(told, bytes) else json.dumps(told).encode()))


def spelled(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def content_of(text):
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))


def told(**changes):
    request = {"prompt": "The fox", "target": "fable-target"}
    return {"version": 1, "request": request, "num_tokens": 0, "digest": ""} | changes


@pytest.mark.parametrize("link", [Link(PLAIN), Link(PLAIN, (0, "0"), 1, digest([1])), LINK])
def test_what_is_put_in_comes_out(link):
    assert decode(encode(link)) == link


def test_links_that_were_made_before_places_had_marks_are_read():
    link = decode(packed(told(selection=[3, "1"], num_tokens=2, digest=digest([1, 2]))))
    assert (link.selection, link.mark, link.goes_on) == ((3, "1"), None, False)


def test_a_mark_without_a_place_is_left_out():
    assert "mark" not in content_of(encode(Link(PLAIN, mark=(3, 5))))
    assert decode(packed(told(mark=[3, 5]))).mark is None


def test_an_address_may_hold_it_and_only_what_differs_from_the_defaults_is_in_it():
    text = encode(Link(PLAIN))
    assert text.isascii()
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert set(content_of(text)["request"]) == {"prompt", "target", "draft", "seed"}
    assert len(text) < 250


def test_a_limit_of_one_server_is_no_part_of_a_link(monkeypatch):
    link = Link(replace(PLAIN, time_limit_s=7.0))
    assert "time_limit_s" not in content_of(encode(link))["request"]
    monkeypatch.setenv("SPECVIZ_MAX_SECONDS", "5")
    assert decode(encode(link)).request == PLAIN
    assert decode(packed(told(request={**told()["request"], "time_limit_s": "<b>"}))).request.time_limit_s is None


def test_the_hash_is_of_the_ids_alone_and_tells_every_change():
    ids = [5, 7, 11]
    assert digest(ids) == hashlib.blake2b(b"5,7,11", digest_size=6).hexdigest()
    others = ([5, 7], [5, 7, 11, 0], [57, 11], [5, 711], [7, 5, 11])
    assert len({digest(ids), *map(digest, others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "/srv/models/mine"}, "public name.*'/srv/models/mine'"),
        ({"target": "../mine"}, "public name"),
        ({"draft": "~/mine"}, "public name"),
        ({"draft": "C:\\mine"}, "public name"),
        ({"draft": "a/b/c"}, "public name"),
        ({"params": {"drafts": "fable-draft, /srv/mine"}}, "public name.*'/srv/mine'"),
        ({"prompt_ids": (1, 2)}, "as text"),
    ],
)
def test_a_folder_and_ids_are_in_no_link_in_either_direction(changes, words):
    request = replace(PLAIN, **changes)
    with pytest.raises(SpecvizError, match=words):
        encode(Link(request))
    with pytest.raises(SpecvizError, match=words):
        decode(packed(told(request=request.to_dict())))


@pytest.mark.parametrize("place", [(0, "<b>"), (-1, "0"), (0, "x" * 13)])
def test_a_place_that_cannot_be_read_back_is_not_written(place):
    with pytest.raises(SpecvizError, match="step and a place"):
        encode(Link(PLAIN, place))


def test_a_prompt_that_is_too_long_for_a_link_is_said():
    noise = hashlib.shake_256(b"noise").hexdigest(MAX_CHARACTERS)
    with pytest.raises(SpecvizError, match=r"at most 12,000 characters.*got \d\d,\d\d\d"):
        encode(Link(replace(PLAIN, prompt=noise)))


WHOLE = encode(Link(PLAIN))
DASHED = next(link for seed in range(99) if "-" in (link := encode(Link(replace(PLAIN, seed=seed))))[1:-1])
PASSED_ON = {
    "a full stop": f"{DASHED}.",
    "a bracket and a comma": f"{DASHED}),",
    "a space": f"{DASHED}%20",
    "a line end": f"{DASHED}%0A",
    "a real line end": f" {DASHED}\r\n",
    "typographic quotes": f"{DASHED}\u201d",
    "a dash spelled out": DASHED.replace("-", "%2D"),
    "all letters spelled out": "".join(f"%{ord(letter):02x}" for letter in DASHED),
}


@pytest.mark.parametrize("text", PASSED_ON.values(), ids=PASSED_ON)
def test_what_programs_do_to_an_address_that_they_pass_on_leaves_the_link(text):
    assert decode(text) == decode(DASHED)


REFUSED = {
    "no text": (None, "at most"),
    "a number": (7, "at most"),
    "megabytes": ("A" * 3_000_000, "at most 12,000 characters .got 3,000,000"),
    "nothing": ("", "not whole"),
    "nothing but what is put behind": (")." * 9, "not whole"),
    "something in between": (f"{WHOLE[:9]}.{WHOLE[9:]}", "not whole"),
    "spelled out and too long": ("%41" * 12_000, "not whole"),
    "spelled out and longer": ("%41" * 12_001, "at most 12,000 characters .got 36,003"),
    "markup": ("<script>alert(1)</script>", "not whole"),
    "an impossible length": ("AAAAA", "not whole"),
    "noise": ("abcd" * 20, "not whole"),
    "the end cut off": (WHOLE[:-8], "not whole"),
    "one letter changed": (WHOLE[:60] + ("A" if WHOLE[60] != "A" else "B") + WHOLE[61:], "not whole"),
    "something behind it": (spelled(zlib.compress(json.dumps(told()).encode()) + b"more"), "not whole"),
    "a bomb": (packed(b"0" * (8 * MAX_BYTES)), "unpack to at most"),
    "deep nesting": (packed(b"[" * 500_000), "not whole"),
    "no UTF-8": (packed(b'"\xff"'), "not whole"),
    "not a number": (packed(b'{"version": NaN}'), "not whole"),
    "a huge number": (packed(b'{"version": ' + b"9" * 5000 + b"}"), "not whole"),
    "a list": (packed([1]), "not whole"),
    "another version": (packed(told(version=2)), "version 1 .got 2"),
    "true as its version": (packed(told(version=True)), "version 1 .got True"),
    "no digest": (packed({name: value for name, value in told().items() if name != "digest"}), "lacks .* 'digest'"),
    "something more": (packed(told(run=True)), "does not belong in a link .got 'run'"),
    "no request": (packed(told(request=[])), "no request"),
    "no target": (packed(told(request={"prompt": "a"})), "target"),
    "an unknown field": (packed(told(request={"target": "a", "prompt": "b", "auto": 1})), "no field 'auto'"),
    "a wrong type": (packed(told(request={"target": "a", "prompt": "b", "k": "4"})), "k must be"),
    "out of range": (packed(told(request={"target": "a", "prompt": "b", "temperature": 99})), "temperature must be"),
    "infinite": (packed(b'{"version":1,"request":{"target":"a","prompt":"b","temperature":1e999}}'), "temperature"),
    "half a character": (packed(told(request={"target": "a", "prompt": "\ud800"})), "surrogate"),
    "markup as a name": (packed(told(request={"target": "<img>", "prompt": "b"})), "public name"),
    "a selection of one": (packed(told(selection=[1])), "step and a place"),
    "a selection below 0": (packed(told(selection=[-1, "0"])), "step and a place"),
    "markup as a place": (packed(told(selection=[1, "<b>"])), "step and a place"),
    "a truth as a count": (packed(told(num_tokens=True, digest=digest([1]))), "number of tokens"),
    "a count without a hash": (packed(told(num_tokens=3)), "number of tokens"),
    "a mark of one": (packed(told(selection=[1, "0"], mark=[1])), "two counts"),
    "markup as a mark": (packed(told(selection=[1, "0"], mark=[1, "<b>"])), "two counts"),
    "a mark below 0": (packed(told(selection=[1, "0"], mark=[-1, 5])), "two counts"),
    "the check behind it cut off": (spelled(zlib.compress(json.dumps(told()).encode())[:-1]), "not whole"),
    "markup as a hash": (packed(told(num_tokens=3, digest="<b>")), "number of tokens"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_link_is_refused_in_words(text, words):
    with pytest.raises(SpecvizError, match=words) as refused:
        decode(text)
    assert len(str(refused.value)) < 400


def test_a_link_needs_the_standard_library_and_msgspec_alone():
    program = "import sys; bare = set(sys.modules); import specviz.trace.link; print(*(set(sys.modules) - bare))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) - {"typing_extensions"} == {
        "specviz",
        "msgspec",
    }  # msgspec may load it
