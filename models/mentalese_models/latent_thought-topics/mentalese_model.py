"""Opens this checkpoint by `trust_remote_code=True`. Its code is in the package `mentalese`."""

try:
    from mentalese.families.latent_thought.config import LTMConfig
    from mentalese.families.latent_thought.model import LTMForCausalLM
except ImportError as error:
    raise ImportError(
        "this checkpoint needs the package mentalese: "
        "pip install 'mentalese @ git+https://github.com/mentalese/mentalese'"
    ) from error

__all__ = ["LTMConfig", "LTMForCausalLM"]
