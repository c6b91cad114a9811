"""Headless Chromium with a page of the console, and what a test forbids: requests to other hosts, errors and violations of the policy."""

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image, ImageDraw

#: Where Debian and others install Chromium; the variable names another one.
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The path of the browser; skips the test if there is none."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    found = os.environ.get("CHROMIUM") or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("there is no Chromium: install it, or give its path in the variable CHROMIUM")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A browser of playwright."""
    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox needs privileges that containers lack; the browser loads pages of this machine's own server only.
        running = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield running
        finally:
            running.close()


class Console:
    """One page of a browser.

    Attributes:
        page: Playwright's page.
        messages: Errors and warnings of the page, such as violations of its content security policy.
        hosts: The hosts that it sent requests to.
    """

    def __init__(self, running: Any, url: str, *, width: int = 1280, scheme: str = "light", **options: Any) -> None:
        """Opens `url` in a window of `width` pixels, with the colour scheme `scheme`."""
        self.context = running.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._take_message)
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.goto(url)

    def close(self) -> None:
        self.context.close()

    def _take_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.messages.append(message.text)


#: Dispatches what a browser sends when a file is dropped on the element.
DROP = """
(element, { name, type, base64 }) => {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  for (const kind of ["dragover", "drop"])
    element.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}
"""


def picture_of_one() -> bytes:
    """A PNG of 64 x 64 pixels with a white digit 1 on black."""
    picture = Image.new("L", (64, 64), 0)
    pen = ImageDraw.Draw(picture)
    pen.line((34, 4, 34, 60), fill=255, width=10)
    pen.line((34, 4, 22, 16), fill=255, width=8)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
