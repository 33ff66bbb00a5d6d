"""The adapters against the real libraries: they give what `rank` gives, and leave alone what they were given."""

import copy
import os
import subprocess
import sys

import pytest

from tests.serving.running import running

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

QUESTION = "where was ada born?"
TEXTS = ["york is a city.", "ada was born in york.", "the thames is a river."]
METADATA = [{"title": "york", "page": 7, "probability": "mine"}, {"source": {"file": "a"}, "answerability": 2}, {}]
SCORES = ("probability", "attention", "permission", "effective")
ADDED = (*SCORES, "answerability")


def langchain(**settings):
    documents = pytest.importorskip("langchain_core.documents")
    from warrant_hf.integrations.langchain import WarrantCompressor

    compressor = WarrantCompressor(**settings)

    def run(texts, metadata):
        given = [documents.Document(page_content=text, metadata=known) for text, known in zip(texts, metadata)]
        before = copy.deepcopy(given)
        kept = compressor.compress_documents(given, QUESTION)
        assert given == before
        return [(document.page_content, document.metadata) for document in kept]

    return run


def llama_index(**settings):
    schema = pytest.importorskip("llama_index.core.schema")
    from warrant_hf.integrations.llama_index import WarrantPostprocessor

    postprocessor = WarrantPostprocessor(**settings)

    def run(texts, metadata):
        given = [
            schema.NodeWithScore(node=schema.TextNode(text=text, metadata=known), score=0.1)
            for text, known in zip(texts, metadata)
        ]
        before = copy.deepcopy(given)
        kept = postprocessor.postprocess_nodes(given, query_str=QUESTION)
        assert given == before
        for node in kept:
            assert node.score == node.node.metadata["probability"]
            prompt = node.node.get_content(schema.MetadataMode.LLM)
            assert not any(f"\n{name}:" in f"\n{prompt}" for name in ADDED)
        return [(node.node.text, node.node.metadata) for node in kept]

    return run


def haystack(top_n=None, **settings):
    library = pytest.importorskip("haystack")
    from warrant_hf.integrations.haystack import WarrantRanker

    pipeline = library.Pipeline()
    pipeline.add_component("ranker", WarrantRanker(top_k=top_n, **settings))

    def run(texts, metadata):
        given = [library.Document(content=text, meta=known) for text, known in zip(texts, metadata)]
        before = copy.deepcopy(given)
        kept = pipeline.run({"ranker": {"query": QUESTION, "documents": given}})["ranker"]["documents"]
        assert given == before
        assert all(document.score == document.meta["probability"] for document in kept)
        return [(document.content, document.meta) for document in kept]

    return run


ADAPTERS = pytest.mark.parametrize("adapter", [langchain, llama_index, haystack])


@pytest.fixture(scope="module")
def expected(tiny_model):
    result = tiny_model.rank(QUESTION, [{"text": TEXTS[0], "title": "york"}, *TEXTS[1:]])
    return [item | {"answerability": result["answerability"]} for item in result["evidence"]]


@ADAPTERS
def test_documents_come_ranked_with_their_metadata_and_scores(adapter, tiny_model, expected):
    kept = adapter(model=tiny_model)(TEXTS, METADATA)
    assert [text for text, _ in kept] == [item["text"] for item in expected]
    for (_, metadata), item in zip(kept, expected, strict=True):
        own = {f"input_{key}" if key in ADDED else key: value for key, value in METADATA[item["index"]].items()}
        assert metadata == own | {name: pytest.approx(item[name], abs=1e-5) for name in ADDED}


@ADAPTERS
def test_top_and_threshold(adapter, tiny_model, expected):
    best, second = expected[:2]
    assert best["probability"] > second["probability"]
    assert [text for text, _ in adapter(model=tiny_model, top_n=2)(TEXTS, METADATA)] == [best["text"], second["text"]]
    between = (best["probability"] + second["probability"]) / 2
    assert [text for text, _ in adapter(model=tiny_model, threshold=between)(TEXTS, METADATA)] == [best["text"]]
    assert adapter(model=tiny_model, threshold=1.0)(TEXTS, METADATA) == []
    assert adapter(model=tiny_model)([], []) == []


@ADAPTERS
def test_a_folder_names_the_model(adapter, tiny_model_dir, expected):
    kept = adapter(model=str(tiny_model_dir))(TEXTS, METADATA)
    assert [text for text, _ in kept] == [item["text"] for item in expected]


@ADAPTERS
def test_an_address_names_a_server(adapter, tiny_model, expected):
    with running(tiny_model) as client:
        kept = adapter(model=str(client.base_url).replace("http", "HTTP"))(TEXTS, METADATA)
    assert [text for text, _ in kept] == [item["text"] for item in expected]
    for (_, metadata), item in zip(kept, expected, strict=True):
        assert {name: metadata[name] for name in ADDED} == {name: item[name] for name in ADDED}


