"""The routes of the server, and what they answer."""

from __future__ import annotations

import asyncio
import hmac
import uuid
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .batching import Batcher, Closed, Job, QueueFull
from .limits import ServingLimits
from .metrics import CountingMiddleware, ServingMetrics
from .refusals import Refusal, refused
from .request_body import body_reader
from .schemas import RerankDocumentsRequest, RerankRequest, SelectRequest, _Request

_OPEN = frozenset({"/health"})  # for probes, which have no key
_HTTP_SENTENCES = {
    404: "There is no {path}; see /openapi.json for what there is.",
    405: "{path} does not take {method}; see /openapi.json for what it takes.",
}


def create_app(
    ranker: Any,
    *,
    name: str,
    limits: ServingLimits | None = None,
    api_key: str | None = None,
    facts: dict | None = None,
) -> FastAPI:
    """The server as an ASGI application; it ranks while its lifespan lasts.

    Args:
        ranker: a selector, or anything with its `rank_batch`.
        name (`str`): what `/info` and the Cohere form call the model.
        limits ([`ServingLimits`], *optional*).
        api_key (`str`, *optional*): the bearer token that every route but `/health` asks for.
        facts (`dict`, *optional*): what `/info` says beside name and limits.

    Raises:
        ValueError: an empty key.
    """
    if api_key is not None and not api_key.strip():
        raise ValueError("The API key is empty; give one with characters, or none.")
    limits, metrics = limits or ServingLimits(), ServingMetrics()
    batcher: Batcher | None = None

    @asynccontextmanager
    async def lifespan(app):
        nonlocal batcher
        batcher = Batcher(ranker, limits, metrics.batch)
        metrics.waiting.set_function(lambda: batcher.waiting)
        yield
        await asyncio.to_thread(batcher.close)

    async def check_key(request: Request) -> None:
        if api_key is None or request.url.path in _OPEN:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # A header's bytes arrive as latin-1.
        right = hmac.compare_digest(given.strip().encode("latin-1"), api_key.encode("utf-8"))
        if scheme.lower() != "bearer" or not right:
            sentence = "The API key is missing or wrong; send the header 'Authorization: Bearer KEY'."
            raise Refusal(401, sentence, {"WWW-Authenticate": "Bearer"})

    async def ranked(request: Request, asked: _Request, **settings) -> dict:
        job = Job(*asked.asked(), **settings)
        try:
            batcher.submit(job)
        except QueueFull as full:
            sentence = f"{limits.max_waiting} requests wait already; try again in {full.seconds} s."
            raise Refusal(429, sentence, {"Retry-After": str(full.seconds)}) from None
        except Closed:
            raise Refusal(503, "The server is shutting down; try another one.", {"Retry-After": "5"}) from None
        answer, gone = asyncio.wrap_future(job.answer), asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({answer, gone}, timeout=limits.request_seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise Refusal(499, "The client has left before its answer.")
            sentence = f"There was no answer within {limits.request_seconds:g} s; send less at a time, or try later."
            raise Refusal(504, sentence)
        except ValueError as error:  # what only the model can know is wrong, such as a number that it needs
            raise Refusal(422, " ".join(str(error).split())) from None
        except (RuntimeError, OSError, MemoryError) as error:
            sentence = f"The model failed ({type(error).__name__}); the server's log says more."
            raise Refusal(503, sentence) from None
        finally:
            gone.cancel()
            if not answer.done():
                batcher.withdraw(job)

    app = FastAPI(
        title="warrant-hf",
        description="Evidence selection: which passages support an answer.",
        lifespan=lifespan,
        dependencies=[Depends(check_key)],
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )

    def reader(kind: type[_Request]):
        return Depends(body_reader(kind, limits))

    def post(path: str, kind: type[_Request]):
        schema = kind.model_json_schema()
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        return app.post(path, openapi_extra={"requestBody": body}, summary=kind.__doc__, response_class=JSONResponse)

    @post("/rerank", RerankRequest)
    async def rerank(request: Request, asked: RerankRequest = reader(RerankRequest)):
        result = await ranked(request, asked)
        cut = [note for note in result["notes"] if note.startswith("The question has")]
        if cut and not asked.truncate:  # this form has no place for a note
            raise Refusal(422, f"{cut[0][:-1]}; shorten the query, or set truncate to true.")
        score = "score" if asked.raw_scores else "probability"
        return JSONResponse(
            [
                {"index": item["index"], "score": item[score]} | ({"text": item["text"]} if asked.return_text else {})
                for item in result["evidence"]
            ]
        )

    @post("/v1/rerank", RerankDocumentsRequest)
    @post("/v2/rerank", RerankDocumentsRequest)
    async def rerank_documents(request: Request, asked: RerankDocumentsRequest = reader(RerankDocumentsRequest)):
        result = await ranked(request, asked)
        results = []
        for item in result["evidence"][: asked.top_n]:
            results.append({"index": item["index"], "relevance_score": item["probability"]})
            if asked.return_documents:
                given = asked.documents[item["index"]]
                results[-1]["document"] = {"text": given} if isinstance(given, str) else given
        version = request.url.path[2:3]
        meta = {"api_version": {"version": version}} | ({"warnings": result["notes"]} if result["notes"] else {})
        return JSONResponse({"id": str(uuid.uuid4()), "model": name, "results": results, "meta": meta})

    @post("/select", SelectRequest)
    async def select(request: Request, asked: SelectRequest = reader(SelectRequest)):
        result = await ranked(
            request, asked, revoke=asked.revoke, revoke_by=asked.revoke_by, return_tokens=asked.return_tokens
        )
        return JSONResponse(result | {"evidence": result["evidence"][: asked.top_k]})

    @app.get("/health")
    async def health():
        if not batcher.ready:
            raise Refusal(503, "The server takes no requests; try another one.")
        return {"status": "ok"}

    @app.get("/info")
    async def info():
        return {
            "model_id": name,
            "model_type": {"reranker": {"id2label": {"0": "support"}, "label2id": {"support": 0}}},
            "max_client_batch_size": limits.max_candidates,
            "max_concurrent_requests": limits.max_waiting,
            "max_characters": limits.max_characters,
            "max_body_bytes": limits.max_body_bytes,
            **(facts or {}),
        }

    @app.get("/metrics")
    async def metrics_text():
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(Refusal)
    async def on_refusal(request: Request, refusal: Refusal):
        return refused(request.url.path, refusal.status, refusal.sentence, refusal.headers)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException):
        sentence = _HTTP_SENTENCES.get(error.status_code, "{detail}")
        path = request.url.path if len(request.url.path) <= 80 else request.url.path[:77] + "..."
        sentence = sentence.format(path=path, method=request.method[:20], detail=error.detail)
        return refused(request.url.path, error.status_code, sentence, error.headers)

    @app.exception_handler(Exception)
    async def on_failure(request: Request, error: Exception):
        return refused(request.url.path, 500, f"The server failed ({type(error).__name__}); its log says more.")

    routes = frozenset(route.path for route in app.routes)
    app.add_middleware(CountingMiddleware, metrics=metrics, routes=routes)
    return app


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
