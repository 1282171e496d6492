"""The sentences of the command line that a reader meets most, each with the command that makes it."""

import pytest

from specviz.cli.main import main

RUN = ["run", "--prompt", "a"]
REFUSED = {
    "k below its range": (
        [*RUN, "--k", "0"],
        "argument --k/--num-speculative-tokens: must be a whole number of at least 1 (got '0')",
    ),
    "k out of range": ([*RUN, "--k", "99"], "k must be a whole number from 1 to 32 (got 99)"),
    "temperature": ([*RUN, "--temperature", "nan"], "temperature must be a number from 0 to 5 (got nan)"),
    "a parameter without a value": ([*RUN, "--param", "x"], "must be given as NAME=VALUE (got 'x')"),
    "a parameter twice": (
        [*RUN, "--method", "prompt_lookup", "--param", "max_ngram=2", "--param", "max_ngram=3"],
        "the parameter max_ngram was given twice",
    ),
    "a method without K": (
        [*RUN, "--method", "lookahead", "--k", "8"],
        "has no K: its draft length is the parameter ahead (use --param ahead=8 instead of --k 8)",
    ),
    "k by two names": (
        [*RUN, "--k", "3", "--num-speculative-tokens", "5"],
        "two names of one number: give one of them (got 3 and 5)",
    ),
    "no such file": (["show", "no-such-file"], "no-such-file cannot be opened (No such file"),
    "nothing to write": (["export", "first-visit"], "name what to write: at least one of --html"),
    "a folder in place of a file": (["export", "first-visit", "--html", "."], "OUT must name a file"),
    "no such folder": (["export", "first-visit", "--html", "no/such/a"], "OUT must be in an existing folder"),
    "two results in one place": (
        ["export", "first-visit", "--html", "-", "--steps", "-"],
        "only one result can go to standard output",
    ),
    "a root path": (
        ["page", "--root-path", "hub"],
        "must be a path such as /user/ann/proxy/7860, or a whole address (got 'hub')",
    ),
    "a Space's name": (["space", "push", "no-owner", "--dry-run", "."], "NAME must be owner/name"),
}


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED.values(), ids=REFUSED)
def test_the_sentence_is_said(capsys, arguments, sentence):
    try:
        status = main(arguments)
    except SystemExit as end:  # argparse
        status = end.code
    assert status == 2
    assert sentence in capsys.readouterr().err
