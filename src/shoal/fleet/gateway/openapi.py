"""The OpenAPI document of a fleet: that of its replicas, with the gateway's own answers."""

from shoal.server.openapi import Json, document, error_answer

_RELAYED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/v1/score", "/v1/rerank", "/tokenize", "/detokenize"),
)
_PATHS = (
    *_RELAYED,
    *("/v1/responses/{response_id}", "/v1/models", "/v1/models/{model}"),
    *("/health", "/ready", "/metrics", "/openapi.json"),
)


def fleet_document() -> Json:
    """Return the document of a gateway before replicas of Shoal: what it relays, and its own pages."""
    made = document()
    made["info"]["title"] = "Shoal: a fleet of replicas, OpenAI-compatible"
    made["paths"] = {path: made["paths"][path] for path in _PATHS}
    for path in _RELAYED:
        made["paths"][path]["post"]["responses"] |= {
            "429": error_answer(
                "Too many requests for the fleet or for this key; `Retry-After` says when to try again."
            ),
            "502": error_answer("Replicas failed, and no other could answer."),
            "504": error_answer("No replica answered in time."),
        }
    for name in ("ChatRequest", "CompletionRequest"):
        # Who hands KV to whom is decided at the gateway.
        del made["components"]["schemas"][name]["properties"]["kv_transfer_params"]
    return made
