"""Each rank reads its own slices of the weights, and together the ranks hold the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from parity.tiny import ARCHITECTURES, TinyModel, save_tiny
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM
from shoal.engine.parallel.group import SoloGroup
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.weights import WeightsError, open_weights
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout
from shoal.specs.sizes import weight_bytes

CPU = torch.device("cpu")
MODELS = [
    t for t in ARCHITECTURES if t.name in ("llama", "llama-tied", "llama-bias", "llama-mqa", "qwen3", "gemma3")
]


@dataclass
class Seat(SoloGroup):
    """A place in a group whose other ranks are not there: loading talks to nobody."""

    axis: str
    ranks: tuple[int, ...]
    size: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]


def rank_of(spec: Layout, rank: int) -> Mesh:
    return Mesh(spec, rank, lambda axis, members: Seat(axis, members, len(members), members.index(rank)))


def loaded(path: Path, mesh: Mesh) -> tuple[CausalLM, int]:
    """A rank's share, and the bytes it took from the files."""
    source = open_weights(path)
    model = build_model(load_model_spec(path), torch.float32, CPU, None, mesh)
    model.load(source)
    return model, source.bytes_read


@pytest.fixture(scope="module", params=MODELS, ids=lambda tiny: tiny.name)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny: TinyModel = request.param
    return save_tiny(tiny.model(), tmp_path_factory.mktemp(tiny.name))


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 3}, {"pp": 3}, {"tp": 2, "pp": 2}, {"cp": 2}, {"tp": 5}])
def test_ranks_read_their_own_slices_and_hold_the_model_together(path: Path, layout: dict[str, int]) -> None:
    spec = Layout(**layout)
    whole, _ = loaded(path, Mesh.single())
    targets = whole.targets()
    covered = {name: torch.zeros(target.place.shape, dtype=torch.bool) for name, target in targets.items()}
    for rank in range(spec.world):
        share, read = loaded(path, rank_of(spec, rank))
        own = share.targets()
        assert read == sum(target.place.nbytes for target in own.values())
        if spec.tp == spec.world:
            assert read < 0.75 * weight_bytes(share.spec, "float32").total
        for name, target in own.items():
            place = tuple(slice(s.own.start, s.own.stop) for s in target.spans)
            assert torch.equal(target.place, targets[name].place[place]), name
            covered[name][place] = True
    assert all(bool(mask.all()) for mask in covered.values())


def test_a_tensor_of_another_stage_is_no_surprise_and_an_unknown_one_is(path: Path) -> None:
    spec = load_model_spec(path)
    tensors = dict(open_weights(path).tensors())
    for extra in (f"model.layers.{len(spec.layers)}.mlp.up_proj.weight", "model.layers.0.mlp.side_proj.weight"):
        with pytest.raises(WeightsError, match="1 tensors are not of"):
            build_model(spec, torch.float32, CPU, None, rank_of(Layout(pp=2), 0)).load(
                [*tensors.items(), (extra, torch.zeros(3))]
            )
    last = rank_of(Layout(pp=2), 1)
    missing = f"model.layers.{len(spec.layers) - 1}.mlp.up_proj.weight"
    with pytest.raises(WeightsError, match=r"missing: layers\.\d+\.mlp\.up_proj\.weight"):
        build_model(spec, torch.float32, CPU, None, last).load([i for i in tensors.items() if i[0] != missing])


def test_a_wrong_shape_names_the_whole_shape_on_every_rank(path: Path) -> None:
    tensors = dict(open_weights(path).tensors())
    name = next(name for name in tensors if name.endswith("layers.0.self_attn.o_proj.weight"))
    tensors[name] = tensors[name][:, :-1]
    model = build_model(load_model_spec(path), torch.float32, CPU, None, rank_of(Layout(tp=2), 1))
    with pytest.raises(WeightsError, match=r"found shape \(48, 95\), expected \(48, 96\)"):
        model.load(tensors.items())


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc/self/smaps")
def test_reading_a_slice_leaves_the_rest_of_the_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    tensor = torch.arange(1 << 23, dtype=torch.float32).view(1 << 13, 1 << 10)
    save_file({"a": tensor}, path)
    source = open_weights(path)
    rows = range(1024, 2048)
    assert torch.equal(source.read("a", (rows,)), tensor[1024:2048])
    assert source.bytes_read == tensor.nbytes // 8
    assert 0 < resident(path) < tensor.nbytes // 4


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has touched."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            ours = line.endswith(str(path))
        elif ours and first == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


KINDS = [k for k in gguf.GGMLQuantizationType if k in gguf.quants._type_traits or k.name in ("F32", "F16")]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with one matrix of every type, and permuted query and key rows."""
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    dice = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    for layer, kind in enumerate(KINDS):
        block, size = gguf.GGML_QUANT_SIZES[kind]
        for name, rows in (("ffn_up", 12), ("attn_q", 24), ("attn_k", 8)):
            raw = dice.integers(0, 60, (rows, 512 // block * size), dtype=np.uint8)
            if kind.name in ("F32", "F16"):
                raw = dice.standard_normal((rows, 512)).astype(np.float32 if kind.name == "F32" else np.float16)
            writer.add_tensor(f"blk.{layer}.{name}.weight", raw, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", dice.standard_normal(40).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ranges_of(shape: Sequence[int]) -> st.SearchStrategy[tuple[range, ...]]:
    one = [st.tuples(st.integers(0, n - 1), st.integers(1, n)).map(sorted) for n in shape]
    some = [pair.filter(lambda p: p[0] < p[1]).map(lambda p: range(p[0], p[1])) for pair in one]
    return st.integers(0, len(shape)).flatmap(lambda count: st.tuples(*some[:count]))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_parts_of_a_gguf_tensor_are_parts_of_the_whole(quantized: Path, data: st.DataObject) -> None:
    source = open_weights(quantized)
    name = data.draw(st.sampled_from(list(source.names())))
    ranges = data.draw(ranges_of(source.shape(name)))
    whole = source.read(name)
    before = source.bytes_read
    part = source.read(name, ranges)
    expected = whole[tuple(slice(r.start, r.stop) for r in ranges)]
    assert np.array_equal(part.numpy(), expected.numpy(), equal_nan=True)
    assert source.bytes_read - before <= before


def test_a_rank_reads_its_quantization_blocks_only(quantized: Path) -> None:
    source = open_weights(quantized)
    layer = next(i for i, kind in enumerate(KINDS) if kind.name == "Q8_0")
    columns, rows = range(128, 384), range(4, 8)
    source.read(f"model.layers.{layer}.mlp.up_proj.weight", (range(12), columns))
    assert source.bytes_read == 12 * 256 // 32 * 34
    source.read(f"model.layers.{layer}.self_attn.q_proj.weight", (rows,))
    assert source.bytes_read == 12 * 256 // 32 * 34 + 4 * 512 // 32 * 34
