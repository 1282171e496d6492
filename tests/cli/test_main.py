"""The command line: what it prints, what it saves, what it refuses and how it ends."""

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import specviz
from specviz.checks.report import EXIT_CODES
from specviz.cli import bench
from specviz.cli.main import _parser, main, with_command
from specviz.cli.models import overview
from specviz.drafters import METHODS
from specviz.drafters.params import Choice, FloatParam, IntParam, ModelParam
from specviz.models import catalog
from specviz.models.catalog import CatalogHeads
from specviz.rules import RULES
from specviz.session import workbench as session
from specviz.trace import Footer, Trace, load_trace
from specviz.trace.metrics import METRICS
from specviz.views.terminal import escape
from tests.helpers import traces
from tests.helpers.eagle_heads import HIDDEN, eagle3, loaded
from tests.helpers.head_formats import SAMPLES, folder_of
from tests.helpers.runs import PROMPT, Fails
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

ROOT = Path(__file__).parents[2]
ESCAPE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@pytest.fixture(scope="session")  # made again for a later share of this file, they would be "my-target (2)"
def pair(tmp_path_factory):
    """Arguments that name two model folders of one vocabulary."""
    place, tokenizer = tmp_path_factory.mktemp("models"), tiny_tokenizer()
    folders = [
        tiny_folder(place / name, tiny("llama", vocab_size=len(tokenizer), layers=layers, seed=layers), tokenizer)
        for name, layers in (("my-target", 2), ("my-draft", 1))
    ]
    return ["--target", str(folders[0]), "--draft", str(folders[1])]


@pytest.fixture
def saved(tmp_path):
    """Saves a synthetic trace and names its file."""

    def save(name, suffix=".jsonl"):
        traces.ALL[name]().save(tmp_path / f"{name}{suffix}")
        return str(tmp_path / f"{name}{suffix}")

    return save


@pytest.fixture
def cli(capsys):
    """Runs one command in this process: (exit status, standard output, standard error)."""

    def run(*arguments):
        capsys.readouterr()  # what making the models has printed
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            status = end.code
        return status, *capsys.readouterr()

    return run


