"""A selector that runs elsewhere: `rank` over HTTP, from the server that `warrant-hf serve` starts."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import httpx

from ..data.strict_json import parse_json
from ..modeling.evidence_ranking import _check_choices, _revoked
from ..modeling.processing_evidence import check_list, check_question, full_text
from .remote_passages import as_ranked, sent

_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_ROUTE = re.compile(r"(?:/v[12])?/(?:rerank|select)$")
_MOST_BYTES = 64 * 1024 * 1024  # of an answer
_LONGEST = 86_400  # seconds; a day


class RemoteSelector:
    """Asks `POST /select` of a server; results are those of `rank` of its model.

    Args:
        url (`str`): of the server, such as `"http://127.0.0.1:8080"`.
        api_key (`str`, *optional*): its bearer token; from the environment variable `WARRANT_HF_API_KEY` unless given,
            which may be empty for none.
        timeout (`float`): seconds until a request is given up, from its start to the last byte of its answer.

    Raises:
        ValueError: no address of a server, a key that cannot be sent, or a time out of range.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0):
        address = str(url).rstrip("/")
        if not is_address(address) or not address.isprintable():
            raise ValueError(f"url is {url!r}; give the address of a server, such as 'http://127.0.0.1:8080'.")
        if _ROUTE.search(address):
            server = _ROUTE.sub("", address)
            raise ValueError(f"url is {url!r}; give the address of the server without the route, {server!r}.")
        number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if not number or not 0 < timeout <= _LONGEST:
            raise ValueError(f"timeout is {timeout!r}; give seconds, above 0 and at most {_LONGEST:,}.")
        source = "WARRANT_HF_API_KEY" if api_key is None else "api_key"
        key = (os.environ.get(source) or None) if api_key is None else api_key
        if key is not None and not (isinstance(key, str) and key and key == key.strip() and key.isprintable()):
            raise ValueError(  # without the key, which is secret
                f"{source} is no key: it is empty, has white space around it, or is no printable text; give the key "
                "of the server, or none."
            )
        self.url, self.timeout = address, timeout
        # The server compares bytes of UTF-8; httpx by itself takes ASCII only.
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}

    def rank(
        self,
        question: str,
        passages: Sequence[str | dict],
        *,
        revoke: Iterable[int] = (),
        revoke_by: str = "gate",
        top_k: int | None = None,
        return_tokens: bool = False,
        progress: Callable | None = None,
    ) -> dict:
        """The dict of `rank`.

        Args:
            question, revoke, revoke_by, top_k, return_tokens: as in `rank`.
            passages: texts or dicts. Of a dict, `text`, `title` and the numbers that a precision could use (finite, of
                float32's size, no `bool`) are sent, also in dicts within it, down to 30 of them and not twice round a
                circle; the rest, which no selector reads, stays here and is in the result.
            progress: has to be `None`, because a server does not tell how far it is.

        Raises:
            ValueError: what `rank` refuses, here or on the server, or a `progress`.
            OSError: no answer, a full queue, a wrong key, or a server of another kind.
        """
        if progress is not None:
            raise ValueError("progress is given, and a server does not tell how far it is; leave it out.")
        _check_choices(top_k, revoke_by, batch_size=1)
        passages = list(check_list(passages, "passages[0]", "passages"))
        revoke = sorted(_revoked(revoke, len(passages), 0))
        check_question(question)
        places = [f"passages[0][{at}]" for at in range(len(passages))]
        for passage, place in zip(passages, places):
            full_text(passage, place)
        if not passages:
            # A server takes no empty list; what it gives without its only passage is the same.
            return self.rank(question, ["-"], revoke=[0], revoke_by="mask") | {"evidence": []}
        given = [sent(passage, place) for passage, place in zip(passages, places)]
        most = None if top_k is None else max(1, int(top_k))  # a server gives one at least
        body = {"question": question, "passages": given, "revoke": revoke, "revoke_by": revoke_by, "top_k": most}
        body |= {"return_tokens": bool(return_tokens)}
        answer, result = self._asked(json.dumps(body, allow_nan=False, ensure_ascii=False))  # escapes take room
        if answer.is_success:
            ranked = as_ranked(result, passages, given, most, return_tokens)
            if ranked is not None:
                return ranked | {"evidence": ranked["evidence"][:top_k]}
        if answer.has_redirect_location:
            elsewhere = answer.headers["location"]
            raise OSError(
                f"{self.url} answers {answer.status_code} and sends requests on to {elsewhere!r}; give the address of "
                "the server itself."
            )
        sentence = result.get("error") if isinstance(result, dict) else None
        if answer.is_success or not isinstance(sentence, str):
            raise OSError(
                f"{self.url} answers {answer.status_code} to /select, and is no server of `warrant-hf serve`; check "
                "the address."
            )
        if answer.status_code == 422:
            raise ValueError(sentence)
        raise OSError(f"{self.url} answers {answer.status_code}: {sentence}")

    def _asked(self, body: str) -> tuple[httpx.Response, Any]:
        """The answer, and the JSON of its body; `None` where that is none."""
        found = futures.Future()
        try:
            with httpx.Client(timeout=self.timeout) as client:
                # httpx bounds each read and not their sum. A thread need not be waited for; when the client is closed,
                # so are its connections, and the thread ends.
                threading.Thread(target=self._read, args=(client, body, found), daemon=True).start()
                answer, content = found.result(self.timeout)
        except (futures.TimeoutError, httpx.TimeoutException) as error:
            raise OSError(
                f"{self.url} has not answered within {self.timeout:g} s; check that `warrant-hf serve` is running "
                "there, send less at a time, or give a longer timeout."
            ) from error
        except httpx.HTTPError as error:
            raise OSError(f"{self.url} does not answer ({error}); is `warrant-hf serve` running there?") from error
        except (httpx.InvalidURL, ImportError, OSError, OverflowError, ValueError) as error:
            raise OSError(
                f"{self.url} cannot be asked ({error}); check the address, and the proxy in the environment variables "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY."
            ) from error
        if len(content) > _MOST_BYTES:
            raise OSError(
                f"{self.url} answers with more than {_MOST_BYTES // 1024**2} MiB; send less at a time, or ask for "
                "less with top_k."
            )
        try:
            return answer, parse_json(content.decode("utf-8-sig"))
        except ValueError:
            return answer, None

    def _read(self, client, body, found):
        """Puts the answer and its bytes into the future `found`; of too large a body, as many as show that it is."""
        headers = {"Content-Type": "application/json", **self._headers}
        content = bytearray()
        try:
            with client.stream("POST", f"{self.url}/select", content=body, headers=headers) as answer:
                for chunk in answer.iter_bytes():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        break
            found.set_result((answer, content))
        except BaseException as error:  # of whatever kind, it belongs to the thread that waits
            found.set_exception(error)


def is_address(text: str) -> bool:
    """Whether a text is an address of the web."""
    return _ADDRESS.match(text) is not None


__all__ = ["RemoteSelector", "is_address"]
