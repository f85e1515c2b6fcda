"""Render a conversation with the model's own chat template.

A template is code that came with the weights, so it runs in jinja's immutable sandbox. The environment (block
trimming, loop controls, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing) is the one Hugging Face
documents for chat templates; a test compares the two renderers. Transformers' own is not used because importing it
costs more than a second of start-up.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from shoal.engine.errors import ChatTemplateError

Message = Mapping[str, Any]
"""One message in OpenAI's shape: `role`, `content`, and optionally `tool_calls`, `tool_call_id`, `name`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what training learns from; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja's own tojson escapes <, >, & and ' for HTML, which a model would read literally.
    allowed = {k: v for k, v in options.items() if k in ("separators", "sort_keys")}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **allowed)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def read_template(path: Path) -> str:
    """The chat template in a file. Raises `ChatTemplateError` where it can't be read or does not parse."""
    try:
        source = path.read_text(encoding="utf-8")
        _compile(source)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ChatTemplateError(f"the chat template {path} can't be read: {reason}") from None
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template {path} does not parse, line {error.lineno}: {error.message}"
        ) from None
    return source


def render_chat(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt text of a conversation. `variables` adds template variables (`bos_token`, `enable_thinking`, …).

    Raises `ChatTemplateError` with the template's own complaint.
    """
    normalized = [_normalized(i, m) for i, m in enumerate(messages)]
    return _render(source, normalized, tools, add_generation_prompt, variables)


def render_continued(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt text of a conversation whose last message the model goes on with: up to its content's end.

    As in Transformers, a mark is rendered at the end of the content, and the text cut before it; so the content may
    be anything, also what the template writes itself. Where the template trims, so is the content. Unlike there, an
    empty content is accepted, and the header before one that is trimmed away keeps its own white space. Raises
    `ChatTemplateError`.
    """
    *before, last = [_normalized(i, m) for i, m in enumerate(messages)]
    content, mark = last["content"], f"continued-{secrets.token_hex(16)}"

    def render(content: str) -> tuple[str, bool]:
        """The text up to the mark, and whether the template trimmed the space after it."""
        marked = [*before, {**last, "content": f"{content}{mark} "}]
        text = _render(source, marked, tools, False, variables)
        end = text.rfind(mark)
        if end < 0:
            raise ChatTemplateError("the model's chat template does not show the last message's content")
        return text[:end], not text.startswith(f"{mark} ", end)

    text, trimmed = render(content)
    if not trimmed:
        return text
    return text.rstrip() if content.strip() else render("")[0]


def _render(
    source: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any] | None,
) -> str:
    try:
        return _compile(source).render(
            messages=messages,
            tools=list(tools) if tools else None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **(variables or {}),
        )
    except ChatTemplateError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(f"the model's chat template does not parse: {error.message}") from error
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the model's chat template refuses these messages: {error.message}") from error
    except Exception as error:
        # The template is foreign code: a missing key, a wrong type or an overflow raises what Python raises.
        raise ChatTemplateError(
            f"the model's chat template failed on these messages: {type(error).__name__}: {error}"
        ) from error


def _normalized(index: int, message: Message) -> dict[str, Any]:
    """The shape templates expect: text content as one string, tool arguments as an object.

    OpenAI allows content as a list of parts and sends tool arguments as a JSON string; most templates concatenate
    the content and serialize the arguments themselves.
    """
    result = dict(message)
    content = result.get("content")
    if content is None:
        result["content"] = ""
    elif not isinstance(content, str):
        result["content"] = _joined_text(index, content)
    if calls := result.get("tool_calls"):
        result["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return result


def _joined_text(index: int, parts: Any) -> str:
    texts = []
    for part in parts if isinstance(parts, Sequence) else [parts]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ChatTemplateError(f"messages[{index}].content: a part of type {kind!r} is not text")
        texts.append(text)
    return "\n".join(texts)


def _with_parsed_arguments(call: Any) -> Any:
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return call  # the template gets the string: better than refusing what an earlier answer said
    return {**call, "function": {**function, "arguments": arguments}}
