"""A page on this machine to prompt a model: its thoughts are shown while its text grows.

Gradio serves the page. Nothing leaves the machine: no statistics, no share link, system fonts. Requests are answered
one after the other, so two readers never share a model's state.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import torch
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mentalese.data.sources import opened_source
from mentalese.errors import InputError
from mentalese.evaluation.answer_rule import final_answer
from mentalese.formatting import model_names, short_count
from mentalese.html import PALETTE, as_json
from mentalese.models.base import count_parameters
from mentalese.models.build import context_length
from mentalese.models.checkpoints import with_fields
from mentalese.models.generate_options import GenerateOptions, config_fields
from mentalese.models.saved import Saved
from mentalese.models.trace import Knob, ThoughtTrace
from mentalese.registry import families
from mentalese.viewer.page import page as thought_page
from mentalese.viewer.payload import payload

_MOST_TOKENS = 1000
_OFTEN = 0.4  # seconds between two looks at the thoughts of a growing text, at least
_SHARE = 3  # and as many times as long as one look takes
_EXAMPLES = 3
_WORDS = 16  # of an example: of its text's beginning
_MORE = 12  # words of how it goes on
_LABEL = 44  # characters
_TOP_K = 50  # transformers' default, if the model's settings have none


@dataclass(frozen=True)
class Example:
    """A prompt, and its continuation in its document: for a question the right answer."""

    prompt: str
    rest: str
    question: bool

    @property
    def label(self) -> str:
        """A line that distinguishes it from others: the end of a question, the beginning of a text."""
        line = " ".join(self.prompt.split())
        if len(line) <= _LABEL:
            return line
        return f"… {line[-_LABEL:].partition(' ')[2]}" if self.question else f"{line[:_LABEL].rpartition(' ')[0]} …"


def examples(saved: Saved, count: int = 3) -> list[Example]:
    """Return prompts from the test split of the built-in source of the model's training; none for other sources.

    A text ends at the first question that it answers itself (`?` as a word of its own), or after its first words.
    """
    if saved.recipe is None or not saved.data.source.startswith("builtin:"):
        return []
    prompts = []
    for document in islice(opened_source(saved.data).documents("test"), count):
        if saved.layout.questions and document.segments:
            prompts.append(Example(document.segments[0].strip(), final_answer(document.segments[-1]), True))
            continue
        words = re.findall(r"\s*\S+", document.text)
        stops = [number for number, word in enumerate(words, 1) if word.strip() == "?"]
        cut = stops[0] if stops else min(_WORDS, len(words) // 2)
        prompts.append(Example("".join(words[:cut]), "".join(words[cut : cut + _MORE]).strip(), False))
    return prompts


def component(knob: Knob) -> gr.Slider | gr.Number:
    """Return the slider or the field of a setting; its option is passed if it differs from the model's own value."""
    start = knob.own if knob.start is None else knob.start
    precision = 0 if isinstance(knob.step, int) else None
    named = {"label": knob.label, "info": knob.info, "precision": precision}
    if knob.most is None:
        return gr.Number(start, minimum=knob.least, step=knob.step, **named)
    return gr.Slider(knob.least, knob.most, start, step=knob.step, **named)


