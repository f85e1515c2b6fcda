"""What a `$ref` of a schema points to: JSON pointers, `$id`, `$anchor`; nothing outside the document."""

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shoal.engine.sampling.json_schema.errors import Path, SchemaError
from shoal.engine.sampling.json_schema.locations import subschemas


class References:
    """The places of one document that references can name."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._resources: dict[str, Path] = {"": ()}
        """Absolute URI of a (sub)schema with an `$id` → where it lies."""
        self._anchors: dict[tuple[str, str], Path] = {}
        self._bases: dict[Path, str] = {}
        """The base URI where it changes."""
        self._index(document)

    def _index(self, document: Any) -> None:
        waiting: list[tuple[Path, Any, str]] = [((), document, "")]
        while waiting:
            path, node, base = waiting.pop()
            if not isinstance(node, dict):
                continue
            identity = node.get("$id")
            if isinstance(identity, str):
                uri, anchor = urldefrag(_joined(base, identity))
                if anchor and uri == base:
                    # Drafts before 2019-09 name an anchor so.
                    self._anchors.setdefault((base, anchor), path)
                elif uri != base:
                    base = uri
                    self._resources.setdefault(base, path)
                    self._bases[path] = base
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := node.get(keyword), str):
                    self._anchors.setdefault((base, name), path)
            waiting.extend((path + steps, inner, base) for steps, inner in subschemas(node))

    def base_at(self, path: Path) -> str:
        """Return the base URI of the schema at `path`."""
        for end in range(len(path), -1, -1):
            if (base := self._bases.get(path[:end])) is not None:
                return base
        return ""

    def target(self, reference: object, path: Path) -> Path:
        """Return where the `$ref` at `path` (that of its keyword) points; `SchemaError` if nowhere in here."""
        if not isinstance(reference, str):
            raise SchemaError(path, reference, "a reference is a string")
        base = self.base_at(path[:-1])
        if reference.startswith("#"):
            uri, fragment = base, reference[1:]
        else:
            uri, fragment = urldefrag(_joined(base, reference))
        if (root := self._resources.get(uri)) is None:
            reason = "it points outside of this schema; expected a reference such as #/$defs/Name"
            raise SchemaError(path, reference, reason)
        if fragment and not fragment.startswith("/"):
            if (found := self._anchors.get((uri, unquote(fragment)))) is not None:
                return found
        else:
            # Names such as `Page[Item]` or `100%` come escaped from some clients and as they are from others.
            for pointer in (unquote(fragment), fragment):
                if (found := self._walk(root, pointer)) is not None:
                    return found
                # A schema put below another keeps its own `$defs`, and its references point there.
                if (found := self._enclosing(path, pointer)) is not None:
                    return found
        raise SchemaError(path, reference, "it points to nothing in this schema")

    def _enclosing(self, path: Path, pointer: str) -> Path | None:
        if not pointer.startswith(("/$defs/", "/definitions/")):
            return None
        ends = range(len(path) - 1, 0, -1)
        return next((found for end in ends if (found := self._walk(path[:end], pointer)) is not None), None)

    def _walk(self, root: Path, pointer: str) -> Path | None:
        path, node = root, self.at(root)
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                path, node = (*path, name), node[name]
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(node):
                path, node = (*path, int(name)), node[int(name)]
            else:
                return None
        return path if isinstance(node, dict | bool) else None

    def at(self, path: Path) -> Any:
        """Return the value at a path that exists."""
        node = self._document
        for step in path:
            node = node[step]
        return node


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        # Not a URI at all: then it names only itself.
        return reference
