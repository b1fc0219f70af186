"""A real browser without a window: opens a page from disk, acts on it, and tells what happened."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

# before anything else on the page: what must not happen is counted
WATCH = """<script>window.seen = {errors: [], refused: []};
addEventListener("error", e => seen.errors.push(String(e.message)));
addEventListener("securitypolicyviolation", e => seen.refused.push(e.blockedURI));</script>"""
TELL = """<script>addEventListener("load", () => setTimeout(() => {
  seen.opened = performance.timing.domContentLoadedEventEnd - performance.timing.navigationStart;
  seen.requests = performance.getEntriesByType("resource").map(r => r.name);
  try { seen.found = (() => { ACTIONS })(); } catch (e) { seen.errors.push(String(e)); }
  const out = document.createElement("pre"); out.id = "seen"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 1000));</script>"""


def visit(page: Path, actions: str, width: int = 1280) -> dict[str, Any]:
    """actions: JavaScript that returns something JSON-able. Skips where there is no Chromium."""
    named = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    browser = next((found for found in named if found), None)
    if browser is None:
        pytest.skip("no Chromium at hand: the page was not opened in a browser")
    html = page.read_text("utf-8")
    watched = page.with_name(f"watched-{page.name}")
    html = html.replace('<meta name="viewport"', WATCH + '<meta name="viewport"', 1)
    watched.write_text(html.replace("</body>", TELL.replace("ACTIONS", actions) + "</body>"), "utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    flags += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=4000"]
    done = subprocess.run([browser, *flags, watched.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found.group(1)))