def shell(*arguments, **options):
    environment = {**os.environ, **options.pop("env", {})}
    command = [sys.executable, "-m", "specviz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, env=environment, **options)


# run


def test_run_prints_every_step_the_text_and_the_numbers(cli, pair):
    status, out, err = cli("run", "--prompt", PROMPT, *pair, "--max-new-tokens", 9, "--seed", 4)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("prompt  The·fox·said")
    assert re.search(r"^target my-target \(\S+ M parameters\)   draft my-draft", out, re.MULTILINE)
    numbered = [int(match[1]) for line in lines if (match := re.match(r" {1,5}(\d+)  \S", line))]
    assert numbered == list(range(1, len(numbered) + 1))
    assert f"\n\n{PROMPT}" in out
    assert all(metric.label in out for metric in METRICS.values())


def test_run_takes_every_setting(cli, pair, tmp_path):
    chosen = {"--k": 2, "--temperature": 0.5, "--top-k": 9, "--top-p": 0.8, "--min-p": 0.1}
    chosen |= {"--draft-min-p": 0.2, "--seed": 3, "--max-new-tokens": 7}
    more = ["--method", "prompt_lookup", "--rule", "speculative_sampling", "--param", "max_ngram=2"]
    arguments = [part for pair_ in chosen.items() for part in pair_]
    assert cli("run", "--prompt", PROMPT, *pair, *arguments, *more, "--out", tmp_path / "a" / "run.jsonl.gz")[0] == 0
    request = load_trace(tmp_path / "a" / "run.jsonl.gz").header.request
    assert {name: request[name[2:].replace("-", "_")] for name in chosen} == chosen
    assert (request["method"], request["rule"], request["params"]["max_ngram"]) == (more[1], more[3], 2)


@pytest.fixture
def switched(tmp_path):
    """A target whose chat template has a switch, and whose file asks for a penalty."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking is false %} at once{% endif %}"
    folder = tiny_folder(tmp_path / "switched", tiny("llama", vocab_size=len(tokenizer)), tokenizer)
    (folder / "generation_config.json").write_text('{"repetition_penalty": 1.3}')
    return folder


def test_run_sets_the_switches_of_the_chat_template(cli, switched, tmp_path):
    asked = ("run", "--prompt", PROMPT, "--target", switched, "--method", "none", "--max-new-tokens", 2)
    assert cli(*asked, "--chat-option", "enable_thinking=false", "--out", tmp_path / "run.jsonl")[0] == 0
    header = load_trace(tmp_path / "run.jsonl").header
    assert header.prompt.text == f"{PROMPT} at once"
    assert (header.request["chat"], header.request["chat_options"]) == (True, {"enable_thinking": False})
    code, _, err = cli(*asked, "--chat-option", "thinking=false")
    assert (code, bool(re.search("'thinking'; .* enable_thinking", err))) == (2, True)
    code, _, err = cli(*asked, "--no-chat", "--chat-option", "enable_thinking=false")
    assert (code, "chat_options" in err) == (2, True)


def test_run_show_and_models_say_what_a_models_file_asks_for(cli, switched, tmp_path, monkeypatch):
    words = "its generation_config.json asks for repetition_penalty 1.3: not applied, only its end tokens are used"
    asked = ("run", "--prompt", PROMPT, "--target", switched, "--method", "none", "--max-new-tokens", 2)
    printed = cli(*asked, "--out", tmp_path / "run.jsonl")[1], cli("show", tmp_path / "run.jsonl")[1]
    assert [f": {words}\n" in each for each in printed] == [True, True]
    snapshot = cached_model(tmp_path / "cache", "someone/asking")
    (snapshot / "generation_config.json").write_text('{"repetition_penalty": 1.3}')
    cached_model(tmp_path / "cache", "someone/silent")
    assert re.findall(r"^  (\S+) +its (.*)$", overview(tmp_path / "cache"), re.MULTILINE) == [
        ("someone/asking", words.removeprefix("its "))
    ]


@pytest.mark.parametrize("names", [("--k",), ("--num-speculative-tokens",), ("--k", "--num-speculative-tokens")])
@pytest.mark.parametrize("command", ["run --prompt x", "align --prompts x --out y", "prove", "bench speed"])
def test_k_is_taken_by_either_of_its_names(command, names):
    given = [part for name in names for part in (name, "3")]
    assert _parser().parse_args([*command.split(), *given]).k in (3, [3])


@pytest.mark.parametrize("command", ["run --prompt x", "align --prompts x --out y", "prove", "bench"])
def test_k_by_two_names_is_one_number(cli, command):
    status, _, err = cli(*command.split(), "--k", 3, "--num-speculative-tokens", 5)
    assert status == 2
    assert re.search(r"\(got \[?3\]? and \[?5\]?\)", err)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["width=3", "least=0.25", "way=up", "who=a"], {"width": 3, "least": 0.25, "way": "up", "who": "a"}),
        (["least=1"], {"least": 1}),
        (["least=2e-3", "width=-1"], {"least": 0.002, "width": -1}),
        (["way=2", "who=1, b=c"], {"way": "2", "who": "1, b=c"}),
        (["least=nan", "width=0x2"], {"least": "nan", "width": "0x2"}),
        (["other=2"], {"other": "2"}),
    ],
)
def test_a_parameter_is_read_as_the_method_takes_it(monkeypatch, texts, values):
    params = (
        IntParam("width", "width", 2, "", 1, 8),
        FloatParam("least", "least", 0.5, "", 0.0, 1.0),
        Choice("way", "way", "up", "", {"up": "up", "2": "two"}),
        ModelParam("who", "who", None, "", "draft"),
    )
    monkeypatch.setitem(METHODS, "made_up", replace(METHODS["none"], name="made_up", params=params))
    assert METHODS["made_up"].read(texts) == values


def test_run_and_show_print_the_same(cli, pair, tmp_path):
    printed = cli("run", "--prompt", PROMPT, *pair, "--max-new-tokens", 9, "--out", tmp_path / "run.jsonl")[1]
    assert printed.replace(f"saved {tmp_path / 'run.jsonl'}\n", "") == cli("show", tmp_path / "run.jsonl")[1]


def test_run_reads_the_prompt_from_standard_input(cli, pair, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Zoë said".encode())))
    assert "prompt  Zoë·said" in cli("run", "--prompt", "-", *pair, "--max-new-tokens", 2)[1]


RUN = ["run", "--prompt", "a"]
LOOKUP = [*RUN, "--method", "prompt_lookup", "--param"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "required: --prompt"),
        ([*RUN, "--k", "0"], "--k/--num-speculative-tokens: .* 1 .got '0'"),
        ([*RUN, "--k", "99"], "k .* 1 to 32 .got 99"),
        ([*RUN, "--temperature", "x"], "--temperature: .*'x'"),
        ([*RUN, "--temperature", "nan"], "temperature .* 0 to 5 .got nan"),
        (["run", "--prompt", ""], "prompt is empty"),
        ([*RUN, "--method", "guess"], "method .* draft_model, prompt_lookup, .*got 'guess'"),
        ([*RUN, "--rule", "any"], "rule .* speculative_sampling, .*got 'any'"),
        ([*RUN, "--param", "x"], "NAME=VALUE .got 'x'"),
        ([*RUN, "--param", "x="], "NAME=VALUE .got 'x='"),
        ([*LOOKUP, "max_ngram=--1"], "max_ngram .* 1 to 16 .got '--1'"),
        ([*LOOKUP, "max_ngram=²"], "max_ngram .* 1 to 16 .got '²'"),
        ([*LOOKUP, "max_ngram=2.5"], "max_ngram .* 1 to 16 .got .2.5"),
        ([*LOOKUP, "max_ngram=" + "9" * 400], "max_ngram .* 1 to 16"),
        ([*LOOKUP, "max_ngram=" + "9" * 5000], "max_ngram .* 500 characters"),
        ([*LOOKUP, "max_ngram=2", "--param", "max_ngram=3"], "max_ngram .*twice"),
        ([*LOOKUP, "max_ngram=2", "--param", "min_ngram=3"], "min_ngram .* max_ngram"),
        ([*RUN, "--method", "lookahead", "--k", "8"], "--param ahead=8 .* --k 8"),
        (["prove", "--method", "lookahead", "--k", "8"], "parameter ahead"),
        ([*RUN, "--param", "x=1"], "draft_model .* 'x'"),
        ([*RUN, "--target", "no/such/place"], "no folder or file 'place'"),
        (["show", "no-such-file"], "no-such-file .*No such file"),
        (["show"], "required: file"),
        (["bench", "--num-tokens", "0"], "--num-tokens: .* 1 .got '0'"),
        (["bench", "--repeats", "-1"], "--repeats: .* 1 .got '-1'"),
        (["dance"], "'dance'"),
        (["--port", "x"], "specviz page: .* --port: .*'x'"),
        (["--port=1", "--draft"], "specviz page: .* --draft: "),
        (["page", "--root-path", "hub"], "/user/ann/proxy/7860, .*got 'hub'"),
    ],
)
def test_bad_arguments_end_with_2_and_say_what_was_got_and_is_allowed(cli, arguments, told):
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert re.search(told, err)
    assert "Traceback" not in err


def test_without_a_command_the_page_opens(cli, monkeypatch):
    monkeypatch.setenv("GRADIO_SERVER_PORT", "x")  # which the page alone reads, when it is started
    status, out, err = cli()
    assert (status, out) == (2, "")
    assert re.search("GRADIO_SERVER_PORT .* 0 to 65535 .got 'x'", err)
    assert cli("page") == (2, "", err)
    assert cli("show", "no-such-file")[2] != err


def test_the_version_is_told(cli):
    assert cli("--version") == (0, f"specviz {specviz.__version__}\n", "")


def subparsers(parser):
    """Name -> parser of each command of this one."""
    return {
        name: command
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, command in action.choices.items()
    }


COMMANDS = ["page", "run", "show", "export", "align", "doctor", "prove", "bench", "models", "space", "get"]
MEASURED = [f"bench {name}" for name in ("speed", "methods", "costs", "waits", "claims", "align", "llama.cpp")]


def test_the_commands_are_those_that_are_tested_below():
    commands = subparsers(_parser())
    assert [*commands] == COMMANDS
    assert [f"bench {name}" for name in subparsers(commands["bench"])] == MEASURED


@pytest.mark.parametrize("command", COMMANDS + MEASURED)
def test_the_help_of_a_command_has_words_for_every_option_examples_that_work_and_exit_codes(cli, command):
    parser = _parser()
    for name in command.split():
        parser = subparsers(parser)[name]
    options = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    assert all(action.help for action in options)
    status, out, _ = cli(*command.split(), "--help")
    assert status == 0
    examples, codes = (part.splitlines() for part in out.split("\nexamples:\n")[1].split("\n\nexit codes:\n"))
    for example in examples:
        words = shlex.split(example.partition("specviz ")[2])
        assert callable(_parser().parse_args(with_command(words)).command)
    assert [int(code.split()[0]) for code in codes] == sorted({0, 2, 130, *VERDICTS.get(command, ())})


VERDICTS = {
    "align": (1, 3), "doctor": (1,), "prove": {*EXIT_CODES.values()} - {0}, "bench": (3,), "bench costs": (3,),
    "models": (1,),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ([], ["speed"]),
        (["--k", "2"], ["speed", "--k", "2"]),
        (["speed", "--k", "2"], ["speed", "--k", "2"]),
        (["costs"], ["costs"]),
        (["--help"], ["--help"]),
        (["dance"], ["dance"]),
    ],
)
def test_bench_measures_speed_where_it_is_not_told_what(words, completed):
    assert bench.with_subcommand(words) == completed


FORMER = {
    "--costs": "costs", "--waits": "waits", "--claims": "claims", "--align": "align", "--methods all": "methods NAME",
    "--against llama.cpp": "llama.cpp", "--context 64": "costs --context N", "--json x": "costs --json OUT, or methods",
}  # fmt: skip


@pytest.mark.parametrize("former", FORMER)
def test_a_former_option_of_bench_names_the_command_that_takes_its_place(cli, former):
    status, out, err = cli("bench", *former.split())
    assert (status, out) == (2, "")
    assert f"argument {former.split()[0]}: belongs to another command: " in err
    assert re.search(rf"specviz bench {re.escape(FORMER[former])}", err)


def test_every_former_option_is_refused_with_words():
    assert {former.split()[0] for former in FORMER} == {*bench.MOVED}


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("bench claims", "--target x"),
        ("bench waits", "--repeats 2"),
        ("bench costs", "--k 2"),
        ("bench align", "--k 2"),
        ("bench methods all", "--context 64"),
        ("bench llama.cpp", "--json x"),
    ],
)
def test_a_subcommand_of_bench_takes_only_options_that_count_for_it(cli, command, option):
    status, _, err = cli(*command.split(), *option.split())
    assert (status, err.splitlines()[-1].partition("error: ")[2]) == (2, f"unrecognized arguments: {option}")


def test_help_names_every_method_and_rule_and_loads_no_torch(cli):
    for command in ("run", "prove"):
        said = " ".join(cli(command, "--help")[1].split())
        assert f"drafting method: {', '.join(METHODS)} (" in said
        assert f"acceptance rule: {', '.join(RULES)} (" in said
    program = "import sys\nfrom specviz.cli.main import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}assert not {{'torch', 'gradio', 'transformers'}} & set(sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_prompts_that_are_no_text_are_refused(cli, pair, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    status, _, err = cli("run", "--prompt", "-", *pair)
    assert status == 2
    assert re.fullmatch("specviz: .*standard input .*UTF-8.*\n", err)


@pytest.fixture
def failing(pair):
    """Makes the target raise an error at its fourth forward."""
    hooks = []

    def fail(error):
        loaded = session.workbench().pool.load(pair[1])
        hooks.append(loaded.model.register_forward_pre_hook(lambda *_: None))
        loaded.cached_lm()  # a model with hooks is proved anew, by forwards that do not count
        hooks.append(loaded.model.register_forward_pre_hook(Fails(4, error)))

    yield fail
    for hook in hooks:
        hook.remove()


def test_what_was_recorded_is_kept_when_a_run_fails(cli, pair, tmp_path, failing):
    failing(RuntimeError("no more"))
    status, out, err = cli("run", "--prompt", PROMPT, *pair, "--out", tmp_path / "run.jsonl")
    assert status == 2
    assert re.fullmatch("specviz: .*my-target .*RuntimeError: no more\n", err)
    assert out.endswith(f"saved {tmp_path / 'run.jsonl'}\n")
    kept = load_trace(tmp_path / "run.jsonl")
    assert (len(kept.steps), kept.footer.reason) == (3, "error")


def test_what_was_recorded_is_kept_when_the_person_interrupts(cli, pair, tmp_path, failing):
    failing(KeyboardInterrupt())
    status, _, err = cli("run", "--prompt", PROMPT, *pair, "--out", tmp_path / "run.jsonl")
    assert (status, err) == (130, "")
    kept = load_trace(tmp_path / "run.jsonl")
    assert (len(kept.steps), kept.footer.reason, kept.footer.message) == (3, "stopped", "interrupted")


def test_a_trace_that_cannot_be_saved_is_said_before_the_run(cli, pair, tmp_path):
    status, out, err = cli("run", "--prompt", PROMPT, *pair, "--max-new-tokens", 2, "--out", tmp_path)
    assert (status, out) == (2, "")
    assert err.endswith(f"(got {str(tmp_path)!r})\n")


# show


@pytest.mark.parametrize("name", traces.ALL)
def test_no_trace_sends_a_control_character_to_the_terminal(cli, saved, name):
    status, out, err = cli("show", saved(name))
    is_cut_off = traces.ALL[name]().footer is None
    assert (status, err != "") == (0, is_cut_off)
    assert ESCAPE.search(out) is None


def test_a_hostile_file_is_refused_without_control_characters(cli, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"event":"header","version":"\\u001b[31m"}', "utf-8")
    status, _, err = cli("show", tmp_path / "bad.jsonl")
    assert status == 2
    assert err.startswith("specviz: line 1: header.version")
    assert ESCAPE.search(err) is None


def test_errors_of_a_model_are_neutral_too(cli, pair, failing):
    failing(RuntimeError("\x1b[31mred"))
    status, out, err = cli("run", "--prompt", PROMPT, *pair)
    assert status == 2
    assert err.endswith("RuntimeError: \\x1b[31mred\n")
    assert ESCAPE.search(out) is None


def test_messages_in_a_trace_are_neutral_too(cli, tmp_path):
    events = [event for event in traces.chain().events() if not isinstance(event, Footer)]
    Trace([*events, Footer("error", "\x1b]0;owned\x07", None)]).save(tmp_path / "run.jsonl")
    out = cli("show", tmp_path / "run.jsonl")[1]
    assert ESCAPE.search(out) is None
    assert escape("\x1b]0;owned\x07") in out


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("environment", "wanted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(saved, monkeypatch, environment, wanted):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["show", saved("chain")]) == 0
    assert ("\x1b[" in terminal.getvalue()) == wanted


def test_a_file_gets_no_colours(cli, saved):
    assert "\x1b" not in cli("show", saved("chain"))[1]


def test_the_module_runs_from_the_shell(cli, saved):
    file = saved("chain", ".jsonl.gz")
    done = shell("show", file)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("utf-8").replace("\r\n", "\n") == cli("show", file)[1]


def test_a_terminal_of_few_characters_shows_the_others_by_number(saved):
    done = shell("show", saved("hostile"), env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u21aa" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(saved):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "specviz", "show", saved("chain")]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


# models, bench


@pytest.fixture
def assets(tmp_path, monkeypatch):
    """An assets folder with two of the three bundled models and three prompts of each of three kinds."""
    tokenizer = tiny_tokenizer()
    for name, layers in (("fable-target", 2), ("fable-draft", 1)):
        tiny_folder(tmp_path / "models" / name, tiny("llama", vocab_size=len(tokenizer), layers=layers), tokenizer)
    (tmp_path / "prompts").symlink_to(ROOT / "assets" / "prompts")
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path))
    return tmp_path


def test_models_lists_what_is_here_and_what_fits(assets, tmp_path):
    empty = tmp_path / "cache"
    empty.mkdir()
    bundled, cached, fits, heads = overview(empty).split("\n\n")
    assert re.search(r"^  fable-target +0\.0 M parameters$", bundled, re.MULTILINE)
    assert re.search(r"^  fable-draft-tiny +not on this machine$", bundled, re.MULTILINE)
    assert cached == "In the Hugging Face cache\n  none"
    assert re.search(r"^  fable-medusa +medusa, for fable-target \(not on this machine\)$", heads, re.MULTILINE)
    first, second = fits.splitlines()[1:3]
    assert re.fullmatch(r"  fable-target +fable-draft \(same vocabulary\)", first)
    assert re.fullmatch(r" +fable-draft-tiny \(not on this machine\)", second)


def cached_model(cache, name, **options):
    """A model in the layout of the hub's cache."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    tokenizer = tiny_tokenizer(seed=options.pop("tokenizer", 0))
    tiny_folder(snapshot, tiny(options.pop("family", "gpt2"), vocab_size=len(tokenizer), **options), tokenizer)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40, "ascii")
    return snapshot


