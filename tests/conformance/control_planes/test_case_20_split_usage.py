"""20 · Under a split, `cached_tokens` is what prefill had cached, not the whole prompt (vllm-router#193)."""

import pytest

from fleet import FOREIGN_URL, fleet

pytestmark = pytest.mark.skipif(FOREIGN_URL is not None, reason="needs prefill and decode pools")
PROMPT = "a long question " * 100


@pytest.mark.parametrize("streams", [False, True])
async def test_case_20_usage_is_that_of_the_prefill(streams: bool) -> None:
    async with fleet(2, roles=["prefill", "decode"]) as f:
        f.engines[1].cached_tokens = "all"
        got = []
        # Longer each time, so that the decode replica never holds all of it itself.
        for turn in (1, 5):
            body = f.chat(PROMPT * turn)
            if streams:
                stream = await f.stream(body | {"stream_options": {"include_usage": True}})
                got.append(stream.chunks[-1]["usage"])
            else:
                got.append((await f.post(body)).json()["usage"])
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in got]
        assert cached[0] == 0
        assert 300 < cached[1] <= got[0]["prompt_tokens"], got
        assert got[1]["prompt_tokens"] > 1000
        f.check()
