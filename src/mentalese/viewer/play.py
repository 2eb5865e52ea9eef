"""A page on this machine to write with a model: its text comes token by token, and behind it what it thought.

Gradio serves the page. Nothing leaves the machine: no statistics, no share link, fonts of the system. Requests are
answered one after the other, so that two readers never share a model's state.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import inspect
import shlex
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import torch

from mentalese.analyses.drawing import labels
from mentalese.compare.charts import short_count
from mentalese.data.layouts import Layout, Packed
from mentalese.data.tokenizers import corpus_encoder
from mentalese.errors import InputError
from mentalese.models.adapter import hugging_face_model
from mentalese.models.build import context_length
from mentalese.models.checkpoints import load_model, saved_recipe, with_fields
from mentalese.models.contract import count_parameters
from mentalese.models.generate_options import GenerateOptions, config_fields
from mentalese.models.generation import generate_text, stream_text
from mentalese.models.thinking import think, trace
from mentalese.recipe import DataConfig
from mentalese.registry import families
from mentalese.viewer import payload
from mentalese.viewer.page import page as thought_page

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_TOKENS = 1000
_TOP_K = 50  # of transformers, where a model's own settings name none


@dataclass(frozen=True)
class Knob:
    """One setting on the page: an option of `mentalese generate`, given to it where it is not the model's own.

    Attributes:
        name: the option's; a field of the config where `field`.
        own: what holds where it is not given.
        start: what the page starts with.
        least, most, step: of its slider; without `most` a number is typed.
    """

    name: str
    label: str
    info: str
    own: float
    least: float
    most: float | None = None
    step: float = 1
    start: float | None = None
    field: bool = False

    def component(self) -> gr.Slider | gr.Number:
        """What one sets it with."""
        start = self.own if self.start is None else self.start
        precision = 0 if isinstance(self.step, int) else None
        named = {"label": self.label, "info": self.info, "precision": precision}
        if self.most is None:
            return gr.Number(start, minimum=self.least, step=self.step, **named)
        return gr.Slider(self.least, self.most, start, step=self.step, **named)


def sampling_knobs(model: Any, layout: Layout) -> list[Knob]:
    """How tokens are drawn, and how many."""
    own = hugging_face_model(model).generation_config
    room = (context_length(model.config) or _MOST_TOKENS + 1) - 1
    most, default = min(room, _MOST_TOKENS), GenerateOptions.max_new_tokens
    drawn = float(own.temperature or 1.0) if own.do_sample else 0.0
    temperature = 0.0 if layout.questions else drawn or 0.8  # answers are to be right, texts not to repeat
    return [
        Knob("max_new_tokens", "New tokens", "", default, 1, most, start=min(default, max(most // 2, 1))),
        Knob("temperature", "Temperature", "0 takes the likeliest token", drawn, 0, 2, 0.05, temperature),
        Knob("top_p", "Top-p", "the likeliest tokens that share so much", float(own.top_p or 1.0), 0.05, 1, 0.05),
        Knob("top_k", "Top-k", "only so many of the likeliest", own.top_k or _TOP_K, 1),
        Knob("seed", "Seed", "the same gives the same text", GenerateOptions.seed, 0),
    ]


def thought_knobs(model: Any, layout: Layout) -> list[Knob]:
    """How much this model is to think, as far as it can be told when it is asked."""
    config, found = model.config, []
    if (own := layout.asked().get("latents")) is not None:
        found.append(Knob("latents", "Latent thoughts", "behind the question", own, 0, max(2 * own, 12)))
    takes = inspect.signature(hugging_face_model(model).generate).parameters
    if "fast_steps" in takes and config.num_latents and config.inference != "amortised":
        steps = "gradient steps on the thoughts of a text"
        found.append(Knob("fast_steps", "Fast steps", steps, config.fast_steps, 1, max(4 * config.fast_steps, 64)))
    if "infer_every" in takes and config.num_latents:
        found.append(Knob("infer_every", "Think again", "after so many new tokens; 0: never", 0, 0))
    if getattr(config, "fork_layers", ()) and config.selection == "block":
        most, kappa = max(2 * config.budget, 4), "κ / L: how many may stay at a fork"
        found.append(Knob("budget", "Streams a token", kappa, config.budget, 1, most, 0.25, field=True))
    return found


class Player:
    """One model, and the texts that it is asked for.

    Args:
        path: as the command was given it.
        model: keeps the contract.
        data, layout: how its prompts become tokens.
    """

    def __init__(
        self, path: str, model: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, layout: Layout
    ) -> None:
        self.path, self.model, self.tokenizer, self.data, self.layout = path, model, tokenizer, data, layout
        self.knobs = [*thought_knobs(model, layout), *sampling_knobs(model, layout)]

    def options(self, prompt: str, values: Sequence[float | None]) -> GenerateOptions:
        """The options of `mentalese generate` that say the same as the page's settings.

        Args:
            values: of `knobs`, in order; `None`: left empty.
        """
        at = {knob.name: knob.own if value is None else value for knob, value in zip(self.knobs, values, strict=True)}
        changed = [knob for knob in self.knobs if at[knob.name] != knob.own]
        given: dict[str, Any] = {knob.name: at[knob.name] for knob in changed if not knob.field}
        given["config"] = tuple(f"{knob.name}={at[knob.name]}" for knob in changed if knob.field)
        if at["temperature"] == 0:  # nothing is drawn, so that there is nothing to restrict
            given = {name: value for name, value in given.items() if name not in ("temperature", "top_p", "top_k")}
            given["greedy"] = bool(hugging_face_model(self.model).generation_config.do_sample)
        return GenerateOptions(prompt=(prompt,), **given)

    def command(self, options: GenerateOptions) -> str:
        """What to type for the same text."""
        words = ["mentalese", "generate", self.path]
        for field in dataclasses.fields(options):
            if (value := getattr(options, field.name)) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                first, *more = [""] if value is True else map(str, value if isinstance(value, tuple) else [value])
                words += [f"{flag}={first}"] if first.startswith("-") else filter(None, [flag, first])
                words += more
        return shlex.join(words)

    def write(self, options: GenerateOptions, stopped: threading.Event) -> Generator[str, None, None]:
        """The prompt and all that follows it, longer each time; a text that grows in no order comes at once.

        Args:
            stopped: ends it at the next token once it is set.

        Raises:
            InputError: what `mentalese generate` refuses.
        """
        model, layout = self._asked(options)
        kwargs = options.generation() | options.inference(hugging_face_model(model).generate)
        kwargs |= {"max_new_tokens": options.max_new_tokens, "seed": options.seed}
        if "show_progress" in kwargs:
            kwargs["show_progress"] = False

        def stop(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((input_ids.shape[0],), stopped.is_set(), device=input_ids.device)

        [prompt] = options.prompt
        if not model.causal:
            yield generate_text(model, self.tokenizer, [prompt], self.data, layout, stopping_criteria=[stop], **kwargs)[
                0
            ]
            return
        written = layout.prompt_text(prompt)
        new = stream_text(model, self.tokenizer, prompt, self.data, layout, stopping_criteria=[stop], **kwargs)
        with closing(new) as pieces:
            for piece in pieces:
                yield (written := written + piece)

    def _asked(self, options: GenerateOptions) -> tuple[Any, Layout]:
        """The model and its layout under these options; the weights are shared."""
        layout = self.layout.at(options.stage, options.latents)
        if not options.config:
            return self.model, layout
        model = copy.copy(self.model)
        model.config = with_fields(model.config, config_fields(options.config))
        return model, layout

    def thoughts(self, options: GenerateOptions, written: str) -> str:
        """The page of what the model thinks of a text that it wrote, or of a question and its own answer."""
        model, layout = self._asked(options)
        asked = {} if options.fast_steps is None else {"fast_steps": options.fast_steps}
        if layout.questions:
            question = layout.encode_prompts(options.prompt, self.tokenizer, self.data)["input_ids"][0]
            answer = written.removeprefix(layout.prompt_text(options.prompt[0]))
            ids = corpus_encoder(self.tokenizer).encode(answer, add_special_tokens=False).ids
            found = trace(model, self.tokenizer, torch.cat([question, torch.tensor(ids, dtype=torch.long)]), **asked)
        else:
            found = think(model, self.tokenizer, written, self.data, layout, **asked)
        size = count_parameters(model)["total"]
        title, names = "What it thought", labels([self.path])
        return thought_page(payload([found], names=names, parameters=[size], title=title, text=written))


# -- the page ----------------------------------------------------------------------------------------------------------

_STYLE = """
footer{display:none!important}
.about h1{margin:0;font-size:1.35rem;font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}
.about p{margin:.25rem 0 0;color:var(--body-text-color-subdued)}
.text{min-height:7rem;font-size:1.05rem;line-height:1.65;white-space:pre-wrap;overflow-wrap:anywhere}
.text .given{color:var(--body-text-color-subdued)}
.said{min-height:1.5rem;margin:0;color:var(--body-text-color-subdued)}
.said.error{color:var(--error-text-color)}
.thoughts{display:block;width:100%;height:85vh;border:0;border-top:1px solid var(--border-color-primary)}
"""


def build(player: Player) -> gr.Blocks:
    """The page, not yet served."""
    stops: dict[str | None, threading.Event] = {}  # by session: a reader's own button stops no other's text

    def begin(request: gr.Request) -> tuple[Any, ...]:
        stops.setdefault(request.session_hash, threading.Event())
        return gr.update(interactive=False), gr.update(interactive=True), _said("Waiting …")

    def answer(request: gr.Request, prompt: str, *values: float | None) -> Iterator[tuple[Any, ...]]:
        stopped = stops.setdefault(request.session_hash, threading.Event())  # asked again before the end, it is anew
        options = player.options(prompt, values)
        given, written = player.layout.prompt_text(prompt), ""
        yield _text(given, given), _said("Thinking …"), "", player.command(options)
        try:
            if not stopped.is_set():
                with closing(player.write(options, stopped)) as texts:  # a reader who leaves stops the model
                    for written in texts:
                        yield _text(given, written), _said("Writing …"), gr.skip(), gr.skip()
            end = "Stopped." if stopped.is_set() else ""
            if written:
                yield gr.skip(), _said(f"{end} Looking at its thoughts …"), gr.skip(), gr.skip()
                yield gr.skip(), _said(end), _frame(player.thoughts(options, written)), gr.skip()
            else:
                yield gr.skip(), _said(end), gr.skip(), gr.skip()
        except InputError as error:
            yield gr.skip(), _said(str(error), error=True), gr.skip(), gr.skip()
        finally:
            stops.pop(request.session_hash, None)

    def end() -> tuple[Any, Any]:
        return gr.update(interactive=True), gr.update(interactive=False)

    def stop(request: gr.Request) -> None:
        if request.session_hash in stops:
            stops[request.session_hash].set()

    with gr.Blocks(title=f"{player.path} · mentalese", analytics_enabled=False) as page:
        gr.HTML(_about(player))
        with gr.Row():
            with gr.Column(scale=3):
                prompt = gr.Textbox(label="Question" if player.layout.questions else "Prompt", lines=3)
                with gr.Row():
                    go, halt = gr.Button("Write", variant="primary"), gr.Button("Stop", interactive=False)
                text, said = gr.HTML(_text("", "")), gr.HTML(_said(""))
                command = gr.Textbox(label="The same on the command line", interactive=False)
            with gr.Column(scale=2, min_width=280):
                knobs = [knob.component() for knob in player.knobs]
        frame = gr.HTML()

        hidden: Any = {"api_visibility": "private", "show_progress": "hidden"}
        asked = gr.on([go.click, prompt.submit], begin, outputs=[go, halt, said], queue=False, **hidden)
        outputs = [text, said, frame, command]
        answered = asked.then(answer, [prompt, *knobs], outputs, concurrency_limit=1, **hidden)
        answered.then(end, outputs=[go, halt], queue=False, **hidden)
        halt.click(stop, queue=False, **hidden)
    return page


def _about(player: Player) -> str:
    name = player.model.config.model_type
    family = next((f.description for f in families().values() if name in f.classes), name)
    parameters = short_count(count_parameters(player.model)["total"])
    return f'<div class="about"><h1>{escape(player.path)}</h1><p>{escape(family)}; {parameters} parameters</p></div>'


def _text(given: str, written: str) -> str:
    """A text, of which `given` is the reader's own."""
    own = given if written.startswith(given) else ""  # masks are filled in inside it
    new = escape(written[len(own) :])
    return f'<section class="text" aria-label="Text"><span class="given">{escape(own)}</span>{new}</section>'


