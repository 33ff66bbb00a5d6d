"""How a request is turned down: one sentence, in the form that the clients of its route expect."""

from __future__ import annotations

from fastapi.responses import JSONResponse

# Status -> `error_type` of text-embeddings-inference, whose clients look at it.
_ERROR_TYPES = {
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Timeout",
}


class Refusal(Exception):
    """Ends a request with a status, a sentence, and headers."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


def refused(path: str, status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The response: Cohere's clients read `message` and Jina's `detail`, all others `error` and `error_type`."""
    if path.startswith(("/v1/", "/v2/")):
        body = {"message": sentence, "detail": sentence}
    else:
        body = {"error": sentence, "error_type": _ERROR_TYPES.get(status, "Validation")}
    return JSONResponse(body, status_code=status, headers=headers)
