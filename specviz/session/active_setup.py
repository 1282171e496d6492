"""ActiveSetup: the models, drafters and settings of a run in progress; all may change between two steps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specviz import trace
from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import is_out_of_memory
from specviz.decoding.drafter import Drafter
from specviz.decoding.engine import Plan
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.chat import as_messages, render_chat
from specviz.models.files.hub import Progress, ignore_progress
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.tokens import TokenText
from specviz.request import Request, RunSettings
from specviz.session.setup import Setup, gather, models_named


def text_of(text: TokenText, ids: Iterable[int]) -> str:
    """The text of these ids, without a character that is incomplete at its end."""
    decoder = text.incremental()
    return "".join(decoder.push(token).text for token in ids)


class ActiveSetup:
    """The models, drafters and settings of a run in progress. Models and drafters stay while there is room."""

    def __init__(self, request: Request, pool: ModelPool, visitor: str = "") -> None:
        """visitor: whose last run left readers for this one, and whose next run gets this one's; "" for nobody."""
        self.request = request
        self._pool = pool
        self._visitor = visitor
        self._lms: dict[tuple[str, str], CachedLM] = {}  # by role and name
        self._drafters: dict[tuple[str, str | None, str], Drafter] = {}  # by method, draft, target
        self._taken: set[tuple[str, str]] = set()  # role and name, as it was asked for
        self.settings: RunSettings | None = None
        self.target: LoadedModel | None = None
        self.draft: LoadedModel | None = None
        self.setup: Setup | None = None
        self.plan: Plan | None = None
        self.step_settings: trace.Settings | None = None  # for the record of each step

    def describe_missing(self, settings: RunSettings) -> str:
        """The models that `settings` needs and this run has not used, by the names to show. Raises SpecvizError."""
        missing = [name for role, name in models_named(settings) if (role, name) not in self._taken]
        return " and ".join(map(self._pool.shown_name, missing))

    def load(self, settings: RunSettings, report: Progress = ignore_progress) -> Setup:
        """Loads the models that `settings` needs for the caller to hold, and changes nothing. Raises SpecvizError.

        Heads and models that the method's parameters name are loaded too; heads stay with their target.
        """
        method = METHODS[settings.method]
        target = self._load(settings.target, report)
        if self.target is not None and target.info.tokenizer_sha != self.target.info.tokenizer_sha:
            raise SpecvizError(
                f"{target.name} splits text into other tokens than {self.target.name}, so it cannot go on with this "
                "text; start a new run with it"
            )
        draft = None
        if "draft" in method.roles and settings.draft is not None:
            draft = self._load(settings.draft, report, as_draft=True)
        return gather(method, settings.params, target, draft, self._pool, report)

    def take(self, settings: RunSettings) -> None:
        """Loads missing models and adopts `settings`, or raises SpecvizError and changes nothing."""
        setup = self.load(settings)
        rule = setup.rule(settings.rule)
        k = setup.k(settings.num_speculative_tokens)
        sampling = Sampling.of(settings)
        self.plan = Plan(self._lm("target", setup.target), self._drafter(setup), rule, sampling, k)
        self.settings = settings
        self.setup = setup
        self.target = setup.target
        self.draft = setup.draft
        self._taken.update(models_named(settings))
        self.step_settings = setup.settings(self.plan)

    def prompt(self) -> tuple[str, list[int]]:
        """The prompt as the target sees it, and its ids. Raises SpecvizError for ids that it does not have."""
        request = self.request
        target = self.target
        if request.prompt_ids is not None:
            vocab_size = target.info.vocab_size
            too_large = [token for token in request.prompt_ids if token >= vocab_size]
            if too_large:
                raise SpecvizError(
                    f"prompt_ids must be below the target's vocabulary size {vocab_size} "
                    f"(got {too_large[0]})"
                )
            rendered = request.prompt or text_of(target.text, request.prompt_ids)
            return rendered, list(request.prompt_ids)
        if not request.chat:
            return request.prompt, target.text.encode(request.prompt)
        rendered = render_chat(target.tokenizer, as_messages(request.prompt), request.chat_options)
        return rendered, target.text.encode(rendered, special=False)

    def prompt_in_room(self, *, may_cut: bool) -> tuple[str, list[int], str]:
        """The prompt and its ids, shortened to its end if it is too long and `may_cut`, with a note that says so."""
        rendered, tokens = self.prompt()
        limit = self.target.info.context_limit
        room = limit - min(self.request.max_new_tokens, limit // 2)
        if not may_cut or len(tokens) <= room:
            return rendered, tokens, ""
        start = [token for token in tokens[:1] if token in self.target.text.special_ids]
        shortened = start + tokens[len(tokens) - room + len(start) :]
        note = (
            f"the prompt has {len(tokens):,} tokens and {self.target.name} reads at most {limit:,}, new ones included: "
            f"the first {len(tokens) - len(shortened):,} were left out"
        )
        return text_of(self.target.text, shortened), shortened, note

    def shown_request(self) -> Request:
        """The run's request with the shown names of its models, never a folder's path."""
        draft = self.request.draft
        if self.draft is not None:
            draft = self.draft.name
        elif draft is not None:
            draft = self._pool.shown_name(draft)
        params = self.request.params
        if self.setup.method.name == self.request.method:
            params = self.setup.params
        return replace(self.request, target=self.target.name, draft=draft, params=params)

    def describe_failure(self, error: Exception, num_tokens: int) -> str:
        """The words for a failure on a text of so many tokens, with advice if memory ran out."""
        if isinstance(error, SpecvizError):
            return str(error)
        name = "the model" if self.target is None else self.target.name
        if not is_out_of_memory(error):
            return f"the run with {name} failed: {type(error).__name__}: {str(error)[:500]}"
        models = () if self.setup is None else self.setup.models
        sizes = ", ".join(loaded.memory_words(num_tokens) for loaded in models)
        advice = "shorten the text, lower K or choose a smaller model"
        details = f" ({sizes})" if sizes else ""
        return f"not enough memory on the device to go on with {name}; {advice}{details}"

    def models_event(self, index: int) -> trace.Models:
        """The event that names the models in a trace, before the first step that they make."""
        draft_info = None if self.draft is None else self.draft.info
        return trace.Models(index, self.target.info, draft_info)

    def renew(self) -> None:
        """Empties the caches but keeps the settings, so that the next run reads its prompt again."""
        self._lms.clear()
        self._drafters.clear()
        self.take(self.settings)

    def num_read(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's tokens an earlier run has read for this one, before its first step."""
        num_missing = min(len(lm.missing(prompt)) for lm in self._lms.values())
        return len(prompt) - num_missing

    def keep_rows(self, prompt: Sequence[int], num_tokens: int) -> None:
        """Leaves the rows of the prompt to the visitor's next run. num_tokens: of the whole text."""
        if self._visitor:
            readers = [lm for (use, _), lm in self._lms.items() if use in ("target", "draft")]
            self._pool.keep_rows(self._visitor, readers, prompt, num_tokens)

    def keep_answer(self, tokens: Sequence[int]) -> None:
        """Leaves the answer to the drafters of the visitor's next runs."""
        if self._visitor and tokens and self.target is not None:
            self._pool.answers.keep(self._visitor, self.target.info.tokenizer_sha, tokens)

    def release(self) -> None:
        """Drops every model, so that others may take its room; settings stay."""
        self._lms.clear()
        self._drafters.clear()
        self.plan = None
        self.target = None
        self.draft = None
        self.setup = None

    def draft_lm(self, use: str = "draft") -> CachedLM:
        """The reader of the draft model for this use; "draft" is the one that the run drafts with."""
        return self._lm(use, self.draft)

    def _load(self, name: str, report: Progress, *, as_draft: bool = False) -> LoadedModel:
        """Loads a model; if it is refused, tries again without the models that this run no longer uses."""
        try:
            return self._pool.load(name, report, as_draft=as_draft)
        except SpecvizError:
            if not self._drop_idle():
                raise
            return self._pool.load(name, report, as_draft=as_draft)

    def _drop_idle(self) -> bool:
        """Drops the models and drafters that are not in use; whether there were any models."""
        used = set()
        if self.target is not None:
            used.add(("target", self.target.name))
        if self.draft is not None:
            used.add(("draft", self.draft.name))
        idle = self._lms.keys() - used
        for key in idle:
            del self._lms[key]
        if self.plan is not None:
            current = self.plan.drafter
            self._drafters = {
                key: drafter for key, drafter in self._drafters.items() if drafter is current
            }
        return bool(idle)

    def _drafter(self, setup: Setup) -> Drafter:
        draft_name = None if setup.draft is None else setup.draft.name
        key = (setup.method.name, draft_name, setup.target.name)
        if key not in self._drafters:
            target = self._lm("target", setup.target)
            draft = None if setup.draft is None else self._lm("draft", setup.draft)
            answers = self._pool.answers.of(self._visitor, setup.target.info.tokenizer_sha)
            self._drafters[key] = setup.drafter(target, draft, answers)
        return self._drafters[key]

    def _lm(self, role: str, loaded: LoadedModel) -> CachedLM:
        key = (role, loaded.name)
        if key not in self._lms:
            self._lms[key] = self._pool.reader(loaded, self._visitor)
        return self._lms[key]
