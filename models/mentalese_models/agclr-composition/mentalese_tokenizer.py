"""Opens this checkpoint by `trust_remote_code=True`. Its code is in the package `mentalese`."""

try:
    from mentalese.models.text_tokenizer import MentaleseTokenizer
except ImportError as error:
    raise ImportError(
        "this checkpoint needs the package mentalese: "
        "pip install 'mentalese @ git+https://github.com/mentalese/mentalese'"
    ) from error

__all__ = ["MentaleseTokenizer"]