@ADAPTERS
@pytest.mark.parametrize(
    "settings, part",
    [
        ({"top_n": 0}, r"top_[nk] is 0; give a whole number of 1 or more"),
        ({"threshold": 1.5}, "threshold is 1.5; give a probability from 0 to 1"),
        ({"model": 3}, "model is a int; give a selector, its folder, Hub id or address, or None"),
        ({"topn": 1}, "topn"),
    ],
)
def test_a_wrong_setting_is_one_sentence(adapter, tiny_model, settings, part):
    with pytest.raises(Exception, match=part):
        adapter(**{"model": tiny_model} | settings)(TEXTS, METADATA)


@ADAPTERS
def test_blank_documents_come_last_with_zeros(adapter, tiny_model, expected):
    texts, metadata = [" \n", *TEXTS, ""], [{"page": 1}, *METADATA, {"title": "york"}]
    nothing = tiny_model.rank(QUESTION, [])["answerability"]
    with running(tiny_model) as client:
        for model in (tiny_model, str(client.base_url)):
            kept = adapter(model=model)(texts, metadata)
            assert [text for text, _ in kept] == [*(item["text"] for item in expected), " \n", ""]
            for (_, known), item in zip(kept, expected):
                assert {name: known[name] for name in ADDED} == {
                    name: pytest.approx(item[name], abs=1e-5) for name in ADDED
                }
            assert [{name: known[name] for name in SCORES} for _, known in kept[3:]] == [
                dict.fromkeys(SCORES, 0.0)
            ] * 2
            assert kept[3][1]["page"] == 1 and kept[4][1]["answerability"] == kept[0][1]["answerability"]
            assert len(adapter(model=model, threshold=1e-12)(texts, metadata)) == 3
            only = adapter(model=model)(["", " "], [{}, {}])
            assert [known for _, known in only] == [dict.fromkeys(SCORES, 0.0) | {"answerability": nothing}] * 2


@pytest.mark.parametrize("adapter", [langchain, llama_index])  # Haystack itself refuses such a text
def test_a_wrong_document_is_named_by_its_place(adapter, tiny_model):
    with pytest.raises(ValueError, match=r"passages\[0\]\[2\] has half a surrogate pair at character 2"):
        adapter(model=tiny_model)(["", "york is a city.", "a \ud800"], [{}, {}, {}])


def test_a_haystack_document_of_none_is_an_error(tiny_model):
    library = pytest.importorskip("haystack")
    from warrant_hf.integrations.haystack import WarrantRanker

    given = [library.Document(content=" "), library.Document(content=None)]
    with pytest.raises(ValueError, match=r"passages\[0\]\[1\] is .*; give a text"):
        WarrantRanker(model=tiny_model).run(QUESTION, given)


def test_a_haystack_pipeline_is_written_and_read(tiny_model, tiny_model_dir):
    library = pytest.importorskip("haystack")
    from warrant_hf.integrations.haystack import WarrantRanker

    pipeline = library.Pipeline()
    pipeline.add_component("ranker", WarrantRanker(model=str(tiny_model_dir), top_k=2, threshold=0.1))
    trusted = ["warrant_hf.integrations.haystack"]
    again = library.Pipeline.loads(pipeline.dumps(), allowed_modules=trusted).get_component("ranker")
    assert (again.model, again.top_k, again.threshold) == (str(tiny_model_dir), 2, 0.1)
    with pytest.raises(ValueError, match="which a file cannot hold"):
        WarrantRanker(model=tiny_model).to_dict()
    one = again.run(QUESTION, [library.Document(content=text) for text in TEXTS], top_k=1, threshold=0.0)
    assert len(one["documents"]) == 1


def test_a_langchain_retriever_uses_it(tiny_model, expected):
    documents = pytest.importorskip("langchain_core.documents")
    from langchain_core.runnables import RunnableLambda

    from warrant_hf.integrations.langchain import WarrantCompressor

    compressor = WarrantCompressor(model=tiny_model, top_n=1)
    retrieved = [documents.Document(page_content=text, metadata=known) for text, known in zip(TEXTS, METADATA)]
    chain = RunnableLambda(lambda query: compressor.compress_documents(retrieved, query))
    assert [document.page_content for document in chain.invoke(QUESTION)] == [expected[0]["text"]]


def test_a_missing_library_names_its_extra():
    extras = {"langchain": "langchain_core", "llama-index": "llama_index", "haystack": "haystack"}
    code = (
        "import importlib, sys\n"
        f"for extra, library in {extras}.items():\n"
        "    sys.modules[library] = None\n"
        "    try: importlib.import_module('warrant_hf.integrations.' + extra.replace('-', '_'))\n"
        "    except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for line, extra in zip(lines, extras, strict=True):
        assert line.endswith(f" is not installed; run: pip install 'warrant-hf[{extra}]'")
