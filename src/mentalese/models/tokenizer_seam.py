"""Features of transformers that tokenizers need and that it does not promise; listed in `transformers_seam`'s table.

It is a separate file because tokenizers are registered when `mentalese` is imported, and models import slowly.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Encoding
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TruncationStrategy as TruncationStrategy
from transformers.utils import PaddingStrategy as PaddingStrategy


class ReadingTokenizer(PreTrainedTokenizerFast):
    """A fast tokenizer whose subclass encodes texts itself."""

    def encode_texts(
        self, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any
    ) -> BatchEncoding:
        """Return the tokens of one text or several.

        The options are the tokenizer's keywords, and strategies of padding and truncation.
        """
        return super()._encode_plus(text, text_pair, add_special_tokens=add_special_tokens, **options)

    def _encode_plus(self, *texts: Any, **options: Any) -> BatchEncoding:
        return self.encode_texts(*texts, **options)

    def columns(self, encoding: Encoding, **returned: bool) -> dict[str, list[list[int]]]:
        """Return the lists of a `BatchEncoding` for one row, as `return_NAME` selects them."""
        return self._convert_encoding(encoding, **returned)[0]

    def warn_if_too_long(self, ids: list[int], max_length: int | None, verbose: bool) -> None:
        """Warn once about more tokens than the model can read."""
        self._eventual_warn_about_too_long_sequence(ids, max_length, verbose)

    def remote_class(self) -> dict[str, list[str | None]]:
        """Return the class that opens the tokenizer where this package is not imported."""
        raise NotImplementedError(f"{type(self).__name__} needs remote_class")

    @property
    def _auto_map(self) -> dict[str, list[str | None]]:
        return self.remote_class()
