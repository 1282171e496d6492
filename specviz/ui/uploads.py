"""The files that are sent to be opened: one at a time, small, few, and deleted."""

import os
import secrets
from pathlib import Path
from tempfile import SpooledTemporaryFile

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

MOST_BYTES = 128 << 20
"""Bytes of all files together: beyond them the oldest are deleted."""


async def upload(request: Request) -> Response:
    """Stores the one file in the field `files` and answers its path, which an event names next. Gradio deletes it in a
    while."""
    try:
        async with request.form(max_files=1, max_fields=0) as form:
            file = form.get("files")
            if file is None:
                return PlainTextResponse("a file must be in the field 'files'", status_code=400)
            path = await anyio.to_thread.run_sync(_keep, file.file, file.filename, request.app)
    except OSError as error:
        words = f"the server cannot keep this file ({error.strerror})"
        return PlainTextResponse(words, status_code=507)
    return JSONResponse([str(path)])


def _keep(file: SpooledTemporaryFile, name: str | None, app: object) -> Path:
    """Stores the file under a name that nobody can guess; only its ending is the sender's. Returns its path."""
    suffix = ".gz" if str(name).endswith(".gz") else ".jsonl"
    path = Path(app.uploaded_file_dir) / f"{secrets.token_hex(16)}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.write_bytes(file.read())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    kept = app.get_blocks().upload_file_set
    kept.add(str(path))
    _delete_oldest(kept)
    return path


def _delete_oldest(kept: set[str]) -> None:
    """Deletes the oldest files, beyond those that fit into MOST_BYTES together."""
    paths = [path for path in list(kept) if os.path.exists(path)]
    num_bytes = 0
    for path in sorted(paths, key=os.path.getmtime, reverse=True):
        num_bytes += os.path.getsize(path)
        if num_bytes > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
            kept.discard(path)