def test_models_checks_tokenizers_of_cached_models(assets, tmp_path):
    cache = tmp_path / "cache"
    cached_model(cache, "openai-community/gpt2")
    cached_model(cache, "distilbert/distilgpt2", tokenizer=2)
    cached_model(cache, "someone/ssm", family="rwkv")
    _, cached, fits, _ = overview(cache).split("\n\n")
    assert re.search(r"^  someone/ssm +unusable: someone/ssm .rwkv. keeps a state outside", cached, re.MULTILINE)
    assert re.search(r"^  openai-community/gpt2 +distilbert/distilgpt2 \(different vocabulary\)", fits, re.MULTILINE)
    assert "openai-community/gpt2 (its target is not on this machine)" in fits


def test_models_says_what_is_damaged(assets, tmp_path):
    cache = tmp_path / "cache"
    (cached_model(cache, "openai-community/gpt2") / "model.safetensors").write_bytes(b"damaged")
    (cached_model(cache, "distilbert/distilgpt2") / "tokenizer.json").write_text("{", "utf-8")
    _, cached, fits, _ = overview(cache).split("\n\n")
    assert re.search(r"openai-community/gpt2 +unusable: .* damaged or incomplete", cached)
    assert "distilbert/distilgpt2 (unusable)" in fits


def test_models_says_how_large_bundled_heads_are(assets, tmp_path):
    folder = tmp_path / "models" / "fable-medusa"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(1_200_000))
    (tmp_path / "models" / "fable-eagle").mkdir()
    heads = overview(tmp_path / "cache").split("\n\n")[3]
    assert re.search(r"^  fable-medusa +medusa, for fable-target, 1\.2 MB$", heads, re.MULTILINE)
    assert re.search(r"^  fable-eagle +eagle, for fable-target \(unusable: .* no weights", heads, re.MULTILINE)


