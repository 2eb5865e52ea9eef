"""`mentalese generate`: continues a text."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mentalese.commands.options import read_one
from mentalese.commands.shared import device, only_result_on_stdout, print_json, read_text
from mentalese.errors import InputError
from mentalese.models.generate_options import GenerateOptions, config_fields


@dataclass(kw_only=True)
class Options(GenerateOptions):
    __doc__ = GenerateOptions.__doc__

    RARE: ClassVar[tuple[str, ...]] = ("config", "infer_every", "posterior_seed")
    json: bool = False


def run(words: list[str]) -> None:
    path, options = read_one(Options, words, "generate", "MODEL")
    kwargs = options.generation()
    prompts = list(options.prompt) + (_lines(options.file) if options.file else [])
    if not prompts:
        raise InputError("there is no prompt: use --prompt TEXT or --file FILE")

    from mentalese.data.layouts import Packed
    from mentalese.models.adapter import hugging_face_model
    from mentalese.models.checkpoints import load_model, saved_recipe
    from mentalese.models.generation import generate_text, stream_text
    from mentalese.recipe import DataConfig

    model, tokenizer = load_model(path, device(), fields=config_fields(options.config))
    kwargs |= options.inference(hugging_face_model(model).generate)
    recipe = saved_recipe(path)
    data, layout = (recipe.data, recipe.layout) if recipe else (DataConfig(), Packed())
    layout = layout.at(options.stage, options.latents)
    length: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "seed": options.seed}
    one_stream = len(prompts) == 1 and options.num_beams == 1 and model.causal and not options.json
    if one_stream and sys.stdout.isatty():
        pieces = stream_text(model, tokenizer, prompts[0], data, layout, **length, **kwargs)
        first = next(pieces, "")  # an error comes before anything is printed
        print(layout.prompt_text(prompts[0]) + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return
    with only_result_on_stdout():
        texts = generate_text(model, tokenizer, prompts, data, layout, **length, **kwargs)
    if options.json:
        print_json([{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts)])
    else:
        print("\n\n".join(texts))


def _lines(path: Path) -> list[str]:
    return [line for line in read_text(path).splitlines() if line.strip()]
