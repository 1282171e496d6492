"""Puts a draft that was trained and evaluated into assets/models, as the catalogue's bundled draft of its target."""

import json
import shutil
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError
from specviz.models.catalog import HEADS, bundled_draft
from specviz.settings import assets_dir
from specviz.zoo.evaluation.card import LICENCE
from specviz.zoo.for_target.evaluate import CARD, is_head
from specviz.zoo.for_target.learning import RECIPE
from specviz.zoo.training.export import replacing, write_json


def ship(target: str, folder: Path) -> Path:
    """The folder in the assets that FOLDER/model has filled, in the place of an earlier one.

    SpecvizError where FOLDER has no card yet, or the catalogue has no bundled draft of its kind for this target.
    """
    model = folder / "model"
    if not (model / CARD).is_file():
        raise SpecvizError(f"{folder.name!r} has no card; run `evaluate` first")
    name = _shipped_head(target) if is_head(model) else bundled_draft(target)
    if name is None:
        raise SpecvizError(f"the catalogue has no bundled draft of this kind for {target}")
    place = assets_dir() / "models" / name
    with replacing(place) as partial:
        shutil.copytree(model, partial)
        for file in (partial / "config.json", partial / RECIPE):
            write_json(file, _for_target(json.loads(file.read_text(encoding="utf-8")), target))
        card = (model / CARD).read_text(encoding="utf-8")
        (partial / CARD).write_text(f"{card}\n{LICENCE}\n", encoding="utf-8")
    return place


def _shipped_head(target: str) -> str | None:
    return next(
        (head.name for head in HEADS.values() if head.target == target and head.is_bundled), None
    )


def _for_target(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings in which the target has this name, whatever its folder was called when the draft was trained."""
    named = {
        key: _for_target(value, name) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    return named | {key: name for key in ("base_model_name_or_path", "target") if key in values}
