"""Tokens a second of a mixture of experts whose router has favourites: experts left where they are, and balanced.

    python benchmarks/expert_balance.py [--quick] [--append benchmarks/results/expert_balance.md]

Random weights in the shape of DeepSeek-V3, small. A bias has every row choose two experts of the first rank.
Either way one slot a rank is spare and loads are measured; only one of the two lets experts move. The same prompts
run in turn, and each run's first pass warms up and lets the balancer act. Needs as many idle cores as ranks.
"""

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from machine import append, describe
from shoal import LLM, SamplingParams
from shoal.engine.models.build import build_model
from shoal.policy.experts import ExpertBalancer
from shoal.specs import load_model_spec
from shoal.workload.stats import ratio_estimate

VOCAB = 512
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": VOCAB,
    "hidden_size": 384,
    "intermediate_size": 768,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 0,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 0,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
WINDOW = 8
"""Steps."""


@dataclass(frozen=True)
class Run:
    tokens_per_second: float
    imbalance: float
    """Busiest rank over mean, mean over layers, in the last window."""
    moves: int
    answers: list[tuple[int, ...]]


def write_model(directory: Path, favour: float) -> None:
    """A checkpoint with random weights whose routers favour the first two experts."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    spec = load_model_spec(directory)
    torch.manual_seed(0)
    weights = {}
    for name, target in build_model(spec, torch.float32, torch.device("cpu")).targets().items():
        weights[name] = torch.randn(target.shape) * (1.0 if len(target.shape) == 1 else target.shape[-1] ** -0.5)
        if name.endswith("e_score_correction_bias"):
            weights[name].mul_(0.05)[:2] += favour
    save_file(weights, directory / "model.safetensors")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(directory / "tokenizer.json"))


def run(directory: Path, ranks: int, streams: int, balanced: bool) -> Run:
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, VOCAB, (32,), generator=generator).tolist() for _ in range(2 * streams)]
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
    options = {"ep": ranks, "threads": 1, "max_num_seqs": streams, "spare_experts": 1, "balance_steps": WINDOW}
    with LLM(str(directory), **options, prefix_caching=False) as llm:
        core = llm._core
        assert core.balancer is not None
        if not balanced:
            core.balancer = ExpertBalancer(core.balancer.placements, WINDOW, min_gain=1.0)
        llm.generate(prompts, params, use_tqdm=False)
        start = time.perf_counter()
        results = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        answers = [result.outputs[0].token_ids for result in results]
        even = statistics.mean(core.balancer.imbalance)
        return Run(sum(map(len, answers)) / seconds, even, core.balancer.moves, answers)


def table(runs: dict[bool, list[Run]]) -> str:
    """Before is what experts that stay give, after what moving them does."""
    out = [
        "| experts | tokens/s, median of rounds | low – high | busiest rank ÷ mean load | moves |",
        "|---|---|---|---|---|",
    ]
    for balanced, label in ((False, "stay where they are"), (True, "move and are replicated")):
        speeds = [one.tokens_per_second for one in runs[balanced]]
        last = runs[balanced][-1]
        out.append(
            f"| {label} | {statistics.median(speeds):.1f} | {min(speeds):.1f} – {max(speeds):.1f} "
            f"| {last.imbalance:.2f} | {last.moves} |"
        )
    return "\n".join(out)


def verdict(runs: dict[bool, list[Run]]) -> str:
    pairs = zip(runs[False], runs[True], strict=True)
    e = ratio_estimate([after.tokens_per_second / before.tokens_per_second for before, after in pairs])
    interval = "" if e.low is None else f" [{e.low:.2f}, {e.high:.2f}]"
    answers = [one.answers for both in runs.values() for one in both]
    same = sum(len(set(told)) == 1 for told in zip(*answers, strict=True))
    return (
        f"Moved ÷ stayed: {e.value:.2f}{interval}. Answers that are the same token for token in all "
        f"{len(answers)} runs: {same} of {len(answers[0])}."
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16, help="lanes share them")
    parser.add_argument("--favour", type=float, default=2.0, help="bias of the two favourites")
    parser.add_argument("--quick", action="store_true", help="one round, few streams")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    return parser.parse_args()


def main() -> None:
    asked = options()
    if asked.quick:
        asked.rounds, asked.streams = 1, 8
    facts = describe()
    facts.append(("command", shlex.join(["python", *sys.argv])))
    facts.append(
        ("work", f"{2 * asked.streams} requests of 32 + 48 tokens, {asked.streams} at a time, ep={asked.ranks}")
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_model(directory, asked.favour)
        runs: dict[bool, list[Run]] = {False: [], True: []}
        for _ in range(asked.rounds):
            for balanced in (False, True):
                runs[balanced].append(run(directory, asked.ranks, asked.streams, balanced))
                speed = runs[balanced][-1].tokens_per_second
                print(f"  experts {'move' if balanced else 'stay'}: {speed:8.1f} tokens/s", flush=True)
    body = f"{table(runs)}\n\n{verdict(runs)}"
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Experts balanced, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
