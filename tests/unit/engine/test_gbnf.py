"""llama.cpp's grammar notation, as its users send it."""

import json

import pytest

from sampling_kit import accepts, byte_level_tokenizer
from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.params import GuidedParams

# In the style of llama.cpp's grammars/json.gbnf.
JSON = r"""
root   ::= object   # an object at the root
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.fixture(scope="module")
def admits():
    tokenizer = byte_level_tokenizer()
    compiler = GuidedCompiler(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)

    def check(grammar: str, text: str) -> bool:
        return accepts(compiler, GuidedParams("grammar", grammar), tokenizer, text)

    return check


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "yes" | "no"', "yes", "yesno"),
        (JSON, json.dumps({"a": [1.5, {"b": None}, "x\n"], "c": {}}, indent=2), '{"a": }'),
        (ARITHMETIC, "a+(b*2)=c\n", "a+=c\n"),
        ('root ::= move+\nmove ::= [a-h] [1-8] "-"? rest-1\nrest-1 ::= "x"{2,3}', "a1xxe4-xxx", "a1x"),
        (r'root ::= "\u0022" [\u00e4-\u00fc]+ "\u0022"', '"äö"', '"ab"'),
        (r"root ::= [\u0041-\u0043]+", "ABC", "D"),
        ('root ::= item*\nitem ::= "- " [^\\n]+ "\\n"\n', "- a\n- b/c [d]\n", "a\n"),
        ('start: "a" | "b"', "a", "c"),
    ],
)
def test_grammars_are_enforced(admits, grammar, good, bad):
    assert admits(grammar, good)
    assert not admits(grammar, bad)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "end of input"),
        ('start ::= "a"', "root"),
        ("root ::= nowhere", "nowhere"),
        ("root ::= [a", "end of input"),
        ('root ::= "a" {x}', "integer"),
        ("root ::= " + "(" * 5000, ""),
    ],
)
def test_bad_grammars_are_refused_with_a_reason(admits, grammar, reason):
    with pytest.raises(InvalidParameter) as caught:
        admits(grammar, "")
    assert caught.value.field == "guided.grammar"
    assert reason in caught.value.accepted
