"""From token ids to outputs: the last check before the engine, and its failures as HTTP errors."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from shoal.engine.errors import EngineDead, InvalidRequest
from shoal.engine.frontend import Frontend
from shoal.engine.outputs import RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.http.errors import CONTEXT_EXCEEDED, ApiError, bad_value, unavailable
from shoal.server.fields import GenerationRequest
from shoal.server.parameters import guided_field
from shoal.server.protocol import ChatRequest
from shoal.server.state import Engine
from shoal.server.tool_choice import blamed_tool

_CONSTRAINT = "constraint_failed"

log = logging.getLogger("shoal.server")


def prepare(
    frontend: Frontend,
    body: GenerationRequest,
    prompt: Sequence[int],
    params: SamplingParams,
    request_id: str,
    *,
    text_prompt: bool = False,
) -> EngineRequest:
    """A checked request; `ApiError` 400 names the field as the client knows it.

    Safe in any thread, and best called off the event loop for long prompts and constraints: a grammar is compiled.
    """
    field = "messages" if isinstance(body, ChatRequest) else "prompt"
    if body.resume_token_ids and params.logprobs is not None:
        raise bad_value("logprobs", params.logprobs, "expected none with resume_token_ids")
    asked = body.kv_transfer_params
    if asked is not None and asked.do_remote_decode and (body.stream or params.n > 1):
        raise bad_value("kv_transfer_params", "do_remote_decode", "expected one choice and no stream")
    _check_length(frontend.max_model_len, len(prompt), params, field)
    try:
        request = frontend.prepare(
            prompt,
            params,
            request_id,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            output=body.resume_token_ids or (),
            kv_transfer=body.kv_transfer_params,
            lora=body.model if body.model in frontend.adapters else None,
        )
    except InvalidRequest as error:

        def compiles(guided: GuidedParams) -> bool:
            try:
                frontend.prepare(prompt, msgspec.structs.replace(params, guided=guided), request_id)
            except InvalidRequest:
                return False
            return True

        raise _invalid(error, body, compiles) from None
    return msgspec.structs.replace(request, text_prompt=text_prompt)


def _check_length(limit: int, prompt: int, params: SamplingParams, field: str) -> None:
    if prompt == 0:
        raise ApiError(400, f"{field}: it is empty; expected at least one token", param=field, code="invalid_value")
    wanted = max(params.max_tokens or 1, params.min_tokens)
    if prompt + wanted <= limit:
        return
    fits = f"shorten it to at most {limit - wanted} tokens" if wanted < limit else ""
    fewer = f"ask for at most {limit - prompt} tokens" if prompt < limit and wanted > 1 else ""
    output = f" and {wanted} more were asked for" if params.max_tokens is not None else ""
    raise ApiError(
        400,
        f"the context of this model is {limit} tokens; the prompt has {prompt}{output}: "
        + (" or ".join(filter(None, (fits, fewer))) or f"ask for fewer than {limit} tokens"),
        param=field,
        code=CONTEXT_EXCEEDED,
    )


def _invalid(error: InvalidRequest, body: GenerationRequest, compiles: Callable[[GuidedParams], bool]) -> ApiError:
    field = error.field
    if field.split(".", 1)[0] == "guided":
        path = field.removeprefix("guided.json_schema") if field.startswith("guided.json_schema") else ""
        of_tool = blamed_tool(body, compiles) if isinstance(body, ChatRequest) else None
        field = f"tools[{of_tool}].function.parameters" if of_tool is not None else guided_field(body, path)
    elif isinstance(body, ChatRequest):
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        if body.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        field = names.get(field, field)
    return bad_value(field, error.value, f"expected {error.accepted}")


async def run(engine: Engine, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of one request. Closing it aborts the request; a failure of the engine is an `ApiError`."""
    try:
        async with contextlib.aclosing(engine.stream(request)) as outputs:
            async for output in outputs:
                if output.finish_reason in ("abort", "error"):
                    raise _failure(engine, output)
                yield output
    except InvalidRequest as error:
        raise bad_value(error.field, error.value, f"expected {error.accepted}") from None
    except EngineDead:
        raise engine_stopped() from None


def engine_stopped() -> ApiError:
    return unavailable("the engine has stopped", "engine_dead")


def _failure(engine: Engine, output: RequestOutput) -> ApiError:
    if output.finish_reason == "abort":
        return unavailable("the request was ended before it was done", "aborted")
    log.error("request %s ended with an error: %s", output.request_id, output.error)
    if not engine.healthy:
        return engine_stopped()
    if output.constraint_failed:
        reason = output.error or "no token is admitted"
        return ApiError(
            400, f"the output cannot go on within the request's constraints: {reason}", code=_CONSTRAINT
        )
    return ApiError(
        500, output.error or "the engine could not go on", kind="server_error", code="generation_failed"
    )


async def merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of several jobs as they come, each with the index of its job. The first failure ends all."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for output in only:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(maxsize=64)

    async def pump(index: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    await queue.put((index, output))
        except Exception as error:
            await queue.put((index, error))
        else:
            await queue.put((index, None))

    pumps = [asyncio.ensure_future(pump(i, s)) for i, s in enumerate(streams)]
    try:
        live = len(pumps)
        while live:
            index, item = await queue.get()
            if item is None:
                live -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
