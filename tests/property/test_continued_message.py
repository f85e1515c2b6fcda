"""A continued final message is the text that Transformers makes of it, whatever it holds and however trimmed."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from shoal.engine.errors import ChatTemplateError
from shoal.engine.text.chat import render_continued

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "trims": CHATML.replace("m['content']", "m['content'] | trim"),
    "llama 3": (
        "{{ '<|begin|>' }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n"
        "{{ m['content'] | trim }}<|eot|>{% endfor %}"
    ),
    "gemma": (
        "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
        "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    ),
    "mistral": "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}",
    "drops thoughts": (
        "{% for m in messages %}<{{ m['role'] }}>"
        "{% if '</think>' in m['content'] %}{{ m['content'].split('</think>')[-1].lstrip('\\n') }}"
        "{% else %}{{ m['content'] }}{% endif %}<end>{% endfor %}"
    ),
    "strips at the end": CHATML.replace("m['content']", "m['content'].rstrip()"),
}
CONTENTS = st.text(st.sampled_from("<end|im_>\n\t a</think>[INST] é漢"), max_size=24)


def transformers(template: str, content: str) -> str:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    rendered, _ = render_jinja_template([messages], chat_template=template, continue_final_message=True)
    return str(rendered[0])


def ours(template: str, content: Any) -> str:
    return render_continued(
        template, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_as_in_transformers(name: str) -> None:
    """transformers#40732, #34253, #36404: `<`, `end` and trailing white space are continued as they are."""
    template = TEMPLATES[name]

    @settings(max_examples=150, deadline=None)
    @given(CONTENTS)
    @example("<")
    @example("end")
    @example("a ")
    @example("a\n\n")
    @example("<|im_end|>")
    def check(content: str) -> None:
        try:
            wanted = transformers(template, content)
        except ValueError:
            # It refuses a content that the template changes; ours is the template's text up to the content's end.
            assert ours(template, content)
            return
        if content.strip():
            assert ours(template, content) == wanted

    check()


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["", " ", "\n\n", None, []])
def test_an_empty_message_ends_with_its_header(name: str, content: Any) -> None:
    """Transformers takes the header's own line break away where the template trims, and refuses None and []."""
    template = TEMPLATES[name]
    header = ours(template, "x").removesuffix("x")
    text = ours(template, content)
    trims = any(word in template for word in ("trim", "rstrip()"))
    assert text == header + ("" if trims else content or "")


def test_parts_are_joined_as_elsewhere() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]
    assert ours(CHATML, parts) == ours(CHATML, "a\nb ")


def test_a_template_that_hides_the_message_says_so() -> None:
    with pytest.raises(ChatTemplateError, match="does not show"):
        ours("{{ messages[0]['content'] }}", "x")
