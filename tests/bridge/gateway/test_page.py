"""The files of the page, and what they never do for any session text. The tests in tests/e2e run
them in a browser.
"""

import os
import re

from shim.bridge.gateway.app import PAGE_ASSETS_FOLDER, SHARED_ASSETS, STORY_ASSETS_FOLDER

ASSETS = sorted(os.listdir(PAGE_ASSETS_FOLDER))
SCRIPTS = [name for name in ASSETS if name.endswith(".js")]


def read(name, folder=PAGE_ASSETS_FOLDER):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def test_scripts_contain_no_html_injection_and_no_eval():
    for name in SCRIPTS:
        script = read(name)
        for forbidden_text in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert forbidden_text not in script, f"{name}: {forbidden_text}"


def test_page_has_no_inline_scripts_styles_or_event_handlers():
    page = read("index.html")
    assert not re.search(r"<style|\son[a-z]+=|\sstyle=|javascript:", page)
    assert all(inside == "" for inside in re.findall(r"<script[^>]*>([^<]*)</script>", page))


def test_page_files_contain_no_urls_of_other_servers():
    for name in ASSETS:
        urls = re.findall(
            r"(?:https?:)?//[a-z][^\s\"'`]*",
            re.sub(r"^\s*//.*|\s// .*", "", read(name), flags=re.MULTILINE),
        )
        assert [url for url in urls if not url.startswith("http://www.w3.org/")] == [], name


def test_page_references_only_existing_assets():
    file_names = re.findall(r'(?:src|href)="/assets/([^"]+)"', read("index.html"))
    assert len(file_names) > 10
    for name in file_names:
        assert os.path.exists(
            os.path.join(STORY_ASSETS_FOLDER if name in SHARED_ASSETS else PAGE_ASSETS_FOLDER, name)
        ), name
    assert {name for name in SCRIPTS if name != "worker.js"} <= set(file_names)


def test_scripts_store_no_token_in_local_storage():
    for name in SCRIPTS:
        script = read(name)
        assert "localStorage" not in script.replace("readStored(localStorage", "").replace(
            "storeValue(localStorage", ""
        ), name
        assert not re.search(r'storeValue\([a-zA-Z]+, "?(token|cookie)', script), name
