"""Grammars in llama.cpp's notation (GBNF), which vLLM's clients send too: `root ::= "yes" | "no"`.

llguidance parses them. Its own conversion makes terminals of rules, which its lexer matches greedily: `ws` takes
the line break that ends the line. Here every terminal is one character, so that all readings stay open, as in
llama.cpp.
"""

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import (
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

_RULE = re.compile(r"^[ \t]*[A-Za-z0-9_\-]+[ \t]*::=", re.MULTILINE)
_UNICODE = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})")
_CHARACTER = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|.)|.", re.DOTALL)


def lark_of(grammar: str) -> str:
    """Return a grammar in Lark's notation, which GBNF is converted to. Raises `ValueError` for bad GBNF."""
    if not _RULE.search(grammar):
        return grammar
    try:
        rules = GrammarParser().parse(_UNICODE.sub(_character, grammar))
    except GbnfToLarkError as error:
        raise ValueError(str(error)) from error
    if "root" not in rules:
        raise ValueError("expected a rule named root")
    names = {name: "start" if name == "root" else f"rule_{i}" for i, name in enumerate(rules)}
    lines = ["%llguidance {}"]
    for name, rule in rules.items():
        body = _by_characters(rule.alternatives.simplify())
        for node in _descendants(body):
            if isinstance(node, RuleRefNode):
                if node.name not in names:
                    raise ValueError(f"rule {node.name!r}, used by {name!r}, is not defined")
                node.name = names[node.name]
        lines.append(str(RuleNode(names[name], body, "")))
    return "\n".join(lines)


def _by_characters(node: ASTNode) -> ASTNode:
    """Return the tree with every literal as a sequence of its characters."""
    if isinstance(node, LiteralNode):
        pieces = [LiteralNode(match[0]) for match in _CHARACTER.finditer(node.value)]
        return node if len(pieces) < 2 else SequenceNode(list(pieces))
    children = node.children()
    # A repetition gives its only child in a list of its own.
    for place, child in enumerate(children):
        children[place] = _by_characters(child)
    if hasattr(node, "node"):
        node.node = children[0]
    return node


def _descendants(node: ASTNode) -> Iterator[ASTNode]:
    yield node
    for child in node.children():
        yield from _descendants(child)


def _character(match: re.Match[str]) -> str:
    """The character itself: the parser takes the zeros off its code, which is then misread."""
    code = int(match[1] or match[2], 16)
    if code < 0x80:
        # It may have a meaning in the notation.
        return f"\\x{code:02x}"
    return match[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)
