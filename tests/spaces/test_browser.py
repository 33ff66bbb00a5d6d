"""The page in a real browser. Needs Chromium, and `pip install playwright axe-playwright-python`."""

import json
import re
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("gradio")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from tests.spaces.conftest import HOSTILE  # noqa: E402
from warrant_hf.diagnostics.ledger_files import read_ledger  # noqa: E402
from warrant_hf.space.examples import COMPARISON, MISSING  # noqa: E402

TABS = ("Select", "Look inside", "Intervene", "Compare", "Batch", "About")
QUESTION, PASSAGES = MISSING
expect = sync_api.expect
_PATIENCE = 120_000  # milliseconds: a busy machine loads a page slowly
expect.set_options(timeout=_PATIENCE)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
        path = next(filter(None, [*found, playwright.chromium.executable_path]))
        if not Path(path).exists():
            pytest.skip("no Chromium on this machine: install one, or run `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def fresh(browser, server):
    """A page of its own."""
    with opened(browser, server) as page:
        yield page


@pytest.fixture(scope="module")
def visited(browser, server):
    with opened(browser, server) as page:
        yield page


@pytest.fixture
def page(visited):
    """A page that other tests have used, back at the first example: to load one takes seconds."""
    panel = tab(visited, "Select")
    # By way of the other example: one cannot wait for what is there already.
    examples = {"Two passages hold the answer": COMPARISON[1][0]["title"], "Something is always read": "Census"}
    for name, title in examples.items():
        panel.get_by_role("button", name=name).click()
        expect(visited.locator(".eg-card").filter(has_text=title).first).to_be_visible()
    return visited


@contextmanager
def opened(browser, server, **settings):
    page = browser.new_page(**({"viewport": {"width": 1280, "height": 900}} | settings))
    page.set_default_timeout(_PATIENCE)
    failures = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.goto(server)
    expect(page.locator(".eg-card")).to_have_count(len(PASSAGES))
    yield page
    page.close()
    assert not failures


def tab(page, name):
    page.get_by_role("tab", name=name, exact=True).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def upload(panel, file):
    """Gives the page a file until it has taken it: an input that has only just appeared may not listen yet, and one
    that has heard is gone."""
    # The cell of the finished upload; the name as text is there only while the file is on its way.
    taken = panel.get_by_role("cell", name=file.name)
    for _ in range(_PATIENCE // 20_000):
        with suppress(sync_api.TimeoutError):
            panel.locator('input[accept*="jsonl"]').set_input_files(file, timeout=10_000)
        with suppress(sync_api.TimeoutError):
            return taken.wait_for(timeout=10_000)
    taken.wait_for()


def cells(page, name, fourth):
    """The cells of a passage in a table, once the fourth says this: the sentences beside a table may come first."""
    row = page.get_by_role("row").filter(has_text=name).get_by_role("cell")
    expect(row.nth(3)).to_have_text(fourth)
    return row.all_inner_texts()


def shown(number):
    return f"{number:.4f}".replace("-", "−")


def learned(model):
    return {item["index"]: item for item in model.rank(QUESTION, PASSAGES)["evidence"]}


def test_closing_a_gate_gives_the_logits_of_permission_override(page, tiny_model, overridden):
    panel = tab(page, "Intervene")
    panel.get_by_label("Close Passage 2: Census").check()
    expect(panel.get_by_text("Closed the gate of")).to_be_visible()
    logits = overridden(tiny_model, QUESTION, PASSAGES, (None, 0.0, None, None)).logits[0].tolist()
    before = learned(tiny_model)
    probability, rank, permission, _, change = cells(
        panel, "Passage 2: Census", f"{shown(before[1]['score'])} → {shown(logits[1])}"
    )
    assert permission == f"{before[1]['permission']:.3f} → 0.000"
    assert change == f"{logits[1] - before[1]['score']:+.4f}".replace("-", "−")
    assert probability == f"{before[1]['probability']:.3f} → 0.000" and rank.endswith("→ 4")
    assert cells(panel, "Passage 3: Brandt Castle", shown(logits[2]))[4] == "0"
    expect(panel.get_by_text(f"{shown(logits[1])} is the lowest score there is: permission 0.")).to_be_visible()
    expect(panel.get_by_label("number input for Passage 2: Census")).to_have_value("0")
    panel.get_by_role("button", name="Reset").click()
    expect(panel.get_by_text("Nothing is changed.")).to_be_visible()
    expect(panel.get_by_label("Close Passage 2: Census")).not_to_be_checked()


def test_a_slider_moves_by_keyboard(page, tiny_model, overridden):
    panel = tab(page, "Intervene")
    slider = panel.get_by_role("slider", name="Passage 1: People of Brandt")
    slider.focus()
    page.keyboard.press("Home")
    for _ in range(25):
        page.keyboard.press("ArrowRight")
    expect(panel.get_by_text("→ 0.025;")).to_be_visible()
    logits = overridden(tiny_model, QUESTION, PASSAGES, (0.025, None, None, None)).logits[0].tolist()
    cells(panel, "Passage 1: People of Brandt", f"{shown(learned(tiny_model)[0]['score'])} → {shown(logits[0])}")


@pytest.mark.parametrize("typed, kept", [("7", "1"), ("-1", "0")])
def test_a_number_beyond_the_ends_of_a_slider_is_its_end(page, tiny_model, overridden, typed, kept):
    panel = tab(page, "Intervene")
    box = panel.get_by_label("number input for Passage 2: Census")
    box.fill(typed)
    box.blur()
    logits = overridden(tiny_model, QUESTION, PASSAGES, (None, float(kept), None, None)).logits[0].tolist()
    before = learned(tiny_model)[1]["score"]
    cells(panel, "Passage 2: Census", f"{shown(before)} → {shown(logits[1])}")
    expect(box).to_have_value(kept)
    closes = expect(panel.get_by_label("Close Passage 2: Census"))
    closes.to_be_checked() if kept == "0" else closes.not_to_be_checked()


def test_masking_copying_and_swapping(page, tiny_model):
    panel = tab(page, "Intervene")
    panel.get_by_text("Change the input").click()
    panel.get_by_label("Mask Passage 1: People of Brandt").check()
    expect(panel.get_by_text("Left “Passage 1: People of Brandt” out")).to_be_visible()
    alone = {item["title"]: item["score"] for item in tiny_model.rank(QUESTION, PASSAGES[1:])["evidence"]}
    cells(panel, "Passage 2: Census", re.compile(f"→ {re.escape(shown(alone['Census']))}$"))
    panel.get_by_label("Copy Passage 2: Census").check()
    expect(panel.get_by_text("Added a copy of")).to_be_visible()
    expect(panel.get_by_role("row").filter(has_text="(copy)")).to_have_count(1)
    panel.get_by_label("Swap Passage 2: Census").check()
    panel.get_by_label("Swap Passage 3: Brandt Castle").check()
    expect(panel.get_by_text("Swapped")).to_be_visible()


def test_typing_pasting_and_examples(page):
    panel = tab(page, "Select")
    panel.get_by_role("button", name="Two passages hold the answer").click()
    expect(page.locator(".eg-card")).to_have_count(len(COMPARISON[1]))
    panel.get_by_text("Paste many passages").click()
    panel.get_by_label("Passages as text").fill("# One\nfirst text\n\nsecond text\n\nthird text")
    panel.get_by_role("button", name="Put them into the table").click()
    expect(page.locator("#eg-passages").get_by_role("gridcell", name="third text")).to_be_visible()
    page.locator("#eg-passages").get_by_role("gridcell", name="third text").dblclick()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("typed by hand")
    page.keyboard.press("Enter")
    panel.get_by_role("textbox", name="Question").fill("which text is third?")
    panel.get_by_role("textbox", name="Question").press("Enter")
    expect(page.locator(".eg-card")).to_have_count(3)
    expect(page.locator(".eg-card").get_by_text("typed by hand")).to_be_visible()


def test_what_is_wrong_is_said_and_the_page_goes_on(page):
    panel = tab(page, "Select")
    panel.get_by_role("textbox", name="Question").fill("  ")
    panel.get_by_role("button", name="Rank").click()
    expect(page.get_by_text("The question is empty: write one.")).to_be_visible()
    panel.get_by_role("textbox", name="Question").fill("and now?")
    panel.get_by_role("button", name="Rank").click()
    tab(page, "Intervene")
    expect(page.get_by_text("and now?").filter(visible=True)).to_be_visible()


def test_a_row_from_a_file(fresh, rows_file, tmp_path):
    file, rows = rows_file(3)
    panel = tab(fresh, "Select")
    panel.get_by_text("Load a row from a file").click()
    bad = tmp_path / "bad.jsonl"
    bad.write_text("nothing\n")
    upload(panel, bad)
    panel.get_by_role("button", name="Put the row into the table").click()
    expect(fresh.get_by_text(re.compile(r"bad\.jsonl, line 1: this is not JSON"))).to_be_visible()
    fresh.reload()
    panel = tab(fresh, "Select")
    panel.get_by_text("Load a row from a file").click()
    upload(panel, file)
    panel.get_by_label("Row", exact=True).fill("2")
    panel.get_by_role("button", name="Put the row into the table").click()
    expect(panel.get_by_text("Row 2 of 3 is in the table.")).to_be_visible()
    expect(panel.get_by_role("textbox", name="Question")).to_have_value(rows[1]["question"])
    panel.get_by_role("button", name="Rank").click()
    expect(fresh.locator(".eg-card")).to_have_count(len(rows[1]["candidates"]))


def test_files_of_a_result(page, tmp_path, tiny_model):
    panel = tab(page, "Look inside")
    expect(panel.locator(".eg-three section")).to_have_count(3)
    panel.get_by_role("button", name="Make files").click()
    for name in ("heatmap.png", "heatmap.svg", "evidence.json"):
        with page.expect_download() as download:
            panel.get_by_role("row").filter(has_text=name.rpartition(".")[2]).get_by_role("link").click()
        download.value.save_as(tmp_path / name)
    assert (tmp_path / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert "Census" in (tmp_path / "heatmap.svg").read_text("utf-8")
    result = json.loads((tmp_path / "evidence.json").read_text())
    assert {item["index"]: item["score"] for item in result["evidence"]} == {
        at: item["score"] for at, item in learned(tiny_model).items()
    }


def test_a_screen_reader_gets_the_value_of_a_word(page):
    word = tab(page, "Look inside").locator(".eg-tok").first
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    assert word.get_attribute("title") in {node.get("name", {}).get("value", "").strip() for node in nodes}


def test_comparing(page, tiny_fid):
    panel = tab(page, "Compare")
    expect(panel.get_by_text("B: tiny, all gates open")).to_be_visible()
    panel.get_by_label("B", exact=True).click()
    page.get_by_role("option", name="tiny fid", exact=True).click()
    expect(panel.get_by_text("B: tiny fid")).to_be_visible()
    item = next(item for item in tiny_fid.rank(QUESTION, PASSAGES)["evidence"] if item["title"] == "Census")
    cells(panel, "Census", f"{item['probability']:.3f}")


def test_a_comparison_opened_while_another_list_is_ranked_is_of_that_list(fresh):
    panel = tab(fresh, "Compare")
    expect(panel.get_by_text("4 passages, tiny")).to_be_visible()
    panel = tab(fresh, "Select")
    expect(panel.locator(".eg-asked")).to_contain_text(QUESTION)
    panel.get_by_label("Model").click()
    fresh.get_by_role("option", name="slow", exact=True).click()
    panel.get_by_role("textbox", name="Question").fill("who keeps count?")
    panel.get_by_role("button", name="Rank").click()
    panel = tab(fresh, "Compare")
    expect(panel.get_by_text("who keeps count? 4 passages, slow")).to_be_visible()
    expect(panel.get_by_role("row")).to_have_count(5)


def test_answers_before_and_after(fresh, tiny_fid):
    panel = tab(fresh, "Select")
    panel.get_by_label("Model").click()
    fresh.get_by_role("option", name="tiny fid", exact=True).click()
    panel.get_by_role("button", name="Rank").click()
    panel = tab(fresh, "Intervene")
    expect(panel.get_by_text("4 passages, tiny fid")).to_be_visible()
    panel.get_by_label("Close Passage 2: Census").check()
    expect(panel.get_by_text("Closed the gate of")).to_be_visible()
    panel.get_by_role("button", name="Answer before and after").click()
    answers = panel.locator(".eg-answers p")
    expect(answers).to_have_count(2)
    answer = tiny_fid.answer(QUESTION, PASSAGES)["answer"] or "(no words)"
    assert " ".join(answers.first.inner_text().split()) == " ".join(answer.split())


def test_a_batch_its_filters_its_files_and_a_stop(fresh, rows_file, tmp_path):
    file, rows = rows_file(4)
    panel = tab(fresh, "Batch")
    upload(panel, file)
    panel.get_by_role("button", name="Run", exact=True).click()
    expect(panel.get_by_text("Done: 4 of 4 questions.")).to_be_visible()
    expect(panel.get_by_role("gridcell", name=rows[0]["question"])).to_be_visible()
    with fresh.expect_download() as download:
        panel.get_by_role("row").filter(has_text="ledger").get_by_role("link").click()
    download.value.save_as(tmp_path / "ledger.jsonl")
    records = list(read_ledger(tmp_path / "ledger.jsonl"))
    assert len(records) == sum(len(row["candidates"]) for row in rows)
    # Another one, too long to wait for.
    panel.get_by_label("Clear").click()
    panel.get_by_label("Model").click()
    fresh.get_by_role("option", name="slow", exact=True).click()
    upload(panel, rows_file(100, "many.jsonl")[0])
    panel.get_by_role("button", name="Run", exact=True).click()
    stop = panel.get_by_role("button", name="Stop")
    expect(stop).to_be_enabled()
    stop.click()
    expect(panel.get_by_text(re.compile(r"Stopped after \d+ of 100 questions"))).to_be_visible()


def test_what_visitors_write_is_text_everywhere(fresh):
    panel = tab(fresh, "Select")
    panel.get_by_text("Paste many passages").click()
    panel.get_by_label("Passages as text").fill(f"# {HOSTILE}\n{HOSTILE}\n\n{HOSTILE}")
    panel.get_by_role("button", name="Put them into the table").click()
    expect(fresh.locator("#eg-passages").get_by_role("gridcell").filter(has_text="/etc/passwd").first).to_be_visible()
    panel.get_by_role("textbox", name="Question").fill(HOSTILE)
    panel.get_by_role("button", name="Rank").click()
    expect(fresh.locator(".eg-card")).to_have_count(2)
    for name in TABS:
        tab(fresh, name)
        assert fresh.locator("img[src=x]").count() == 0 and fresh.locator("a[href^=javascript]").count() == 0
    assert fresh.title() == "Evidence gates"
    panel = tab(fresh, "Intervene")
    panel.get_by_role("checkbox").first.check()
    expect(panel.get_by_text("Closed the gate of")).to_be_visible()
    assert fresh.locator("img[src=x]").count() == 0
    assert "<img src=x" in panel.inner_text()
    assert fresh.title() == "Evidence gates"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, server, theme, rows_file):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = []
    with opened(browser, server, color_scheme=theme) as page:
        for name in TABS:
            panel = tab(page, name)
            if name == "Intervene":
                panel.get_by_label("Close Passage 2: Census").check()
                expect(panel.get_by_text("Closed the gate of")).to_be_visible()
            elif name == "Look inside":
                panel.get_by_role("button", name="Make files").click()
                expect(panel.get_by_role("link").first).to_be_visible()
            elif name == "Compare":
                expect(panel.get_by_text("passages differ.")).to_be_visible()
            elif name == "Batch":
                upload(panel, rows_file(2)[0])
                panel.get_by_role("button", name="Run", exact=True).click()
                expect(panel.get_by_text("Done: 2 of 2 questions.")).to_be_visible()
            page.wait_for_timeout(500)  # colours fade in
            found += [
                (name, violation["id"], violation["nodes"][0]["html"][:200])
                for violation in axe.run(page).response["violations"]
                if violation["impact"] in ("serious", "critical")
            ]
    assert not found


def test_the_page_fits_its_width(page):
    for name in TABS:
        tab(page, name)
        for width in (360, 768, 1440):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
        page.set_viewport_size({"width": 1280, "height": 900})
