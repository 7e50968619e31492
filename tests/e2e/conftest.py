"""Roads that many tests share. A test that kills services or changes flags starts its own `Stack`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from tests.e2e.sixty_answers import Answered, answers
from tests.e2e.sixty_requests import REAL, SCRIPTED
from tests.e2e.tool_texts import SCRIPT
from tests.support.stack import Stack


@pytest.fixture(scope="session")
def real_stack() -> Iterator[Stack]:
    """The default model in float32, so that greedy text can be compared exactly."""
    with Stack(engine_flags="--dtype float32 --kv-cache-memory 1GiB") as stack:
        yield stack


@pytest.fixture(scope="session")
def scripted_stack() -> Iterator[Stack]:
    """The scripted executor: no weights, its texts on a clock."""
    with Stack(engine_flags="--executor scripted") as stack:
        yield stack


@pytest.fixture(scope="session")
def tool_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The scripted executor with texts that have tool calls and thoughts in them."""
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    flags = f"--executor scripted --step-ms 1 --script {script}"
    with Stack(engine_flags=flags, gateway_flags="--reasoning-format think") as stack:
        yield stack


@pytest.fixture(scope="session")
def real_answers(real_stack: Stack) -> dict[str, Answered]:
    """What the real model answers to the sixty requests that are for it."""
    return answers(real_stack, REAL)


@pytest.fixture(scope="session")
def scripted_answers(tool_stack: Stack) -> dict[str, Answered]:
    """What the script answers to those that are for it."""
    return answers(tool_stack, SCRIPTED)


@pytest.fixture(scope="session")
def reference_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """transformers' own model in float32, and tokenizer, of the default model."""
    import torch  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: PLC0415

    torch.set_num_threads(1)  # two threads that wait for each other on busy cores are slower than one
    source = resolve("default")
    files = read_model_files(source)
    folder = tmp_path_factory.mktemp("tokenizer")
    for name, content in files.tokenizer_files.items():
        (folder / name).write_bytes(content)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**files.config), dtype=torch.float32)
    # transformers' own reader of the file: from_pretrained(gguf_file=...) would need accelerate
    weights = load_gguf_checkpoint(source.path, return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert missing == ["lm_head.weight"], missing  # tied to the embedding
    model.tie_weights()
    return model.eval(), tokenizer
