"""Files that are sent to be opened: one at a time, small, few, and deleted."""

import os
import secrets
from itertools import accumulate
from pathlib import Path
from tempfile import SpooledTemporaryFile

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

MOST_BYTES = 128 << 20
"""Of all files together: beyond it the oldest are deleted."""


async def upload(request: Request) -> Response:
    """The place of the one file in the field `files`, by which an event names it next. Gradio deletes it in a while."""
    try:
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("files")
            if file is None:
                return PlainTextResponse("a file must be in the field 'files'", status_code=400)
            place = await anyio.to_thread.run_sync(_keep, file.file, file.filename, request.app)
    except OSError as error:
        return PlainTextResponse(
            f"the server cannot keep this file ({error.strerror})", status_code=507
        )
    return JSONResponse([str(place)])


def _keep(file: SpooledTemporaryFile, name: str | None, app: object) -> Path:
    """The file under a name that nobody can guess; only its ending is the sender's."""
    kept, suffix = (
        app.get_blocks().upload_file_set,
        ".gz" if str(name).endswith(".gz") else ".jsonl",
    )
    place = Path(app.uploaded_file_dir) / f"{secrets.token_hex(16)}{suffix}"
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.write_bytes(file.read())
    except OSError:
        place.unlink(missing_ok=True)
        raise
    kept.add(str(place))
    newest = sorted(filter(os.path.exists, list(kept)), key=os.path.getmtime, reverse=True)
    for path, size in zip(newest, accumulate(map(os.path.getsize, newest)), strict=True):
        if size > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
            kept.discard(path)
    return place
