"""Find a Chromium for the browser tests, or install one; print its path.

`make test` puts the path into WORKBENCH_BROWSER, which the tests read. Progress goes to stderr.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def runs(browser: str) -> bool:
    """Return whether a browser starts.

    Ubuntu's `chromium-browser` can be a stub, and libraries that a browser needs can be missing.
    """
    try:
        done = subprocess.run([browser, "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def candidates() -> Iterator[str]:
    """Yield the possible paths of a browser: WORKBENCH_BROWSER, the system's, Playwright's."""
    yield from filter(None, [os.environ.get("WORKBENCH_BROWSER"), *map(shutil.which, NAMES)])
    downloads = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright"
    yield from map(str, sorted(Path(downloads).glob("chromium-*/chrome-linux*/chrome"), reverse=True))


def find_browser() -> str | None:
    """Return the first browser that starts, or None."""
    return next(filter(runs, candidates()), None)


def installers() -> Iterator[list[list[str]]]:
    """Yield the ways to install a browser, best first, each as commands to run in order."""
    debian = Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None
    if debian and os.geteuid() == 0:
        yield [["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]]
    playwright = [sys.executable, "-m", "playwright", "install", "chromium"]
    yield [[*playwright, "--with-deps"] if os.geteuid() == 0 else playwright]


def install_browser(find: Callable[[], str | None] = find_browser) -> str | None:
    """Install a browser in the first way that yields one which starts; return its path, or None."""
    for commands in installers():
        for command in commands:
            print("browser:", *command, file=sys.stderr, flush=True)
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            if subprocess.run(command, stdout=sys.stderr, env=environment, check=False).returncode != 0:
                break
        browser = find()
        if browser is not None:
            return browser
    return None


def main() -> int:
    """Print the path of a browser that starts; return the exit status."""
    browser = find_browser() or install_browser()
    if browser is None:
        print(
            "browser: no Chromium starts here, and none could be installed. Install Chromium or Chrome "
            "(Debian: `apt install chromium`), or name one: `make test WORKBENCH_BROWSER=/path/to/chrome`. "
            "`make test-fast` needs none.",
            file=sys.stderr,
        )
        return 1
    print(browser)
    return 0


if __name__ == "__main__":
    sys.exit(main())
