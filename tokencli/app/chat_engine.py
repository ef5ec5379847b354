"""The engine of a chat: opened when it is needed, opened smaller when it failed, its cache kept on disk between runs."""

import dataclasses
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

from tokencli.app.chat_settings import ChatSettings
from tokencli.app.chat_store import Store
from tokencli.app.conversation import Conversation
from tokencli.app.ladder import Ladder
from tokencli.app.opened import Opened, opened
from tokencli.app.pace import keeping_pace
from tokencli.app.shaders import telling_of_shaders
from tokencli.app.slow import why_slow
from tokencli.app.world import World, seconds_left
from tokencli.core import Done, Event, Machine, Note, Plan, Request, Stats
from tokencli.engine.known_templates import TEMPLATES
from tokencli.errors import EngineCrashed, EngineError, Interrupted, TokencliError, UsageError
from tokencli.plan import remarks
from tokencli.plan.choose import Wishes
from tokencli.world import gguf_file
from tokencli.world.load import LoadMeter
from tokencli.world.states import Description


class ChatEngine:
    """One engine at a time. `state_note` says what became of the cache that an earlier run left for the conversation."""

    def __init__(self, model: str, wishes: Wishes, world: World, store: Store, timeout: float | None = None) -> None:
        self.model = model
        self._timeout = timeout
        self._asked = self._wishes = wishes
        self._world, self._store = world, store
        self._opened: Opened | None = None
        self._last_plan: Plan | None = None
        self._held_tokens = 0
        self._meter: LoadMeter | None = None  # begun when the engine was last at rest
        self._threads = 0
        self.state_note = ""

    @property
    def plan(self) -> Plan | None:
        return self._opened.plan if self._opened else None

    @property
    def context(self) -> int:
        assert self._opened
        return self._opened.plan.context

    def memory_bytes(self) -> int | None:
        return self._opened.engine.peak_bytes() if self._opened else None

    def ready(self, conversation: Conversation, settings: ChatSettings) -> Generator[Event]:
        """Have a model loaded, with what an earlier run computed of the conversation. Raises a TokencliError."""
        if self._opened:
            return
        has_template = settings.template is not None
        found = yield from opened(self.model, self._wishes, self._world, self._timeout, has_template)
        if found.loaded.template is None and not has_template:
            found.engine.close()
            hint = f"name one: --template {'|'.join(TEMPLATES)}; tokencli run continues plain text"
            raise UsageError(f"{self.model} has no chat template", hint)
        self._opened, self._wishes = found, found.wishes
        self._threads = found.plan.threads
        self._rest()
        self.take_up_state(conversation)

    def generate(self, request: Request) -> Iterator[Event]:
        """One answer, by as many threads as other programs leave cores for now. Raises as Engine.generate."""
        assert self._opened
        before, busy = self._threads, self._busy_cores()
        plan, here = self._threaded(busy)
        if plan.threads < before:
            yield from (Note(note) for note in remarks.busy(plan, here))
        request = dataclasses.replace(request, threads=plan.threads if plan != self._opened.plan else None)
        events = self._opened.engine.generate(request, seconds_left(self._opened.deadline, self._world))
        try:
            for event in keeping_pace(telling_of_shaders(events, plan, self._world), plan, self._world):
                if isinstance(event, Done):
                    self._held_tokens = event.stats.prompt_tokens + event.stats.tokens
                    self._rest()
                yield event
        except Interrupted:
            if self._opened.engine.has_ended:
                self.drop()  # the next message starts another
            raise

    def _rest(self) -> None:
        assert self._opened
        self._meter = self._world.start_meter(self._opened.engine.process_id)

    def _busy_cores(self) -> float | None:
        """Cores that others kept busy while the engine was at rest; None where that was too short to tell."""
        return self._meter.busy_cores() if self._meter else None

    def _threaded(self, busy: float | None) -> tuple[Plan, Machine]:
        """The plan with its threads of now, and the machine as busy as it is; nobody's wish is changed."""
        assert self._opened
        plan, here = self._opened.plan, self._opened.machine
        if busy is not None and plan.origins.get("threads") == "machine":
            here = dataclasses.replace(here, busy_cores=busy)
            self._threads = here.threads
        return dataclasses.replace(plan, threads=self._threads), here

    def why_slow(self, stats: Stats) -> str | None:
        """What may have made an answer so slow; None where it was not."""
        assert self._opened
        return why_slow(self._opened, stats, self._world)

    def count(self, request: Request) -> int:
        assert self._opened
        return self._opened.engine.count(request)

    def switch(
        self, conversation: Conversation, settings: ChatSettings, model: str | None = None, draft: str | None = None
    ) -> Generator[Event]:
        """Go on with another model or draft; where it cannot be loaded, what was there before is loaded with the next message."""
        before = self.model, self._asked, self._wishes
        self.keep_state(conversation)
        self.drop()
        self.model = model or self.model
        self._asked = self._wishes = dataclasses.replace(self._asked, draft=draft or self._asked.draft)
        try:
            yield from self.ready(conversation, settings)
        except BaseException:
            self.model, self._asked, self._wishes = before
            raise

    def step_down(self, failure: TokencliError, ladder: Ladder, tokens: int) -> str | None:
        """Ask for what may not fail from now on; how, in words that follow "started again". None where nothing is left."""
        step = ladder.after(failure, self._last_plan, self._wishes, tokens)
        if step is None:
            return None
        self._wishes = step.wishes
        return step.words

    def drop(self) -> None:
        """End the engine without keeping anything of it."""
        if self._opened:
            self._opened.engine.close()
            self._last_plan = self._opened.plan
        self._opened = None

    def close(self, conversation: Conversation) -> None:
        self.keep_state(conversation)
        self.drop()

    # the cache on disk

    def keep_state(self, conversation: Conversation) -> None:
        """Keep what is computed of the conversation. Costs a new prefill where it cannot be kept, nothing else."""
        session = conversation.session
        if not (self._opened and session and conversation.messages):
            return
        with suppress(TokencliError, OSError):  # OSError: the model's file has gone meanwhile
            if self._state_bytes(self._opened.plan) <= self._store.states.room():
                path = self._store.states.path_for_saving(session.id)
                self._opened.engine.save_state(path)
                self._store.states.keep(session.id, path, self._description())

    def take_up_state(self, conversation: Conversation) -> None:
        """Have the engine take up what an earlier run kept. A damaged or foreign cache is left out, with the reason.

        Raises EngineCrashed where the engine dies of it: the cache is gone then.
        """
        session = conversation.session
        self.state_note = "nothing was kept of an earlier run"
        if not (self._opened and session and conversation.messages):
            return
        found = self._store.states.find(session.id, self._description())
        if found.path is None:
            self.state_note = found.why or self.state_note
            return
        try:
            tokens = self._opened.engine.load_state(found.path)
            self.state_note = f"{tokens} tokens came from an earlier run's cache"
        except EngineError as error:
            self._store.states.forget(session.id)
            self.state_note = error.what
            if isinstance(error, EngineCrashed):
                raise

    def _state_bytes(self, plan: Plan) -> int:
        """About as much as a cache on disk takes: the tokens' part of the KV cache, and the recurrent state."""
        share = min(self._held_tokens / plan.context, 1)
        return sum(round(place.kv * share) + place.recurrent for place in plan.devices)

    def _description(self) -> Description:
        """All that a cache depends on: another model file, library or kind of cache makes it worthless."""
        import importlib.metadata  # 20 ms, which a plain run need not pay

        assert self._opened
        plan = self._opened.plan
        return {
            "model": gguf_file.identity(Path(plan.model.file)),
            "quant": plan.model.quant,
            "template": self._opened.loaded.template,
            "library": importlib.metadata.version("llama-cpp-python"),
            "kv_type": plan.kv_type,
            "flash_attention": plan.flash_attention,
            "draft": plan.draft.max_tokens if plan.draft else 0,
        }
