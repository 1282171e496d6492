"""`run` and `stream` generate from a prompt and give a trace; models by name, by folder, or already in memory."""

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
    """Yields the events of `run(...)` as they come. Takes the same arguments."""
    bench = workbench()
    request = _request(bench.pool, prompt, target, draft, options)
    yield from recorded(open_run(request, bench=bench).events())


def recorded(events: Iterable[Status | trace.Event]) -> Iterator[trace.Event]:
    """Yields the events that a trace is made of; downloads show a bar on standard error."""
    with ExitStack() as stack:
        bars = {}  # message -> its bar
        for event in events:
            if not isinstance(event, Status):
                yield event
            elif event.fraction is not None and event.message.startswith(DOWNLOADING):
                if event.message not in bars:
                    bars[event.message] = stack.enter_context(bar(event.message))
                progress = bars[event.message]
                progress.update(round(100 * event.fraction) - progress.n)


def _request(pool: ModelPool, prompt, target, draft, options: dict[str, object]) -> Request:
    """The request with models by name, so that it can be stored.

    An option that is no field of a request is a parameter of the method.
    """
    k = one_k(options.pop("k", None), options.pop("num_speculative_tokens", None))
    target = _model_name(pool, target) or catalog.default_pair()[0]
    draft = _model_name(pool, draft)
    params = dict(options)
    fields = {name: params.pop(name) for name in options if name in Request.__dataclass_fields__}
    fields["num_speculative_tokens"] = k
    is_text = isinstance(prompt, str)
    if is_text:
        fields["prompt"] = prompt
    else:
        fields["prompt_ids"] = tuple(prompt)
    method = find_method(fields.get("method", "draft_model"))
    draft = draft or catalog.bundled_draft(target, foreign=method.foreign)
    fields["chat_options"] = fields.get("chat_options") or {}
    if fields.get("chat") is None:
        fields["chat"] = is_text and (catalog.chats(target) or bool(fields["chat_options"]))
    return Request(target=target, draft=draft, params=params, **fields)


def _model_name(pool: ModelPool, model) -> str | None:
    """The name of a model; a model that is handed over or lies in a folder is loaded first."""
    return model if model is None or isinstance(model, str) else pool.load(model).name


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
    min_p: float = 0.0,
    draft_temperature: float | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | None = None,
    draft_min_p: float | None = None,
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
    events = stream(
        prompt,
        target=target,
        draft=draft,
        method=method,
        rule=rule,
        k=k,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        draft_temperature=draft_temperature,
        draft_top_k=draft_top_k,
        draft_top_p=draft_top_p,
        draft_min_p=draft_min_p,
        seed=seed,
        max_new_tokens=max_new_tokens,
        stop=stop,
        chat=chat,
        chat_options=chat_options,
        num_speculative_tokens=num_speculative_tokens,
        **params,
    )
    return trace.Trace(events)
