"""Opens this checkpoint by `trust_remote_code=True`. Its code is in the package `mentalese`."""

try:
    from mentalese.families.thought_gestalt.config import ThoughtGestaltConfig
    from mentalese.families.thought_gestalt.model import ThoughtGestaltForCausalLM
except ImportError as error:
    raise ImportError(
        "this checkpoint needs the package mentalese: "
        "pip install 'mentalese @ git+https://github.com/mentalese/mentalese'"
    ) from error

__all__ = ["ThoughtGestaltConfig", "ThoughtGestaltForCausalLM"]
