"""The page: Gradio only, layout and wiring. Nothing below this package imports it."""

import os

os.environ.setdefault(
    "GRADIO_ANALYTICS_ENABLED", "False"
)  # read when gradio is imported: no call to any other host
os.environ.setdefault(
    "GRADIO_ANALYTICS_CACHE_FREQUENCY", "100000"
)  # a summary at each event costs more than it
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")  # and 10,000 events are many

from specviz.ui.page import build
from specviz.ui.server import launch_options
from specviz.ui.startup import BoundedLog, make_page, start

__all__ = ["BoundedLog", "build", "launch_options", "make_page", "start"]
