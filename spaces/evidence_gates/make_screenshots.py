"""Writes `screenshots/`: the page as a browser shows it, in three widths, by day and by night.

pip install playwright        # and Chromium: its own (`playwright install chromium`) or the system's, by --browser
python make_screenshots.py --browser /usr/bin/chromium
"""

import argparse
import io
import json
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import warrant_hf
from warrant_hf.data.readers import read_rows
from warrant_hf.space.app import launch

FOLDER = Path(__file__).with_name("screenshots")
WIDTHS = (360, 768, 1440)
THEMES = ("light", "dark")
TABS = ("Select", "Look inside", "Intervene", "Compare", "Batch", "About")
LARGEST = 300_000  # bytes


def open_tab(page: Page, name: str) -> None:
    """Goes to a tab, which hides behind a menu where the screen is narrow."""
    tab = page.get_by_role("tab", name=name, exact=True)
    if not tab.is_visible():
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown").get_by_role("button", name=name, exact=True).click()
        return
    tab.click()


def show(page: Page, name: str, rows: Path) -> None:
    """Brings a tab into the state that is worth a picture."""
    open_tab(page, name)
    if name == "Intervene":
        page.get_by_label("Close Passage 2: Census").check()
        page.get_by_text("Closed the gate of").wait_for()
    elif name == "Compare":
        page.get_by_text("passages differ.").wait_for()
    elif name == "Batch":
        page.get_by_role("tabpanel").filter(visible=True).locator('input[accept*="jsonl"]').set_input_files(rows)
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_text("Done:").wait_for()
    page.wait_for_timeout(600)  # transitions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--browser", help="path of a Chromium; without it, the one of Playwright")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    server = launch(warrant_hf.load_default(), host="127.0.0.1", block=False)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        rows = Path(folder) / "questions.jsonl"
        rows.write_text("".join(json.dumps(row.to_dict()) + "\n" for row in read_rows("world:12:1")), "utf-8")
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=["--no-sandbox"])
        for width in WIDTHS:
            for theme in THEMES:
                page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
                page.set_default_timeout(120_000)
                page.goto(server.local_url)
                page.locator(".eg-card").first.wait_for()
                for tab in TABS:
                    show(page, tab, rows)
                    file = FOLDER / f"{tab.lower().replace(' ', '_')}_{width}_{theme}.png"
                    save(page.screenshot(full_page=True), file)
                page.close()
        browser.close()
    server.close()


def save(picture: bytes, file: Path) -> None:
    """A picture of few colours, which a page is, takes a quarter of the space with a palette."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3).save(
        file, optimize=True
    )
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, more than {LARGEST:,}; show less in it.")


if __name__ == "__main__":
    main()