def _said(sentence: str, *, error: bool = False) -> str:
    kind = 'class="said error" role="alert"' if error else 'class="said" role="status"'
    return f"<p {kind}>{escape(sentence)}</p>"


def _frame(page: str) -> str:
    """A page in a frame that may run its own script and reach nothing else."""
    title = "What the model thought"
    return f'<iframe class="thoughts" title="{title}" sandbox="allow-scripts" srcdoc="{escape(page)}"></iframe>'


# -- the server --------------------------------------------------------------------------------------------------------


def check_address(host: str, port: int) -> None:
    """Raises `InputError` where a page cannot be served there."""
    if not 1 <= port <= 65535:
        raise InputError(f"--port is {port}: give one from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise InputError(f"--port is {port}: only an administrator may use it, give one from 1024 up") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(f"--port is {port}: another program uses it, give another port") from None
            raise InputError(f"--host is {host!r}: this machine has no such IPv4 address, leave it out") from None


def serve(page: gr.Blocks, host: str, port: int) -> str:
    """Serves the page from a thread of its own until `page.close()`; returns its address."""
    font = [gr.themes.Font(name) for name in ("system-ui", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "monospace")]
    theme = gr.themes.Default(primary_hue="blue", neutral_hue="slate", font=font, font_mono=mono)
    muted, muted_dark = "#5d6673", "#9aa3b0"  # as on pages of thoughts; Gradio's own are too pale to read
    theme.set(
        body_background_fill_dark="#121418", block_background_fill_dark="#1b1e24", border_color_primary_dark="#2d323a",
        body_text_color_subdued=muted, body_text_color_subdued_dark=muted_dark,
        block_info_text_color=muted, block_info_text_color_dark=muted_dark,
    )  # fmt: skip
    page.queue(default_concurrency_limit=None)
    _, address, _ = page.launch(
        server_name=host, server_port=port, theme=theme, css=_STYLE, share=False, inbrowser=False, quiet=True,
        prevent_thread_lock=True, show_error=True, footer_links=[], run_history=False, pwa=False, ssr_mode=False,
        mcp_server=False, enable_monitoring=False,
    )  # fmt: skip
    return str(address)


def play(path: str, host: str, port: int, device: Any) -> None:
    """Serves the page of a saved model until Ctrl+C.

    Raises:
        InputError: the port is taken, the host is none of this machine's, or what `load_model` refuses.
    """
    check_address(host, port)
    model, tokenizer = load_model(path, device)
    recipe = saved_recipe(path)
    data, layout = (recipe.data, recipe.layout) if recipe else (DataConfig(), Packed())
    player = Player(path, model, tokenizer, data, layout)
    page = build(player)
    try:
        print(f"{path}: open {serve(page, host, port)} in a browser; Ctrl+C ends it", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print()
    finally:
        page.close(verbose=False)
