"""The command `chat`: parses what was typed, and hands over to the loop. Decides nothing, shows no answer."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from tokencli.cli import options
from tokencli.cli.terminal import Terminal
from tokencli.errors import UsageError

if TYPE_CHECKING:
    from tokencli.app.chat import Chat, ChatWishes
    from tokencli.app.chat_store import Store
    from tokencli.cli.chat_lines import Source
    from tokencli.core import Sampling

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def _chat_here(wishes: "ChatWishes", confirm: "Callable[[str], bool]") -> "Chat":
    from tokencli.app import World
    from tokencli.app.chat import Chat

    return Chat(wishes, World(confirm=confirm))


def _store_here(told: Callable[[str], None]) -> "Store":
    from tokencli.app import World
    from tokencli.app.chat_store import Store

    return Store(World(), told)


def chat_command(
    terminal: Terminal,
    make_chat: "Callable[[ChatWishes, Callable[[str], bool]], Chat]" = _chat_here,
    open_store: "Callable[[Callable[[str], None]], Store]" = _store_here,
) -> Callable[..., None]:
    def chat(
        typed: typer.Context,
        model: options.ChatModel = None,
        resume: options.GoOn = False,
        session: options.Session = None,
        listing: options.ListSessions = False,
        search: options.Search = None,
        delete: options.Delete = None,
        system: options.System = None,
        max_tokens: options.MaxTokens = None,
        stop: options.Stop = None,
        overflow: options.Overflow = "stop",
        template: options.Template = None,
        think: options.Think = None,
        max_thinking: options.MaxThinking = None,
        temperature: options.Temperature = 0.8,
        top_k: options.TopK = 40,
        top_p: options.TopP = 0.95,
        min_p: options.MinP = 0.05,
        seed: options.Seed = None,
        gpu_layers: options.GpuLayers = None,
        cpu_moe: options.CpuMoe = None,
        context: options.Context = None,
        threads: options.Threads = None,
        profile: options.Profile = None,
        device: options.Device = None,
        kv_type: options.KvType = None,
        ubatch: options.Ubatch = None,
        draft: options.Draft = None,
        draft_tokens: options.DraftTokens = None,
        quant: options.Quant = None,
        yes: options.Yes = False,
        plain: options.Plain = False,
        quiet: options.Quiet = False,
    ) -> None:
        """A conversation. It is saved as it grows; /help tells what can be typed in it."""
        options.check_sampling(temperature, top_k, top_p, min_p, seed)
        options.check_range(("--max-tokens", max_tokens, 1, 1 << 31), ("--max-thinking", max_thinking, 1, 1 << 31))
        options.one_of("--think", think, (*options.THINKING_VIEWS, *options.THINKING))
        options.one_of("--overflow", overflow, options.OVERFLOWS)
        from tokencli.app.chat import ChatWishes

        if listing or search is not None or delete is not None:
            _look_after(open_store, search, delete, terminal)
            return
        _check_what_to_open(model, resume, session)
        given = any(typed.get_parameter_source(name).name == "COMMANDLINE" for name in _SAMPLING)  # type: ignore[union-attr]
        wishes = ChatWishes(
            model=model,
            wishes=options.wishes(
                gpu_layers, cpu_moe, device, profile, context, kv_type, threads, draft, draft_tokens, quant, ubatch
            ),
            sampling=_sampling(temperature, top_k, top_p, min_p, seed) if given else None,
            system=system,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            template=template,
            overflow=overflow,  # type: ignore[arg-type]
            thinking=think if think in options.THINKING else "on",  # type: ignore[arg-type]
            max_thinking=max_thinking,
            session=session,
            resume=resume,
        )
        with make_chat(wishes, lambda what: terminal.confirm(what, yes)) as opened:
            code = _talk(opened, terminal, plain=plain, quiet=quiet, thoughts=think != "hide" and not quiet)
        raise typer.Exit(code)

    return chat


def _talk(chat: "Chat", terminal: Terminal, *, plain: bool, quiet: bool, thoughts: bool) -> int:
    from tokencli.cli.chat_loop import ChatLoop

    source = _source(chat, terminal)
    with source:
        return ChatLoop(chat, source, terminal, plain=plain, quiet=quiet, thoughts=thoughts).run()


def _source(chat: "Chat", terminal: Terminal) -> "Source":
    """Where messages come from: a line editor on a whole terminal, else plain lines."""
    if not terminal.edits_lines:
        from tokencli.cli.chat_lines import LineSource

        return LineSource(terminal)
    import platformdirs

    from tokencli.cli.chat_input import PromptSource, history_in
    from tokencli.cli.chat_words import ChatWords

    history = history_in(platformdirs.user_data_path("tokencli"))
    return PromptSource(terminal, history, ChatWords(chat, tuple(options.known_models(""))))


def _check_what_to_open(model: str | None, resume: bool, session: str | None) -> None:
    if resume and session:
        raise UsageError("--continue is the latest conversation, --session names one", "leave one of them out")
    if not (model or resume or session):
        hint = "begin with tokencli chat smollm2-135m, or go on with tokencli chat --continue"
        raise UsageError("no model and no conversation was named", hint)


def _sampling(temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None) -> "Sampling":
    from tokencli.app import random_seed
    from tokencli.core import Sampling

    return Sampling(temperature, top_k, top_p, min_p, random_seed() if seed is None else seed)


def _look_after(
    open_store: "Callable[[Callable[[str], None]], Store]", search: str | None, delete: str | None, terminal: Terminal
) -> None:
    """`--list`, `--search`, `--delete`: what needs no model."""
    from tokencli.cli.chat_view import session_lines
    from tokencli.cli.views import Aside

    aside = Aside(terminal, quiet=False)
    with contextlib.closing(open_store(aside.line)) as store:
        if delete is not None:
            store.delete(delete)
            return
        for line in session_lines(store.lines(search)):
            terminal.stdout.write(line + "\n")
