"""The default model's vocabulary, once: a compiler takes a while to read it."""

from __future__ import annotations

import pytest

from services.engine.grammar.bounded import BoundedCompiler
from services.engine.grammar.compiler import GrammarCompiler
from tests.support.engines import default_files


@pytest.fixture(scope="package")
def compiler() -> GrammarCompiler:
    files = default_files()
    return GrammarCompiler(files.tokenizer_files["tokenizer.json"], files.vocab_size, files.eos_token_ids)


@pytest.fixture(scope="package")
def bounded_compiler() -> BoundedCompiler:
    files = default_files()
    return BoundedCompiler(files.tokenizer_files["tokenizer.json"], files.vocab_size, files.eos_token_ids)
