"""`mentalese generate`: continues a text."""

from __future__ import annotations

import sys
from pathlib import Path

from mentalese.commands.options import ModelPath, read_text
from mentalese.errors import InputError
from mentalese.models.generate_options import GenerateOptions, config_fields
from mentalese.screen import only_result_on_stdout, print_json
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options(GenerateOptions):
    """Continues a text. One prompt streams on a terminal; many run in batches.

    Attributes:
        model: the folder of a run or a model, hub:NAME, models:NAME or gguf:FILE.
        json: print a list of prompts and texts as JSON.
    """

    model: ModelPath
    json: bool = False


def run(options: Options) -> None:
    kwargs = options.generation()
    prompts = list(options.prompt) or (_lines(options.file) if options.file else [])
    if not prompts or (options.prompt and options.file):
        raise InputError("there is no prompt, or --prompt and --file are both given: use one of them")

    from mentalese.models.saved import load

    saved = load(options.model, config=config_fields(options.config)).at(options.stage, options.latents)
    if options.raw:
        saved = saved.without_chat()
    kwargs |= options.inference(saved.model.generate)
    kwargs |= {"max_new_tokens": options.max_new_tokens, "seed": options.seed}
    beams = options.num_beams or saved.model.generation_config.num_beams or 1
    one_stream = len(prompts) == 1 and beams == 1 and saved.model.causal and not options.json
    if one_stream and sys.stdout.isatty():
        pieces = saved.stream(prompts[0], **kwargs)
        first = next(pieces, "")  # an error comes before anything is printed
        print(saved.prompt_text(prompts[0]) + first, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return
    with only_result_on_stdout():
        texts = saved.generate(prompts, **kwargs)
    if options.json:
        print_json([{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts)])
    else:
        print("\n\n".join(texts))


def _lines(path: Path) -> list[str]:
    return [line for line in read_text(path).split("\n") if line.strip()]  # no other breaks
