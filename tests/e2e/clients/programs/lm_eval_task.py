"""lm-eval's local-completions on two small tasks: `URL TOKENIZER_FOLDER`. Says what each request got."""

import json
import sys
from pathlib import Path

import lm_eval

TASKS = Path(__file__).parents[1] / "lm_eval_task"
DATA = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
CHOICES = DATA | {
    "task": "choices",
    "dataset_kwargs": {"data_files": {"test": str(TASKS / "choices.jsonl")}},
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}
QUESTIONS = DATA | {
    "task": "questions",
    "dataset_kwargs": {"data_files": {"test": str(TASKS / "questions.jsonl")}},
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match"}],
}

url, tokenizer = sys.argv[1:]
model_args = {
    "model": "default",
    "base_url": f"{url}/v1/completions",
    "tokenizer": tokenizer,
    "num_concurrent": 2,
    "max_length": 2048,
}
results = lm_eval.simple_evaluate("local-completions", model_args=model_args, tasks=[CHOICES, QUESTIONS])
likelihoods, texts = [], []
for sample in results["samples"]["choices"]:
    for (context, continuation), (logprob, is_greedy) in zip(
        sample["arguments"], sample["filtered_resps"], strict=True
    ):
        likelihoods.append([context, continuation, float(logprob), bool(is_greedy)])
for sample in results["samples"]["questions"]:
    texts.append([sample["arguments"][0][0], sample["filtered_resps"][0]])
accuracy = results["results"]["choices"]["acc,none"]
print(json.dumps({"likelihoods": likelihoods, "texts": texts, "accuracy": accuracy}))
