"""`mentalese push`: a trained model, its tokenizer and its card, to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mentalese.commands.options import ModelPath
from mentalese.errors import InputError, require
from mentalese.screen import print_table
from mentalese.values import checked_dataclass


@checked_dataclass("")
class Options:
    """Uploads a run's best model with its tokenizer and card to the Hugging Face hub, into the repository NAME/NAME.

    Attributes:
        model: the folder of a run or a model.
        repo: the repository.
        dry_run: list the files and their sizes, print the card, and stop; needs no network.
        private: make a private repository, if there is none yet.
    """

    model: ModelPath
    repo: Annotated[Positional[str], arg(metavar="REPO")]
    dry_run: bool = False
    private: bool = False


def run(options: Options) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    from mentalese.files import check_files
    from mentalese.models.checkpoints import model_folder
    from mentalese.models.tensor_files import is_checkpoint
    from mentalese.training.model_card import NAME

    path, repo = options.model, options.repo
    require(not is_checkpoint(path), "MODEL", path, "it is a checkpoint and has no card, use the run's folder")
    folder = model_folder(path)
    card = folder / NAME
    require((folder / "config.json").is_file(), "MODEL", path, "it contains no model, use the folder of a run or model")
    require(card.is_file(), "MODEL", path, f"it has no card, write {card} or train again")
    check_files(folder, "files", "weights", "adapter")
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"REPO is {repo!r}: use NAME/NAME ({' '.join(str(error).split())})") from error
    if not options.dry_run:
        print(f"{repo} is at {_upload(folder, repo, options.private)}")
        return
    sizes = {file: file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()}
    rows = [(str(file.relative_to(folder)), f"{size:,}") for file, size in sizes.items()]
    print_table(("file", "bytes"), [*rows, ("all", f"{sum(sizes.values()):,}")])
    print(f"\n{card.read_text(encoding='utf-8')}\nNothing was uploaded to {repo}.")


def _upload(folder: Path, repo: str, private: bool) -> str:
    """Upload all files in one commit; returns the address of the repository."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    from mentalese.network import transport_error

    api = huggingface_hub.HfApi()
    try:
        api.whoami()
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload a model trained with mentalese")
    except (LocalTokenNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, transport_error()) as error:
        reason = " ".join(str(error).split())
        remedy = "connect and try again"
        if isinstance(error, LocalTokenNotFoundError):
            remedy = "run `hf auth login` or set HF_TOKEN"
        elif isinstance(error, HfHubHTTPError):
            remedy = "use a token that may write there"
        raise InputError(f"REPO is {repo!r}: the upload failed ({reason}), {remedy}") from error
    return str(address)
