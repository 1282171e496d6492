"""Errors as the hub's library raises them."""


def hub_error(name):
    import httpx
    from huggingface_hub import errors

    if name == "disk full":
        return OSError(28, "No space left on device")
    if name == "not cached":
        return errors.LocalEntryNotFoundError("cannot find it")
    request = httpx.Request("GET", "http://127.0.0.1")
    return getattr(errors, name)("refused", response=httpx.Response(403, request=request))
