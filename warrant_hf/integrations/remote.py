"""A selector that runs elsewhere: `rank` over HTTP, from the server that `warrant-hf serve` starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import httpx

_TEXTS = ("text", "title", "id")
# Fields of an evidence that those of a passage do not replace.
_TAKEN = {"index", "rank", "score", "probability", "attention", "permission", "effective", "revoked"}


class RemoteSelector:
    """Asks `POST /select` of a server; results are those of `rank` of its model.

    Args:
        url (`str`): of the server, such as `"http://127.0.0.1:8080"`.
        api_key (`str`, *optional*): its bearer token; from the environment variable `WARRANT_HF_API_KEY` unless given.
        timeout (`float`): seconds until a request is given up.

    Raises:
        ValueError: no address of the web.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0):
        if not str(url).startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}; give the address of a server, such as 'http://127.0.0.1:8080'.")
        self.url, self.timeout = str(url).rstrip("/"), timeout
        self._api_key = os.environ.get("WARRANT_HF_API_KEY") if api_key is None else api_key

    def rank(self, question: str, passages: Sequence[str | dict], **settings: Any) -> dict:
        """The dict of `rank`; without passages, one whose `evidence` is empty.

        Args:
            passages: texts or dicts. Of a dict, `text`, `title`, `id` and numbers are sent (a precision may need
                them), also in dicts within it; the rest, which no selector reads, stays here and is in the result.
            settings: `revoke`, `revoke_by`, `top_k` and `return_tokens`, as in `rank`.

        Raises:
            ValueError: the server says what of the question or the passages cannot be used.
            OSError: no answer, a full queue, a wrong key, or a server of another kind.
        """
        if not len(passages):
            return {"question": question, "evidence": [], "mass": 0.0, "notes": ["No passage was left to read."]}
        body = {"question": question, "passages": [_sent(passage) for passage in passages], **settings}
        headers = {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}
        try:
            answer = httpx.post(f"{self.url}/select", json=body, headers=headers, timeout=self.timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OSError(f"{self.url} does not answer ({error}); is `warrant-hf serve` running there?") from error
        try:
            result = answer.json()
        except ValueError:
            result = None
        if answer.is_success and isinstance(result, dict) and "evidence" in result:
            for item in result["evidence"]:
                _put_back(item, passages[item["index"]])
            return result
        sentence = result.get("error") if isinstance(result, dict) else None
        if not isinstance(sentence, str):
            raise OSError(
                f"{self.url} answers {answer.status_code} to /select, and is no server of `warrant-hf serve`; check "
                "the address."
            )
        if answer.status_code == 422:
            raise ValueError(sentence)
        raise OSError(f"{self.url} answers {answer.status_code}: {sentence}")


def _sent(passage):
    if not isinstance(passage, Mapping):
        return passage
    kept = {name: passage[name] for name in _TEXTS if isinstance(passage.get(name), str)}
    return _numbers(passage) | kept | {"text": passage.get("text")}


def _put_back(item, passage):
    for name, value in passage.items() if isinstance(passage, Mapping) else ():
        other = f"input_{name}"  # as `rank` calls a field whose name is one of its own
        item[other if name in _TAKEN or other in item else name] = value


def _numbers(values):
    kept = {name: value for name, value in values.items() if isinstance(value, Real) and isinstance(name, str)}
    inner = {name: _numbers(value) for name, value in values.items() if isinstance(value, Mapping)}
    return kept | {name: numbers for name, numbers in inner.items() if numbers}


__all__ = ["RemoteSelector"]