def test_heads_in_the_cache_are_no_models(assets, tmp_path, monkeypatch):
    heads = CatalogHeads("someone/heads", "Heads", "medusa", "fable-target")
    monkeypatch.setitem(catalog.HEADS, heads.name, heads)
    cached_model(tmp_path / "cache", heads.name)
    _, cached, _, listed = overview(tmp_path / "cache").split("\n\n")
    assert cached.endswith("none")
    assert re.search(r"^  someone/heads +medusa, for fable-target, \d", listed, re.MULTILINE)


def test_models_reports_how_heads_load(cli):
    status, out, err = cli("models", "--heads", "fable-medusa")
    assert (status, err) == (0, "")
    kind, read, *_ = out.splitlines()
    assert re.search("^fable-medusa .* medusa .* fable-target$", kind)
    assert re.search(" 1 of .* fable-target, .* 1 to 12$", read)
    assert "\n  0.1.weight\n" in out
    assert out.endswith(": none\n")


def test_models_names_the_states_that_heads_read(cli, tmp_path):
    model = tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN)
    target = tiny_folder(tmp_path / "target", model, tiny_tokenizer(320))
    config, state = eagle3(loaded(model), [1, 2, 5])
    named = {"eagle_aux_hidden_state_layer_ids": [0, 6, 8]}
    status, out, err = cli("models", "--heads", folder_of(tmp_path / "head", config | named, state), "--target", target)
    assert (status, err) == (0, "")
    assert out.splitlines()[1:5] == [
        "read: 3 of the states of target, whose layers are 1 to 8",
        "  the embeddings",
        "  behind layer 6",
        "  behind layer 8, before the final norm",
    ]


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("EAGLE-3", {"hidden_act": "gelu"}, "silu"),
        ("Gemma 4's assistant", {}, r"of a target of the kind gemma4_text \(got llama\)"),
        ("DFlash, Open Spec Config", {"speculative_config": {"method": "eagle9"}}, "a head in the Open Spec Config"),
    ],
)
def test_heads_whose_files_tell_their_kind_are_refused_once(cli, tmp_path, name, change, told):
    model = tiny("llama", vocab_size=320, layers=8, hidden=HIDDEN)
    target = tiny_folder(tmp_path / "target", model, tiny_tokenizer(320))
    config, state = SAMPLES[name](loaded(model))
    status, out, err = cli("models", "--heads", folder_of(tmp_path / "h", config | change, state), "--target", target)
    assert (status, out) == (2, "")
    assert re.fullmatch(f"specviz: h .* target: .*{told}.*\n", err)
    assert err.count("cannot draft") == 1


