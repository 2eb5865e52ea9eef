"""`mentalese think`: a page that shows what a model thinks of a text."""

from __future__ import annotations

from pathlib import Path

from mentalese.commands.options import ModelPath, given_text
from mentalese.errors import InputError
from mentalese.models.generate_options import config_fields
from mentalese.values import NonNegative, Place, Positive, Texts, checked_dataclass


@checked_dataclass("")
class Options:
    """Shows what a model thinks of a text, on a page that needs no network.

    Models trained on questions and chat models answer the text.

    Attributes:
        model: the folder of a run or a model, hub:NAME, models:NAME or gguf:FILE.
        text: what to think about.
        file: a text file instead.
        raw: read the text as it is, without the tokenizer's chat template.
        answer: the right answer, if the text is a question: the page says whether the model's own is right.
        against: another model to show next to it, without the options below; or removed or noisy: the same model with
            the same options, without its thoughts, or with noise on them.
        influence: also measure what the rest of the text, or the answer, loses if only one thought is replaced.
        patch: another text, whose thoughts take these places, one at a time, instead of a constant.
        out: the page's file.
        config: FIELD=VALUE ...: other values of the model's config, as far as the weights allow.
        stage: ask at this stage of the curriculum (not set: the last one of training).
        latents: number of latent tokens after the question (not set: as in training).
        max_new_tokens: the most new tokens of an answer (not set: as in the model's recipe).
    """

    model: ModelPath
    text: str | None = None
    file: Place | None = None
    raw: bool = False
    answer: str | None = None
    against: str | None = None
    influence: bool = False
    patch: str | None = None
    out: Place = Path("think.html")
    config: Texts = ()
    stage: NonNegative | None = None
    latents: NonNegative | None = None
    max_new_tokens: Positive | None = None


def run(options: Options) -> None:
    text = given_text(options.text, options.file)
    if text is None:
        raise InputError("--text and --file are missing: use one of them")
    text = text if options.file is None else text.removesuffix("\n")  # the end of the file's last line
    if not text.strip():
        raise InputError(f"--{'text' if options.file is None else 'file'} is empty: use a text with at least one word")
    from mentalese.files import check_place, write_text

    check_place(options.out, "--out", options.file)
    from mentalese.models.config import require_own_thoughts
    from mentalese.models.saved import load
    from mentalese.provenance import command
    from mentalese.viewer import think_page

    fields = config_fields(options.config)
    saved = load(options.model, config=fields).at(options.stage, options.latents)
    if options.raw:
        saved = saved.without_chat()
    against = None
    if options.against in ("removed", "noisy"):  # not swapped: there is no other text
        require_own_thoughts(saved.model.config, "--against", options.against)
        without = load(options.model, config=fields | {"thought_control": options.against})
        against = without.at(options.stage, options.latents)
    elif options.against is not None:
        against = load(options.against)
    if options.raw and against is not None:
        against = against.as_text()
    names = ("max_new_tokens", "influence", "patch")
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    page = think_page(saved, text, against=against, answer=options.answer, command=command(), **settings)
    write_text(options.out, page)
    print(f"{options.out} shows what {options.model} thought")
