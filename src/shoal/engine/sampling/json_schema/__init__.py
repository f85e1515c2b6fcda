"""JSON schemas as clients send them, made ready for the grammar compiler.

references  finds what `$ref` points to
relax       one schema object without the keywords that the compiler cannot enforce
close       objects that say nothing of further properties get none
prepare     the whole document: references hoisted to `$defs`, every object relaxed, then closed
"""

from shoal.engine.sampling.json_schema.errors import SchemaError, show_path
from shoal.engine.sampling.json_schema.prepare import Prepared, Schema, prepare

__all__ = ["Prepared", "Schema", "SchemaError", "prepare", "show_path"]
