"""The page: Gradio only, layout and wiring. Nothing below this package imports it."""

import os

# gradio reads these when it is imported: no call to any other host
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# a summary at each event costs more than the event
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "100000")
# and 10,000 events are many
os.environ.setdefault("GRADIO_ANALYTICS_MAX_EVENTS", "100")

from specviz.ui.page import build
from specviz.ui.server import launch_options
from specviz.ui.startup import BoundedLog, make_page, start

__all__ = ["BoundedLog", "build", "launch_options", "make_page", "start"]