def sampling_knobs(saved: Saved) -> list[Knob]:
    """Return knobs for the sampling and the number of tokens."""
    settings = saved.model.generation_config
    room = (context_length(saved.model.config) or _MOST_TOKENS + 1) - 1
    most, default = min(room, _MOST_TOKENS), GenerateOptions.max_new_tokens
    sampled = float(settings.temperature or 1.0) if settings.do_sample else 0.0
    top_p, top_k = float(settings.top_p or 1.0), _TOP_K if settings.top_k is None else settings.top_k
    temperature = 0.0 if saved.answers else sampled or 0.8  # greedy texts repeat themselves
    return [
        Knob("max_new_tokens", "New tokens", "", default, 1, most, start=min(default, max(most // 2, 1))),
        Knob("temperature", "Temperature", "0: always the most likely token", sampled, 0, 2, 0.05, temperature),
        Knob("top_p", "Top-p", "the most likely tokens with this total probability", top_p, 0.05, 1, 0.05),
        Knob("top_k", "Top-k", "only the K most likely tokens; 0: all", top_k, 0),
        Knob("seed", "Seed", "the same seed gives the same text", GenerateOptions.seed, 0),
    ]


def thought_knobs(saved: Saved) -> list[Knob]:
    """Return knobs for the amount of thinking, as far as it can be set at inference."""
    knobs = saved.model.knobs()
    if (latents := saved.layout.asked().get("latents")) is not None:
        knobs.insert(0, Knob("latents", "Latent thoughts", "after the question", latents, 0, max(2 * latents, 12)))
    return knobs


class Player:
    """A model, and the texts that the page requests from it."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.knobs = [*thought_knobs(saved), *sampling_knobs(saved)]

    def options(self, prompt: str, values: Sequence[float | None]) -> GenerateOptions:
        """Return the options of `mentalese generate` with the page's settings.

        Args:
            values: of `knobs`, in order; `None`: left empty.
        """
        at = {knob.name: knob.own if value is None else value for knob, value in zip(self.knobs, values, strict=True)}
        sampled = at["temperature"] > 0
        idle = () if sampled else ("temperature", "top_p", "top_k")
        changed = [knob for knob in self.knobs if at[knob.name] != knob.own and knob.name not in idle]
        settings: dict[str, Any] = {knob.name: at[knob.name] for knob in changed if not knob.field}
        settings["config"] = tuple(f"{knob.name}={at[knob.name]}" for knob in changed if knob.field)
        settings["greedy"] = not sampled and bool(self.saved.model.generation_config.do_sample)
        settings["num_beams"] = 1 if (self.saved.model.generation_config.num_beams or 1) > 1 else None  # text streams
        return GenerateOptions(prompt=(prompt,), **settings)

    def command(self, options: GenerateOptions) -> str:
        """Return the command line for the same text."""
        words = ["mentalese", "generate", self.saved.path]
        for field in dataclasses.fields(options):
            if (value := getattr(options, field.name)) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                first, *more = [""] if value is True else map(str, value if isinstance(value, tuple) else [value])
                words += [f"{flag}={first}"] if first.startswith("-") else filter(None, [flag, first])
                words += more
        return shlex.join(words)

    @cached_property
    def examples(self) -> list[Example]:
        """Prompts from the model's own data, if it is known; made at the first use, which takes seconds."""
        return examples(self.saved, _EXAMPLES)

    def write(
        self, options: GenerateOptions, stopped: threading.Event, seen: Callable[[ThoughtTrace], None] | None = None
    ) -> Generator[str, None, None]:
        """Yield the prompt and its continuation, longer each time; text that is not written in order is yielded once.

        Args:
            stopped: stops the model at the next token once it is set.
            seen: is called with what the model thinks of the text so far, now and then, between two tokens, and once
                at the end. Of a question and its answer these are the thoughts that it had while it wrote.

        Raises:
            InputError: what `mentalese generate` refuses.
        """
        saved = self._asked(options)
        due, ordered = time.monotonic(), saved.model.causal  # others fill in tokens anywhere
        [prompt] = options.prompt
        ids, written = saved.encode(prompt)["input_ids"][0], saved.prompt_text(prompt)

        def look(input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            nonlocal due, ids
            ids = input_ids[0]
            if seen is not None and ordered and time.monotonic() >= due and not stopped.is_set():
                start = time.monotonic()
                seen(self._trace(saved, options, ids))
                due = time.monotonic() + max(_OFTEN, _SHARE * (time.monotonic() - start))
            return torch.full((input_ids.shape[0],), stopped.is_set(), device=input_ids.device)

        kwargs = options.generation() | options.inference(saved.model.generate)
        kwargs |= {"max_new_tokens": options.max_new_tokens, "seed": options.seed, "stopping_criteria": [look]}
        if "show_progress" in kwargs:
            kwargs["show_progress"] = False
        if ordered:
            with closing(saved.stream(prompt, **kwargs)) as pieces:
                for piece in pieces:
                    yield (written := written + piece)
        else:
            yield (written := saved.generate(prompt, **kwargs)[0])
        if seen is not None:
            seen(self._trace(saved, options, ids) if saved.answers else saved.think(written, **_steps(options)))

    def _asked(self, options: GenerateOptions) -> Saved:
        """Return the model under these options; the weights are shared."""
        saved = self.saved.at(options.stage, options.latents)
        if not options.config:
            return saved
        model = copy.copy(saved.model)
        model.config = with_fields(model.config, config_fields(options.config))
        return dataclasses.replace(saved, model=model)

    def _trace(self, saved: Saved, options: GenerateOptions, input_ids: torch.Tensor) -> ThoughtTrace:
        trace = saved.trace(input_ids, **_steps(options))
        if saved.answers:
            trace.written = saved.encode(options.prompt)["input_ids"].shape[1]
        return trace

    def known(self, prompt: str) -> Example | None:
        """Return the example that a prompt is, as far as examples are loaded."""
        return next((one for one in self.__dict__.get("examples", ()) if one.prompt == prompt), None)

    def drawn(self, trace: ThoughtTrace, prompt: str) -> dict[str, Any]:
        """Return a trace as the page of thoughts draws it."""
        example = self.known(prompt)
        expected = example.rest if example is not None and example.question else None
        return payload([trace], models=[self.saved], expected=expected)


def _steps(options: GenerateOptions) -> dict[str, int]:
    return {} if options.fast_steps is None else {"fast_steps": options.fast_steps}


# -- the page ----------------------------------------------------------------------------------------------------------

_STYLE = PALETTE + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
_NONE_YET = '<div class="thoughts none-yet"><p>What the model thinks appears here while it writes.</p></div>'
# Sends each payload to the frame, now and, if the frame is still being loaded, once more when it is there.
_FEED = """watch('value', () => {
  const frame = document.querySelector('iframe.thoughts');
  if (!frame || !props.value) return;
  const send = () => frame.contentWindow.postMessage(JSON.parse(props.value), '*');
  frame.onload = send;
  send();
});"""


def build(player: Player) -> gr.Blocks:
    """Return the page, before it is served."""
    stops: dict[str | None, threading.Event] = {}  # by session: a button stops only its own reader's text

    def begin(request: gr.Request) -> tuple[object, ...]:
        stops.setdefault(request.session_hash, threading.Event())
        return gr.update(interactive=False), gr.update(interactive=True), _status("Waiting …")

    def answer(request: gr.Request, prompt: str, *values: float | None) -> Iterator[tuple[object, ...]]:
        stopped = stops.setdefault(request.session_hash, threading.Event())  # asked again before the end
        options = player.options(prompt, values)
        typed, written, same = player.saved.prompt_text(prompt), "", gr.skip()
        looks: list[ThoughtTrace] = []  # not shown yet
        framed = False

        def thoughts() -> tuple[object, object]:
            """Return the frame, once, and the message to it for the latest look."""
            nonlocal framed
            if not looks:
                return same, same
            drawn = player.drawn(looks[-1], prompt)
            looks.clear()
            first, framed = not framed, True
            return _frame(thought_page(drawn)) if first else same, as_json(drawn)

        known = _rest(player.known(prompt))
        yield _text(typed, typed), _status("Thinking …"), _NONE_YET, "", known, player.command(options)
        try:
            if not stopped.is_set():
                with closing(player.write(options, stopped, looks.append)) as texts:  # stops if the reader leaves
                    for written in texts:
                        yield _text(typed, written), _status("Writing …"), *thoughts(), same, same
            end = "Stopped." if stopped.is_set() else ""
            yield same, _status(end), *thoughts(), same, same
        except InputError as error:
            yield same, _status(str(error), error=True), same, same, same, same
        finally:
            stops.pop(request.session_hash, None)

    def end() -> tuple[object, object]:
        return gr.update(interactive=True), gr.update(interactive=False)

    def stop(request: gr.Request) -> None:
        if request.session_hash in stops:
            stops[request.session_hash].set()

    hidden: Any = {"api_visibility": "private", "show_progress": "hidden"}
    with gr.Blocks(title=f"{player.saved.path} · mentalese", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(_about(player))
        with gr.Row(elem_classes="desk"):
            with gr.Column(scale=2, min_width=340):
                label = "Question" if player.saved.answers else "Prompt"
                # With one line, which grows, Enter asks; in a text it begins a line.
                prompt = gr.Textbox(label=label, lines=1 if player.saved.answers else 3, elem_classes="prompt")
                with gr.Row(elem_classes="examples"):
                    offers = [gr.Button(visible=False, size="sm") for _ in range(_EXAMPLES)]
                with gr.Row():
                    go, halt = gr.Button("Write", variant="primary"), gr.Button("Stop", interactive=False)
                text, rest, status = gr.HTML(_text("", "")), gr.HTML(_rest(None)), gr.HTML(_status(""))
                with gr.Accordion("Settings and command", open=False):
                    knobs = [component(knob) for knob in player.knobs]
                    command = gr.Textbox(label="Equivalent command", interactive=False)
            with gr.Column(scale=3, min_width=360):
                frame = gr.HTML(_NONE_YET)
        feed = gr.HTML("", html_template="", js_on_load=_FEED)

        page.load(partial(_offers, player), outputs=offers, **hidden)
        for number, button in enumerate(offers):
            button.click(lambda number=number: player.examples[number].prompt, outputs=prompt, **hidden)
        request = gr.on([go.click, prompt.submit], begin, outputs=[go, halt, status], queue=False, **hidden)
        outputs = [text, status, frame, feed, rest, command]
        answered = request.then(answer, [prompt, *knobs], outputs, concurrency_limit=1, **hidden)
        answered.then(end, outputs=[go, halt], queue=False, **hidden)
        halt.click(stop, queue=False, **hidden)
    return page


def _offers(player: Player) -> list[object]:
    """Return updates of the buttons with examples."""
    buttons = [gr.update(value=one.label, visible=True) for one in player.examples]
    return [*buttons, *[gr.update(visible=False)] * (_EXAMPLES - len(buttons))]


def _about(player: Player) -> str:
    name = player.saved.model.config.model_type
    family = next((f.description for f in families().values() if name in f.classes), name)
    parameters = short_count(count_parameters(player.saved.model)["total"])
    [model] = model_names([player.saved.path])
    return (
        f'<div class="about"><p>Mentalese · write with a model</p><h1>{escape(model)}</h1>'
        f"<p>{escape(family)}; {parameters} parameters; {escape(player.saved.path)}</p></div>"
    )


def _rest(example: Example | None) -> str:
    """Return the continuation of an example in its document, next to the model's text."""
    words = "" if example is None else "The right answer: " if example.question else "The data go on: "
    return f'<p class="rest">{words}<b>{escape("" if example is None else example.rest)}</b></p>'


def _text(given: str, written: str) -> str:
    """Return a text; `given` is what the reader typed."""
    prompt = given if written.startswith(given) else ""  # masks inside it are filled in
    new = escape(written[len(prompt) :])
    return f'<section class="text" aria-label="Text"><span class="given">{escape(prompt)}</span>{new}</section>'


def _status(sentence: str, *, error: bool = False) -> str:
    kind = 'class="status error" role="alert"' if error else 'class="status" role="status"'
    return f"<p {kind}>{escape(sentence)}</p>"


def _frame(page: str) -> str:
    """Return a page in a frame that may run its own script and access nothing else."""
    about = 'class="thoughts" title="What the model thought" sandbox="allow-scripts allow-downloads"'
    return f'<iframe {about} srcdoc="{escape(page)}"></iframe>'


# -- the server --------------------------------------------------------------------------------------------------------


def check_address(host: str, port: int) -> None:
    """Raise `InputError` if a page cannot be served there."""
    if not host:  # a socket would take it for all addresses
        raise InputError("--host is '': use an address of this machine, or remove it")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, TypeError, ValueError) as error:
            raise InputError(
                f"--host is {host!r} and --port is {port}: no page can be served there ({error}), use an IPv4 address "
                "of this machine and a free port from 1024 on"
            ) from None


def own_requests(app: ASGIApp, host: str) -> ASGIApp:
    """Refuse requests that another page sent, or that reached this one under a name that is not this machine's.

    Both are ways for a page of the web to use a server that only this machine can reach: requests across origins, and
    a name of the web that resolves to 127.0.0.1 (DNS rebinding).

    Args:
        host: the address that the page is served at. At one that other machines reach, its own addresses and names of
            this machine are as good.
    """
    local = ip_address(socket.gethostbyname(host)).is_loopback
    names = {"localhost", host} | (set() if local else {socket.gethostname(), socket.getfqdn()})

    def is_own(name: str) -> bool:
        try:
            address = ip_address(name)
        except ValueError:
            return name in names
        return address.is_loopback or not local

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        reply = app
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            name, origin = headers.get("host", ""), headers.get("origin")
            if not is_own(urlsplit(f"//{name}").hostname or ""):
                reply = PlainTextResponse(f"{name} is not a name of this page\n", 403)
            elif origin is not None and urlsplit(origin).netloc != name:
                reply = PlainTextResponse(f"{origin} is another page\n", 403)
        await reply(scope, receive, send)

    return answer


def serve(page: gr.Blocks, host: str, port: int) -> str:
    """Serve the page in a separate thread until `page.close()`; return its address."""
    font = [gr.themes.Font(name) for name in ("system-ui", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "monospace")]
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="slate", font=font, font_mono=mono)
    plain = {"block_border_width": "0px", "block_shadow": "none", "block_padding": "4px 0"}
    grounds = ("body_background_fill", "block_background_fill", "block_label_background_fill", "panel_background_fill")
    plain |= {f"{name}{dark}": "var(--bg)" for name in grounds for dark in ("", "_dark")}
    colours = {
        "border_color_primary": "rule", "body_text_color": "ink", "body_text_color_subdued": "muted",
        "block_info_text_color": "muted", "block_title_text_color": "muted", "input_background_fill": "card",
        "button_primary_background_fill": "accent", "button_primary_background_fill_hover": "accent",
        "button_primary_text_color": "bg", "button_secondary_background_fill": "card",
        "slider_color": "accent",
    }  # fmt: skip
    theme.set(**plain, **{f"{name}{dark}": f"var(--{to})" for name, to in colours.items() for dark in ("", "_dark")})
    page.queue(default_concurrency_limit=None)
    _, address, _ = page.launch(
        server_name=host, server_port=port, theme=theme, head=f"<style>{_STYLE}</style>", share=False, inbrowser=False,
        quiet=True, prevent_thread_lock=True, show_error=True, footer_links=[], run_history=False, pwa=False,
        ssr_mode=False, mcp_server=False, enable_monitoring=False,
        app_kwargs={"middleware": [Middleware(own_requests, host=host)]},
    )  # fmt: skip
    return str(address)


def play(saved: Saved, host: str, port: int) -> None:
    """Serve the page of a model until Ctrl+C.

    Raises:
        InputError: the port is taken, or this machine does not have the host's address.
    """
    check_address(host, port)
    page = build(Player(saved))
    try:
        print(f"{saved.path}: open {serve(page, host, port)} in a browser; Ctrl+C ends it", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    finally:
        page.close(verbose=False)
