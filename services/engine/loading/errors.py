"""Why a model cannot be loaded. Each error's text stands on its own: an operator reads it when the engine stops."""

from __future__ import annotations


class LoadingError(Exception):
    """A model cannot be loaded."""


class ModelNotFound(LoadingError):
    """Nothing is where `--model` points, or the Hub does not give it."""


class UnknownModelForm(LoadingError):
    """`--model` is neither `default`, a .gguf file, a folder, nor a Hub id."""


class PackageMissing(LoadingError):
    """The Python package that carries the default model is not installed."""


class WeightsMissing(LoadingError):
    """A model folder without usable safetensors files."""


class FileMissing(LoadingError):
    """A model folder lacks a file that serving needs."""


class DamagedFile(LoadingError):
    """A file is not what its name or header says, or ends too early."""


class UnsupportedArchitecture(LoadingError):
    """The GGUF file describes a network that has no counterpart here."""


class UnsupportedQuantization(LoadingError):
    """The GGUF file stores tensors in a format that cannot be read."""


class UnsupportedTokenizer(LoadingError):
    """The tokenizer cannot be rebuilt exactly, so it is not rebuilt at all."""
