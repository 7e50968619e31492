"""The executor that replays texts on a clock."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from services.engine.executor.base import ExecutorInfo
from services.engine.executor.scripted import SENTENCE, Script, ScriptedExecutor, ScriptEntry, ScriptError
from services.engine.loading.files import read_model_files
from services.engine.loading.source import resolve
from services.engine.plan import SamplingJob, SamplingParams, SequencePlan, StepPlan

INFO = ExecutorInfo(num_pages=8, page_size=4, vocab_size=100, max_model_len=32)


def entry(sequence_id, output, *, prompt=(1, 2), tokens=1, samples=True, forbidden=()):
    jobs = [SamplingJob(SamplingParams(), list(prompt), list(output), frozenset(forbidden))] if samples else []
    return SequencePlan(sequence_id, [0] * tokens, 0, [0], jobs)


def executor(*ids):
    return ScriptedExecutor(INFO, Script((ScriptEntry(None, ids),), decode=str), step_ms=0)


def test_only_sequences_that_sample_get_a_token():
    result = executor(5, 6, 7).execute(
        StepPlan(3, [entry(1, []), entry(2, [5], tokens=4, samples=False), entry(3, [5, 6])])
    )
    assert result.number == 3
    assert result.token_ids == {1: [5], 3: [7]}


def test_the_position_alone_decides_so_that_a_preempted_sequence_goes_on_where_it_was():
    replay = executor(5, 6, 7)
    assert replay.execute(StepPlan(1, [entry(1, [5])])).token_ids == {1: [6]}
    assert replay.execute(StepPlan(2, [entry(9, [])])).token_ids == {9: [5]}  # 1 was preempted
    assert replay.execute(StepPlan(3, [entry(1, [5, 6], tokens=4)])).token_ids == {1: [7]}


def test_a_sequence_gets_one_token_per_job():
    plan = entry(1, [5], tokens=3)
    plan.sampling = [SamplingJob(SamplingParams(), [1, 2], [5, 6, 9][:count]) for count in (1, 2, 3)]
    assert executor(5, 6, 7).execute(StepPlan(1, [plan, entry(2, [])])).token_ids == {1: [6, 7, 5], 2: [5]}


def test_forbidden_ids_are_passed_over():
    assert executor(5, 6, 7).execute(StepPlan(1, [entry(1, [], forbidden={5, 6})])).token_ids == {1: [7]}
    assert executor(0).execute(StepPlan(1, [entry(1, [], forbidden={0, 1})])).token_ids == {1: [2]}


class Clock:
    """What is slept is what passes."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 6))
        self.now += seconds


def test_decode_steps_keep_to_the_clock_and_prefills_do_not_wait():
    clock = Clock()
    script = Script((ScriptEntry(None, (5, 6, 7)),), decode=str)
    replay = ScriptedExecutor(INFO, script, 25.0, clock, clock.sleep)
    prefill = StepPlan(1, [entry(1, [], tokens=3)])
    decode = StepPlan(2, [entry(1, [5])])
    replay.execute(decode)
    clock.now += 0.010
    replay.execute(decode)
    replay.execute(prefill)
    replay.execute(StepPlan(4, [*prefill.sequences, *decode.sequences]))
    clock.now += 0.005
    replay.execute(decode)
    clock.now += 0.100  # idle: what was missed is not made up for
    replay.execute(decode)
    replay.execute(decode)
    assert clock.slept == [0.015, 0.020, 0.025]


@pytest.fixture(scope="module")
def model_files():
    return read_model_files(resolve("default"))


def test_without_a_script_a_sentence_without_end(model_files):
    tokenizer_json = model_files.tokenizer_files["tokenizer.json"]
    ids = Script.endless(tokenizer_json).token_ids_for([1, 2, 3])
    assert Tokenizer.from_buffer(tokenizer_json).decode(list(ids)) == SENTENCE
    assert not set(ids) & model_files.eos_token_ids


def test_the_first_entry_that_occurs_in_the_prompt_is_replayed(model_files, tmp_path):
    tokenizer_json, eos = model_files.tokenizer_files["tokenizer.json"], model_files.eos_token_ids
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    outputs = [
        {"prompt_contains": "<|im_start|>tool", "text": "a tool", "finish": True},
        {"prompt_contains": "weather", "text": '<tool_call>{"name": "weather"}</tool_call>', "finish": True},
        {"prompt_contains": None, "text": " and on", "finish": False},
    ]
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"outputs": outputs}))
    script = Script.load(path, tokenizer_json, eos)

    def replayed(prompt):
        return script.token_ids_for(tokenizer.encode(prompt).ids)

    tool_call = replayed("How is the weather?")
    assert tool_call[-1] in eos
    assert tokenizer.decode(list(tool_call)) == outputs[1]["text"]
    assert tokenizer.decode(list(replayed("<|im_start|>tool\nweather"))) == "a tool"
    assert tokenizer.decode(list(replayed("Hello"))) == " and on"


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '{"outputs": [{"prompt_contains": null, "text": "", "finish": false}]}',
        '{"outputs": [{"prompt_contains": null, "finish": true}]}',
        '{"outputs": [{"prompt_contains": 3, "text": "a", "finish": true}]}',
        '{"outputs": [{"text": 3, "finish": true}]}',
    ],
)
def test_a_script_that_cannot_be_used(model_files, tmp_path, text):
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(ScriptError):
        Script.load(path, model_files.tokenizer_files["tokenizer.json"], model_files.eos_token_ids)


def test_a_script_that_is_not_there(model_files, tmp_path):
    with pytest.raises(ScriptError, match="No such file"):
        Script.load(tmp_path / "none.json", model_files.tokenizer_files["tokenizer.json"], model_files.eos_token_ids)