def test_heads_of_an_unknown_kind_are_refused_for_every_kind(cli, pair, tmp_path):
    (tmp_path / "config.json").write_text("{}", "utf-8")
    save_file({"\x1b[31m": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    status, out, err = cli("models", "--heads", tmp_path, *pair[:2])
    assert (status, out) == (2, "")
    assert "as medusa heads: " in err
    assert ESCAPE.search(err) is None


def test_models_prints_the_overview(cli, assets, tmp_path, monkeypatch):
    status, out, err = cli("models")
    assert (status, err) == (0, "")
    assert out == overview() + "\n"


@pytest.mark.slow
def test_bench_measures_four_contenders_at_two_temperatures(cli, assets):
    status, out, err = cli("bench", "--k", 2, "--num-tokens", 4, "--repeats", 1)
    assert (status, err) == (0, "")
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith(("| 0", "| 1"))]
    names = ["generate", "generate, assistant_model", "specviz, draft_model", "specviz, none"]
    assert [row[1] for row in rows] == names * 2
    assert [row[0] for row in rows] == ["| 0"] * 4 + ["| 1"] * 4
    assert all(row[6] == "1.00x" for row in rows if row[1] == "specviz, none")


@pytest.mark.slow
def test_bench_compares_several_k_with_no_draft(cli, assets):
    status, out, err = cli("bench", "--k", 1, 3, "--num-tokens", 6, "--repeats", 1)
    assert (status, err) == (0, "")
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith(("| 0", "| 1"))]
    assert [row[1] for row in rows] == [
        "specviz, draft_model, K = 1",
        "specviz, draft_model, K = 3",
        "specviz, none",
    ] * 2
    assert all(row[7] == "-" for row in rows)


