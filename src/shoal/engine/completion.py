"""One of a request's `n` answers while it grows: its tokens, its text, and where a stop string ends it."""

from shoal.engine.outputs import RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.random import params_of_choice
from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.stop import StopMatcher
from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching import Output, TokenLogprobs


class Completion:
    """Turns the scheduler's token news into text. `advance` is called once for each of them, in order."""

    def __init__(self, request: EngineRequest, index: int, sequence_id: int, tokenizer: Tokenizer) -> None:
        self.request = request
        self.index = index
        self.sequence_id = sequence_id
        self.params = params_of_choice(request.params, index)
        self.token_ids: list[int] = []
        """All of its output, what another replica gave before included."""
        self.stop_string: str | None = None
        self.last_token_time: float | None = None
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=request.params.skip_special_tokens, continues=request.text_prompt
        )
        self._stops = StopMatcher(request.params.stop, include_stop=request.params.include_stop_str_in_output)
        self._prompt_logprobs: list[TokenLogprobs] = []
        for token in request.output:
            # Their text is the client's already; what they leave unfinished (half a character, the beginning of a
            # stop string) is not.
            self._push(token)

    def advance(self, output: Output) -> RequestOutput:
        """What is new in text and tokens. A stop string found here ends the answer, whatever `output` says."""
        self._prompt_logprobs.extend(output.prompt_logprobs)
        kept, text = self._append(output)
        reason: str | None = output.finish_reason
        stop_reason: str | int | None = None
        if self.stop_string is not None:
            reason, stop_reason = "stop", self.stop_string
        elif reason is not None:
            text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            if output.stop_token is not None and output.stop_token in self.params.stop_token_ids:
                stop_reason = output.stop_token
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if kept or reason is not None:
            prompt_logprobs, self._prompt_logprobs = tuple(self._prompt_logprobs), []
        return RequestOutput(
            request_id=self.request.request_id,
            index=self.index,
            text=text,
            token_ids=output.tokens[:kept],
            logprobs=output.logprobs[:kept],
            finish_reason=reason,
            stop_reason=stop_reason,
            prompt_tokens=output.prompt_tokens,
            cached_tokens=output.cached_tokens,
            prompt_logprobs=prompt_logprobs,
            error=output.error,
            constraint_failed=output.constraint_failed,
        )

    def _append(self, output: Output) -> tuple[int, str]:
        """Take in tokens up to the one that completes a stop string; how many, and the text they free."""
        text = ""
        for count, token in enumerate(output.tokens, start=1):
            # The token that ends it is no part of the text unless it is asked for.
            hidden = token == output.stop_token and count == len(output.tokens)
            if hidden and not self.params.include_stop_str_in_output:
                self.token_ids.append(token)
                continue
            text += self._push(token)
            if self._stops.matched is not None:
                self.stop_string = self._stops.matched
                return count, text
        return len(output.tokens), text

    def _push(self, token: int) -> str:
        self.token_ids.append(token)
        may_stop = len(self.token_ids) > self.params.min_tokens
        return self._stops.push(self._detokenizer.push((token,)), match=may_stop)

    @property
    def ended_before(self) -> bool:
        """Whether the output it began with holds a stop string: nothing can come after that."""
        return self._stops.matched is not None
