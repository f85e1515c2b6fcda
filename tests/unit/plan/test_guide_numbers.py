"""The figures of the guide's arithmetic, each reproduced from a published architecture."""

import json
from pathlib import Path

import pytest

from shoal.plan import calc
from shoal.plan.kv import kv_bytes_per_token, sequence_curve
from shoal.specs.catalog import load_catalog
from shoal.specs.load import load_model_spec
from shoal.specs.model import ModelSpec

CONFIGS = Path(__file__).parents[3].parent / "shared" / "data" / "model-configs"
GB = 1e9


def published(name: str) -> ModelSpec:
    path = CONFIGS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"the published config {path.name} is not here")
    return load_model_spec(path)


def test_weights_of_405b_need_thirteen_80_gb_cards() -> None:
    count = calc.devices_needed(calc.weight_bytes(405e9, 2), 80 * GB)
    assert count.exact == pytest.approx(12.66, abs=0.01)
    assert (count.count, count.too_close) == (13, False)


def test_sixteen_cards_are_used_because_thirteen_are_not_whole_servers() -> None:
    model = published("meta-llama--Meta-Llama-3.1-405B")
    usable = calc.usable_count(13, model.layers[0].attention.heads, len(model.layers), 8)
    assert (usable.count, usable.tp, usable.pp) == (16, 8, 2)
    assert [count for count, _ in usable.passed_over] == [13, 14, 15]
    assert all("whole nodes of 8" in reason for _, reason in usable.passed_over)


def test_a_token_of_70b_is_328_kb() -> None:
    assert calc.gqa_bytes_per_token(80, 8, 128, 2) == 327_680
    assert kv_bytes_per_token(published("meta-llama--Meta-Llama-3.1-70B")) == 327_680


def test_cache_of_70b_for_8k_and_for_200_users() -> None:
    token = calc.gqa_bytes_per_token(80, 8, 128, 2)
    assert calc.kv_bytes(token, 8192) / GB == pytest.approx(2.7, abs=0.05)
    assert calc.kv_bytes(token, 8192, 200) / GB == pytest.approx(537, abs=0.5)
    assert calc.kv_bytes(token / 2, 8192, 200) / GB == pytest.approx(268, abs=0.5)
    assert calc.kv_bytes(token, 8192, 100) / GB == pytest.approx(268, abs=0.5)


def test_worked_table_and_its_two_rows_too_close_to_call() -> None:
    token = calc.gqa_bytes_per_token(80, 8, 128, 2)
    catalog = load_catalog()
    sizes = tuple((name, catalog.accelerator(name).memory_bytes) for name in ("h100", "h200", "b300"))
    options = calc.sizing_table(70e9, token, 8192, 200, sizes)
    close = [
        (option.weights, option.cache, name, count.count - 1, count.count)
        for option in options
        for name, count in option.counts
        if count.too_close
    ]
    assert close == [("BF16", "BF16", "h200", 6, 7), ("FP8", "FP8", "h200", 3, 4)]
    for option in options:
        for _, count in option.counts:
            if count.too_close:
                assert abs(count.exact - round(count.exact)) < 0.001
    counts = {(o.weights, o.cache): [count.count for _, count in o.counts] for o in options}
    assert counts == {
        ("BF16", "BF16"): [11, 7, 3],
        ("BF16", "FP8"): [7, 4, 2],
        ("FP8", "BF16"): [10, 6, 3],
        ("FP8", "FP8"): [6, 4, 2],
    }


def test_saving_of_fp8_weights_and_of_fp8_cache() -> None:
    bf16, _, fp8, both = calc.sizing_table(70e9, 327_680, 8192, 200, (("any", 80 * GB),))
    assert (bf16.weight_bytes - fp8.weight_bytes) / GB == pytest.approx(70)
    assert (fp8.cache_bytes - both.cache_bytes) / GB == pytest.approx(268, abs=0.5)
    assert bf16.cache_bytes / bf16.weight_bytes == pytest.approx(3.8, abs=0.05)


def test_128k_on_405b() -> None:
    model = published("meta-llama--Meta-Llama-3.1-405B")
    cache = sequence_curve(model).bytes(131_072)
    assert cache / GB == pytest.approx(68, abs=0.5)
    assert cache / (80 * GB) == pytest.approx(0.85, abs=0.005)


def test_a_token_of_deepseek_v3_is_a_seventh_of_405b() -> None:
    latent = kv_bytes_per_token(published("deepseek-ai--DeepSeek-V3"))
    assert latent == 61 * (512 + 64) * 2
    assert latent / 1e3 == pytest.approx(70, abs=0.5)
    assert kv_bytes_per_token(published("meta-llama--Meta-Llama-3.1-405B")) / latent == pytest.approx(7.3, abs=0.05)


@pytest.mark.parametrize(("micro_batches", "percent"), [(4, 43), (16, 16), (32, 9)])
def test_bubbles_of_four_stages(micro_batches: int, percent: int) -> None:
    assert round(100 * calc.bubble(4, micro_batches)) == percent


def test_handing_over_128k_of_405b() -> None:
    cache = calc.kv_bytes(calc.gqa_bytes_per_token(126, 8, 128, 2), 131_072)
    assert calc.handoff_seconds(cache, 50e9) == pytest.approx(1.4, abs=0.05)
    assert calc.handoff_seconds(cache, 12.5e9) == pytest.approx(5.4, abs=0.05)
    assert calc.handoff_seconds(cache, 900e9) < 0.1


def test_a_day_of_deepseek() -> None:
    assert calc.cost_per_day(226.75 * 8, 2.0) == pytest.approx(87_072)


def test_cost_of_a_million_tokens() -> None:
    day = calc.cost_per_day(8, 2.0)
    tokens = 14_800 * 86_400
    assert calc.cost_per_million(8, 2.0, 14_800) == pytest.approx(day / tokens * 1e6)
    assert calc.cost_per_million(8, 2.0, 14_800, 0.5) == pytest.approx(2 * day / tokens * 1e6)


def test_configs_are_the_published_ones() -> None:
    path = CONFIGS / "meta-llama--Meta-Llama-3.1-70B.json"
    if not path.is_file():
        pytest.skip("the published configs are not here")
    config = json.loads(path.read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"]) == (80, 8)
