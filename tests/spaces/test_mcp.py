"""The endpoints as tools of the Model Context Protocol, called by its own client on a loopback port."""

import ast

import pytest

pytest.importorskip("gradio")
pytest.importorskip("mcp")

import anyio  # noqa: E402
from mcp import ClientSession  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

from tests.spaces.conftest import PASSAGES, QUESTION  # noqa: E402
from warrant_hf.space.app import launch  # noqa: E402


@pytest.fixture(scope="module")
def ask(tiny_model):
    """`ask(request)` is `await request(session)` of a client that has connected."""
    blocks = launch({"tiny": tiny_model}, host="127.0.0.1", block=False, mcp=True)

    async def connected(request):
        async with (
            streamable_http_client(f"{blocks.local_url}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return await request(session)

    yield lambda request: anyio.run(connected, request)
    blocks.close()


def test_every_endpoint_is_a_tool_that_says_what_it_takes(ask):
    tools = {tool.name: tool for tool in ask(lambda session: session.list_tools()).tools}
    assert set(tools) == {"select", "revoke", "intervene", "compare"}
    for tool in tools.values():
        properties = tool.inputSchema["properties"]
        assert tool.description and all(described["description"] for described in properties.values())
        assert set(tool.inputSchema["required"]) == set(properties)


def test_select_gives_what_rank_gives(ask, tiny_model):
    arguments = {"question": QUESTION, "passages": PASSAGES}
    result = ask(lambda session: session.call_tool("select", arguments))
    (content,) = result.content
    # Gradio writes a result as Python does.
    assert not result.isError and ast.literal_eval(content.text) == tiny_model.rank(QUESTION, PASSAGES)


def test_what_is_wrong_is_said(ask):
    arguments = {"question": QUESTION, "passages": ["x", 3]}
    result = ask(lambda session: session.call_tool("select", arguments))
    assert result.isError and "passages[1] must be a text" in result.content[0].text
