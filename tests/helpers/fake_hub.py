"""A hub that answers as a test wants."""

from __future__ import annotations

import threading

HUB_ID = "somebody/model"


class Hub:
    """Downloads `folder` in four parts, each of which waits for `go_on`."""

    def __init__(self, folder):
        self.folder, self.parts, self.ended = folder, threading.Semaphore(0), threading.Event()
        self.error = None

    def snapshot_download(self, hub_id, *, tqdm_class, **options):
        try:
            coming = tqdm_class(total=100, unit="B", name="huggingface_hub.snapshot_download.transfer")
            written = tqdm_class(total=100, unit="B", name="huggingface_hub.snapshot_download")
            for _ in range(4):
                assert self.parts.acquire(timeout=20)
                if self.error is not None:
                    raise self.error
                coming.update(25)
                written.update(25)
            return str(self.folder)
        finally:
            self.ended.set()

    def go_on(self, parts=4):
        self.parts.release(parts)
