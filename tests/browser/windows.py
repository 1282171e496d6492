"""Which browser the tests drive, how it is started, and the sizes of its windows."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
