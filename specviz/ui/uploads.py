"""Files that are sent to be opened: one at a time, small, few, and deleted."""

import errno
import os
import secrets
from pathlib import Path
from tempfile import SpooledTemporaryFile

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from specviz.trace.file import MAX_UPLOAD_BYTES

MOST_BYTES = 128 << 20
"""Of all files together: beyond it the oldest are deleted."""
WORDS = {errno.ENOSPC: "the disk of this server is full", errno.EDQUOT: "the disk of this server is full"}


async def upload(request: Request) -> Response:
    """The place of the one file in the field `files`, by which an event names it next. Gradio deletes it in a while."""
    try:
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("files")
            if file is None:
                return PlainTextResponse("a file must be in the field 'files'", status_code=400)
            if file.size > MAX_UPLOAD_BYTES:
                words = f"a file has at most {MAX_UPLOAD_BYTES >> 20} MB (got {file.size / (1 << 20):.1f} MB)"
                return PlainTextResponse(words, status_code=413)
            place = await anyio.to_thread.run_sync(_keep, file.file, file.filename, request.app)
    except OSError as error:
        words = WORDS.get(error.errno, error.strerror or "it cannot be written")
        return PlainTextResponse(f"this file cannot be opened: {words}", status_code=507)
    return JSONResponse([str(place)])


def _keep(file: SpooledTemporaryFile, name: str | None, app: object) -> Path:
    """The file under a name that nobody can guess; only its ending is the sender's."""
    kept, suffix = app.get_blocks().upload_file_set, ".gz" if str(name).endswith(".gz") else ".jsonl"
    place = Path(app.uploaded_file_dir) / secrets.token_hex(16) / f"sent{suffix}"
    place.parent.mkdir(parents=True)
    try:
        place.write_bytes(file.read())
    except OSError:
        place.unlink(missing_ok=True)
        place.parent.rmdir()
        raise
    kept.add(str(place))
    sizes = {path: os.stat(path) for path in kept if os.path.exists(path)}
    too_many = sum(each.st_size for each in sizes.values()) - MOST_BYTES
    for path in sorted(sizes, key=lambda path: sizes[path].st_mtime):
        if too_many <= 0:
            break
        too_many -= sizes[path].st_size
        Path(path).unlink(missing_ok=True)
    kept.intersection_update(path for path in sizes if os.path.exists(path))
    return place
