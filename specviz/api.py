"""run and stream: one call from a prompt to a trace, with models by name, by folder or handed over in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from specviz import trace
from specviz.drafters import find_method
from specviz.models import catalog
from specviz.models.files.hub import DOWNLOADING, bar
from specviz.models.pool import ModelPool
from specviz.request import Request, one_k
from specviz.session.run import Status, open_run
from specviz.session.workbench import workbench


def stream(prompt: str | list[int], *, target=None, draft=None, **options) -> Iterator[trace.Event]:
    """The events of `run(...)` as they come. Takes the same arguments."""
    bench = workbench()
    request = _request(bench.pool, prompt, target, draft, options)
    yield from recorded(open_run(request, bench=bench).events())


def recorded(events: Iterable[Status | trace.Event]) -> Iterator[trace.Event]:
    """The events that a trace is made of; of the others, downloads show a bar on standard error."""
    with ExitStack() as stack:
        bars = {}  # message -> its bar
        for event in events:
            if not isinstance(event, Status):
                yield event
            elif event.fraction is not None and event.message.startswith(DOWNLOADING):
                if event.message not in bars:
                    bars[event.message] = stack.enter_context(bar(event.message))
                bars[event.message].update(round(100 * event.fraction) - bars[event.message].n)


def _request(pool: ModelPool, prompt, target, draft, options: dict[str, object]) -> Request:
    """Models by name, so that the request can be stored; what is no field of a request is a parameter of the method."""
    k = one_k(*(options.pop(name, None) for name in ("k", "num_speculative_tokens")))
    target, draft = (
        each if each is None or isinstance(each, str) else pool.load(each).name
        for each in (target, draft)
    )
    known = {name: options.pop(name) for name in [*options] if name in Request.__dataclass_fields__}
    known["num_speculative_tokens"] = k
    text = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_ids": tuple(prompt)}
    target = target or catalog.default_pair()[0]
    draft = draft or catalog.bundled_draft(
        target, foreign=find_method(known.get("method", "draft_model")).foreign
    )
    known["chat_options"] = known.get("chat_options") or {}
    if known.get("chat") is None:
        known["chat"] = "prompt" in text and (catalog.chats(target) or bool(known["chat_options"]))
    return Request(target=target, draft=draft, params=options, **text, **known)


def run(
    prompt: str | list[int],
    *,
    target=None,
    draft=None,
    method: str = "draft_model",
    rule: str | None = None,
    k: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    draft_temperature: float | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | None = None,
    seed: int = 0,
    max_new_tokens: int = 64,
    stop: str | Sequence[str] = (),
    chat: bool | None = None,
    chat_options: Mapping[str, bool | int | float | str] | None = None,
    num_speculative_tokens: int | None = None,
    **params: int | float | str,
) -> trace.Trace:
    """Generates once and returns the finished trace.

    prompt: text or token ids. target, draft: a bundled name, a folder, a hub id or a loaded (model, tokenizer) pair;
    by default the bundled pair, and for a target on offer the bundled draft that suits it. k: the largest depth of a
    draft (None: 4); num_speculative_tokens: the same number by vLLM's name. draft_temperature, ...: the draft's own,
    None: as the target's; the text of an exact rule does not depend on them. stop: texts, any of which ends the answer
    (the trace's `answer`) before it. chat: whether the target's chat template is used; None: for a chat model on offer,
    and where chat_options are given. chat_options: values for what that template asks, such as {"enable_thinking":
    False}. params: the method's own (`METHODS[method].params`); several models as one text, separated by commas. Raises
    SpecvizError.
    """
    options = locals()
    return trace.Trace(stream(**options.pop("params"), **options))
