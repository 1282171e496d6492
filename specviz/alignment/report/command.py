"""A command for a job such as the summary's."""

from specviz.alignment.summary import NEW_TOKENS, Summary
from specviz.drafters import split_draft
from specviz.models.catalog import is_known
from specviz.request import DEFAULT_K, Request, spell_options
from specviz.views.words import label


def command_of(summary: Summary) -> str:
    """The command, on one line. FOLDER, URL, STATES, FILE and DIR stand for what the summary does not know.

    Limits are left out.
    """
    names = [summary.target, *(draft.name for draft in summary.drafts)]
    target, *drafts = ["URL" if summary.is_remote else _findable(name) for name in names]
    words = ["python -m specviz align", f"--target {target}"]
    words += [f"--draft {draft}" for draft in drafts]
    layers = ",".join(map(str, summary.state_layers))
    if layers:
        words.append(f"--states STATES --state-layers {layers}")
    if summary.prompt_file or not layers:
        words.append(f"--prompts {label(summary.prompt_file) or 'FILE.jsonl'}")
    if summary.as_served is not None:
        words.append("--served FILE")
    words.append("--out DIR")
    usual = {"temperature": 1.0, **Request.FILTERS}
    for name, value in summary.sampling.items():
        if value != usual.get(name):
            words.append(f"--{name.replace('_', '-')} {value:g}")
    numbers = {
        "--k": (summary.k, DEFAULT_K),
        "--seed": (summary.seed, 0),
        "--max-new-tokens": (summary.max_new_tokens, NEW_TOKENS),
    }
    words += [f"{name} {value}" for name, (value, default) in numbers.items() if value != default]
    if summary.chat:
        words.append("--chat")
    words += [f"--chat-option {label(option)}" for option in spell_options(summary.chat_options)]
    return " ".join(words)


def _findable(name: str) -> str:
    """A name by which a command finds the draft. FOLDER stands for a folder: its base name does not find it."""
    method, heads, _ = split_draft(name)
    is_found = is_known(heads) or "/" in heads
    if not heads or is_found:
        return label(name)
    return label(name.replace(f":{heads}", ":FOLDER")) if method else "FOLDER"