@pytest.mark.parametrize("num_tokens", [3, 10_000])
def test_bench_refuses_lengths_that_it_cannot_measure(cli, assets, num_tokens):
    status, out, err = cli("bench", "--k", 2, "--num-tokens", num_tokens)
    assert (status, out) == (2, "")
    assert re.search(f"num_tokens .* 3\\b.*got {num_tokens}", err)


def test_bench_refuses_a_pair_that_does_not_fit(cli, assets, tmp_path):
    tokenizer = tiny_tokenizer(seed=2)
    other = tiny_folder(tmp_path / "other", tiny("llama", vocab_size=len(tokenizer)), tokenizer)
    status, _, err = cli("bench", "--draft", other)
    assert status == 2
    assert re.search("other .* fable-target: .*vocabularies", err)


def test_models_checks_a_pair_and_says_so_by_its_status(cli, tmp_path):
    names = []
    for name, seed in (("a", 0), ("b", 0), ("c", 2)):
        tokenizer = tiny_tokenizer(seed=seed)
        names.append(str(tiny_folder(tmp_path / name, tiny("llama", vocab_size=len(tokenizer)), tokenizer)))
    status, out, err = cli("models", "--check", names[0], names[1])
    assert (status, out.splitlines()[0], err) == (0, "b can draft for a directly", "")
    status, out, err = cli("models", "--check", names[0], names[2])
    assert (status, out.splitlines()[0], err) == (1, "c cannot draft for a directly", "")
    assert cli("models", "--check", names[0], "no/such/model")[0] == 2


def test_a_stop_text_ends_the_printed_answer_and_the_draft_has_its_own_temperature(capsys, tmp_path):
    file, prompt = tmp_path / "run.jsonl", ["run", "--prompt", "Once upon a time", "--temperature", "0"]
    assert main([*prompt, "--stop", "\\n", "--stop", ".", "--draft-temperature", "0.7", "--out", str(file)]) == 0
    made, said = load_trace(file), capsys.readouterr().out
    assert made.header.request["stop"] == ["\n", "."]
    assert made.steps[0].settings.draft_temperature == 0.7
    assert "ended   stop: " in said
    assert f"\nOnce upon a time{made.answer}\n" in said
    assert made.answer == made.text[: made.footer.stop["at"]] != made.text
