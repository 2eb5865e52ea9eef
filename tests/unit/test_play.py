"""The page to write with a model says what `mentalese generate` says: the same options, the same text."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import re
import shlex
import socket
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import tyro

from mentalese import DataConfig, cli, get_recipe
from mentalese.data.sources import open_source
from mentalese.data.store import prepare
from mentalese.errors import InputError
from mentalese.models.build import build_model
from mentalese.models.generate_options import GenerateOptions
from mentalese.models.saved import Saved
from mentalese.models.trace import ThoughtTrace
from mentalese.viewer import play
from mentalese.viewer.play import Example, Player, examples, thought_knobs
from support import shrink

THINKS = {
    "coconut/tiny": ["latents"],
    "colar/tiny": [],
    "thoughtbubbles/tiny": ["budget"],
    "latent_thought/tiny": ["fast_steps", "infer_every"],
    "latent_thought/tiny-vae": ["infer_every"],
    "thought_gestalt/tiny": [],
    "gpt2/tiny": [],
    "mdlm/tiny": [],
}
CHANGED = {"latents": 1, "budget": 1.0, "fast_steps": 1, "infer_every": 2}
PROMPT = "Anna has a son called Paul. Paul"


@pytest.fixture(scope="module")
def player(request: pytest.FixtureRequest, corpus: Path) -> Player:
    """An untrained model of the named recipe, whose weights are large enough to tell texts apart."""
    recipe = shrink(get_recipe(getattr(request, "param", "gpt2/tiny")), corpus)
    _, tokenizer = prepare(recipe.data, recipe.layout, show=False)
    model = build_model(recipe.model, tokenizer, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5)
    reading = {"data": recipe.data, "layout": recipe.layout, "evaluation": recipe.evaluation}
    return Player(Saved(path="runs/a model", model=model, tokenizer=tokenizer, **reading))


every_family = pytest.mark.parametrize("player", THINKS, indirect=True, scope="module")


def settings(player: Player, **values: float | None) -> list[float | None]:
    """What the page starts with, and these in its place."""
    start = {knob.name: knob.own if knob.start is None else knob.start for knob in player.knobs}
    return list((start | {"max_new_tokens": 8} | values).values())


def parsed(command: str) -> GenerateOptions:
    return tyro.cli(GenerateOptions, args=shlex.split(command)[3:])


def text(player: Player, options: GenerateOptions) -> str:
    return [*player.write(options, threading.Event())][-1]


@every_family
def test_the_page_offers_the_thoughts_that_a_model_has(player: Player, request: pytest.FixtureRequest) -> None:
    thoughts = THINKS[request.node.callspec.params["player"]]
    sampling = ["max_new_tokens", "temperature", "top_p", "top_k", "seed"]
    assert [knob.name for knob in player.knobs] == [*thoughts, *sampling]


@every_family
def test_the_page_writes_what_the_command_line_writes(player: Player) -> None:
    options = player.options(PROMPT, settings(player, temperature=1.5, seed=3))
    kwargs = {"do_sample": True, "temperature": 1.5, "seed": 3, "max_new_tokens": 8}
    assert options.generation() == {"do_sample": True, "temperature": 1.5}
    assert [text(player, options)] == player.saved.generate(PROMPT, **kwargs)


@pytest.mark.parametrize("player", [name for name in THINKS if THINKS[name]], indirect=True, scope="module")
def test_each_thought_that_can_be_set_changes_what_is_written(player: Player) -> None:
    before = player.saved.model.config.to_dict()
    plain = {}
    for knob in thought_knobs(player.saved):
        changed = [
            text(player, player.options(PROMPT, settings(player, temperature=0, max_new_tokens=24, **given)))
            for given in ({}, {knob.name: CHANGED[knob.name]})
        ]
        plain[knob.name] = changed[0]
        assert changed[0] != changed[1], knob.name
    assert player.saved.model.config.to_dict() == before
    assert len(set(plain.values())) == 1


@pytest.mark.parametrize("player", ["coconut/tiny", "thoughtbubbles/tiny"], indirect=True, scope="module")
def test_the_command_shown_has_the_same_options(player: Player) -> None:
    thoughts = {knob.name: CHANGED[knob.name] for knob in thought_knobs(player.saved)}
    for prompt, values in (
        ("--greedy", settings(player)),
        ("Anna", settings(player, temperature=0, top_k=3)),
        ('It\'s <b>\nshe said "no"', settings(player, top_p=0.5, top_k=7, seed=11, **thoughts)),
    ):
        options = player.options(prompt, values)
        command = player.command(options)
        assert command.startswith("mentalese generate 'runs/a model' --prompt")
        assert parsed(command) == options


def test_only_what_differs_from_the_models_own_is_given(player: Player) -> None:
    settled = settings(player, temperature=0, max_new_tokens=GenerateOptions.max_new_tokens)
    assert player.command(player.options("Anna", settled)) == "mentalese generate 'runs/a model' --prompt Anna"


def test_an_empty_field_is_the_models_own(player: Player) -> None:
    empty = player.options("Anna", settings(player, top_k=None, seed=None))
    assert empty == player.options("Anna", settings(player))


def test_a_model_that_draws_by_itself_is_told_not_to(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player.saved.model.generation_config, "do_sample", True)
    assert player.options("Anna", settings(player, temperature=0, top_p=0.5)).generation() == {"do_sample": False}


def test_model_that_searches_with_beams_streams(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player.saved.model.generation_config, "num_beams", 3)
    options = player.options(PROMPT, settings(player, temperature=0))
    assert [text(player, options)] == player.saved.generate(PROMPT, num_beams=1, max_new_tokens=8)
    assert parsed(player.command(options)) == options


@pytest.mark.parametrize(("own", "chosen"), [(0, 50), (None, 0), (5, 0)])
def test_a_cut_can_be_set_and_switched_off(
    player: Player, monkeypatch: pytest.MonkeyPatch, own: int | None, chosen: int
) -> None:
    monkeypatch.setattr(player.saved.model.generation_config, "top_k", own)
    page = Player(player.saved)
    [knob] = [knob for knob in page.knobs if knob.name == "top_k"]
    assert (knob.own, knob.least) == (50 if own is None else own, 0)
    for value, given in ((knob.own, {}), (chosen, {"top_k": chosen})):
        options = page.options(PROMPT, settings(page, temperature=1.5, top_k=value))
        assert options.generation() == {"do_sample": True, "temperature": 1.5} | given


def test_text_grows_and_ends_where_it_is_stopped(player: Player) -> None:
    options = player.options(PROMPT, settings(player, temperature=0, max_new_tokens=60))
    whole = [*player.write(options, threading.Event())]
    assert all(later.startswith(text) for text, later in pairwise(whole))
    stopped = threading.Event()
    stopped.set()
    assert len([*player.write(options, stopped)][-1]) < len(whole[-1])


@every_family
def test_looking_at_thoughts_between_tokens_changes_no_token(
    player: Player, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(play, "_OFTEN", 0.0)
    monkeypatch.setattr(play, "_SHARE", 0)
    options = player.options(PROMPT, settings(player, temperature=1.5, seed=3, max_new_tokens=5))
    looks: list[ThoughtTrace] = []
    written = [*player.write(options, threading.Event(), looks.append)][-1]
    assert written == text(player, options)
    sizes = [len(look.input_ids) for look in looks[:-1]]
    if not player.saved.model.causal:
        assert not sizes, "its tokens are not written in order"
        return
    assert len(sizes) > 2, "thoughts are shown while the text grows"
    assert sizes == sorted({*sizes})
    drawn = player.drawn(looks[-2], PROMPT)["traces"][0]
    asked = player.saved.encode(PROMPT)["input_ids"].shape[1]
    assert (drawn["answer"] is not None) == player.saved.layout.questions
    assert drawn["answer"] is None or drawn["answer"]["start"] == asked
    final = player.drawn(looks[-1], PROMPT)["traces"][0]
    assert "".join(final["tokens"][:asked]) == "".join(drawn["tokens"][:asked])


@pytest.mark.parametrize("player", ["coconut/tiny", "colar/tiny"], indirect=True, scope="module")
def test_the_last_look_is_what_think_shows(player: Player) -> None:
    looks: list[ThoughtTrace] = []
    options = player.options(PROMPT, settings(player, temperature=0, max_new_tokens=9))
    pieces = [*player.write(options, threading.Event(), looks.append)]
    thought = player.saved.think(PROMPT, max_new_tokens=9)
    assert looks[-1].written == thought.written
    assert torch.equal(looks[-1].input_ids, thought.input_ids)
    assert len(pieces) >= len(thought.input_ids) - thought.written, "also where a token has no text"


def test_examples_come_from_the_model_data(player: Player) -> None:
    recipe = get_recipe("gpt2/tiny")
    saved = dataclasses.replace(player.saved, recipe=recipe)
    topics = examples(saved.on("builtin:topics:count=40"), 2)
    assert [one.question for one in topics] == [False, False]
    assert all(len(one.prompt.split()) == 16 for one in topics)
    assert len({one.label for one in topics}) == 2
    text = next(open_source("builtin:topics:count=40").documents("test")).text
    assert text.startswith(f"{topics[0].prompt} {topics[0].rest}")
    (recall,) = examples(saved.on("builtin:recall:count=40"), 1)
    assert recall.prompt.endswith("?")
    assert recall.rest.split()[1] == "."
    asked = dataclasses.replace(saved, layout=get_recipe("coconut/tiny").layout)
    (question,) = examples(asked.on("builtin:composition:count=40"), 1)
    assert question.prompt.endswith("=")
    assert sorted(question.rest) == ["a", "b", "c"]
    assert examples(saved.on("text.txt")) == examples(dataclasses.replace(saved, recipe=None)) == []
    last = dataclasses.replace(saved, data=DataConfig(source="builtin:families", held_out=20))
    (shown,) = examples(last, 1)
    assert next(open_source("builtin:families", held_out=20).documents("test")).text.startswith(shown.prompt)
    assert shown != examples(saved.on("builtin:families"), 1)[0]


def test_the_right_answer_of_an_example_is_known(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    assert player.known(PROMPT) is None
    monkeypatch.setitem(player.__dict__, "examples", [Example(PROMPT, "Paul", True)])
    found = dataclasses.replace(player.saved.think(PROMPT), written=3)
    assert player.drawn(found, PROMPT)["traces"][0]["answer"]["expected"] == "Paul"
    assert player.drawn(found, "Another")["traces"][0]["answer"]["expected"] is None
    assert "The right answer: <b>Paul</b>" in play._rest(player.known(PROMPT))


def test_prompt_without_room_is_refused(player: Player) -> None:
    options = player.options("a b " * 300, settings(player))
    with pytest.raises(InputError, match="the model's context is"):
        text(player, options)


# -- the page and its server -------------------------------------------------------------------------------------------


def test_what_a_reader_types_stays_text() -> None:
    nasty = '</span><img src=x onerror=alert(1)>&"'
    for shown in (play._text(nasty, f"{nasty} and {nasty}"), play._status(nasty), play._frame(nasty)):
        assert "<img" not in shown
        assert "&lt;img src=x onerror=alert(1)&gt;&amp;&quot;" in shown


def test_the_readers_own_words_are_told_from_the_models() -> None:
    assert '<span class="given">Anna</span> sang' in play._text("Anna", "Anna sang")
    assert '<span class="given"></span>Anna sang' in play._text("Anna <|mask|>", "Anna sang")


def test_thoughts_have_a_frame_that_reaches_nothing() -> None:
    frame = play._frame("<p>thoughts")
    assert re.search(r'sandbox="([^"]*)"', frame)[1] == "allow-scripts allow-downloads"  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # Gradio leaves event loops open
def test_page_neither_tracks_nor_offers_an_api(player: Player) -> None:
    page = play.build(player)
    assert not page.analytics_enabled
    assert {event.api_visibility for event in page.fns.values()} == {"private"}
    asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_text_asked_for_again_can_still_be_stopped(player: Player) -> None:
    page = play.build(player)
    events = {event.name: event.fn for event in page.fns.values()}
    begin, answer, stop = (events[name] for name in ("begin", "answer", "stop"))
    reader = SimpleNamespace(session_hash="a")
    values = settings(player, temperature=0, max_new_tokens=60)
    for _ in range(2):
        begin(reader)
        said = answer(reader, PROMPT, *values)
        next(said)
        begin(reader)  # by the keyboard, while the first one is written
        stop(reader)
        assert "Stopped." in str(list(said))
    assert "Stopped." not in str(list(answer(reader, PROMPT, *values)))
    asyncio.get_event_loop().close()
    asyncio.set_event_loop(None)
    gc.collect()


@pytest.mark.parametrize("port", [0, 70_000])
def test_a_port_that_there_is_not_is_refused(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["play", "no-such-model", "--port", str(port)]) == 2
    assert f"port is {port}: " in capsys.readouterr().err


def test_port_in_use_and_foreign_host_are_refused_early(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["play", "no-such-model", "--port", str(port)]) == 2
        assert f"--port is {port}: no page can be served there" in capsys.readouterr().err
    assert cli.main(["play", "no-such-model", "--port", str(port), "--host", "192.0.2.1"]) == 2
    assert "--host is '192.0.2.1' and" in capsys.readouterr().err
    assert cli.main(["play", "no-such-model", "--port", str(port)]) == 2
    assert "no-such-model contains no model" in capsys.readouterr().err


def test_without_gradio_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert cli.main(["play", "no-such-model"]) == 2
    assert "pip install 'mentalese[play] @ git+" in capsys.readouterr().err


def test_every_option_of_the_page_is_one_of_the_command_line(player: Player) -> None:
    known = {field.name for field in dataclasses.fields(GenerateOptions)}
    assert {knob.name for knob in player.knobs if not knob.field} <= known
