"""lm-eval: choices by log-likelihood, perplexity and greedy generation over HTTP equal those of `--model hf`.

Further argument: the GGUF file of the model that is served. The questions are made here: no data set is fetched.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

url, model, gguf = sys.argv[1], sys.argv[2], Path(sys.argv[3])

CAPITALS = [("France", "Paris"), ("Japan", "Tokyo"), ("Kenya", "Nairobi"), ("Italy", "Rome"), ("Egypt", "Cairo")]
CAPITALS += [("Peru", "Lima"), ("Spain", "Madrid"), ("Cuba", "Havana"), ("Norway", "Oslo"), ("Greece", "Athens")]
TASKS = {
    "choices": "output_type: multiple_choice\ndoc_to_text: 'The capital of {{country}} is'\n"
    "doc_to_target: 0\ndoc_to_choice: '{{choices}}'\n"
    "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "perplexity": "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
    "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
    "generated": "output_type: generate_until\ndoc_to_text: 'The capital of {{country}} is'\n"
    "doc_to_target: '{{choices[0]}}'\n"
    "generation_kwargs: {until: ['.', '\\n'], max_gen_toks: 12, do_sample: false}\n"
    "metric_list: [{metric: exact_match, ignore_case: true}]\n",
}


def write_tasks(folder: Path) -> None:
    names = [capital for _, capital in CAPITALS]
    rows = [
        {
            "country": country,
            "choices": [f" {name}" for name in (capital, *(n for n in names if n != capital))][:4],
            "text": f"{capital} is the capital of {country}. Many people live there, and more visit it every year.",
        }
        for country, capital in CAPITALS
    ]
    data = folder / "rows.json"
    data.write_text(json.dumps(rows))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
            f"test_split: test\n{text}"
        )


def figures(results: dict) -> dict[str, float]:
    return {
        f"{task} {metric}": value
        for task, metrics in results["results"].items()
        for metric, value in metrics.items()
        if isinstance(value, float) and "stderr" not in metric
    }


with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    write_tasks(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder / "model")
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    served = simple_evaluate(
        "local-completions",
        model_args={
            "model": model,
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(folder / "model"),
            "max_length": 2048,
            "num_concurrent": 4,
        },
        tasks=list(TASKS),
        task_manager=tasks,
    )
    # The object, as Transformers writes no checkpoint of what it has read from a GGUF file.
    weights = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    hf = HFLM(weights, tokenizer=tokenizer, max_length=2048, batch_size=4)
    local = simple_evaluate(hf, tasks=list(TASKS), task_manager=tasks)
    ours, theirs = figures(served), figures(local)
    assert ours.keys() == theirs.keys(), (ours, theirs)
    for name, value in theirs.items():
        assert abs(ours[name] - value) <= 1e-3 * max(1.0, abs(value)), (name, ours[name], value)
        print(f"{name}: {ours[name]:.5f} served, {value:.5f} by hf")
