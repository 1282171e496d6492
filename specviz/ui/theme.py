"""The page's colours, which style sheets use by Gradio's variables; fonts are the system's: nothing is fetched."""

import gradio as gr

# (light, dark) -> names of Gradio's variables
_COLOURS = {
    ("#ffffff", "#14171c"): ("body_background_fill", "block_background_fill", "input_background_fill_focus"),
    ("#1f2328", "#e6e9ed"): ("body_text_color", "button_secondary_text_color"),
    ("#5f6670", "#aab1bc"): (
        "body_text_color_subdued",
        "block_label_text_color",
        "block_title_text_color",
        "block_info_text_color",
    ),
    ("#ffffff", "#1b1f26"): ("background_fill_primary", "button_secondary_background_fill"),
    ("#f5f6f8", "#20252d"): ("background_fill_secondary", "input_background_fill"),
    ("#dde1e6", "#363d47"): ("border_color_primary", "input_border_color"),
    ("#0067a3", "#6cc0f2"): (
        "border_color_accent",
        "input_border_color_focus",
        "slider_color",
        "button_primary_background_fill",
    ),
    ("#e4f0f8", "#1d3340"): ("color_accent_soft", "checkbox_label_background_fill_selected"),
    ("#6b727c", "#9aa1ac"): ("input_placeholder_color",),
    ("#00588c", "#8ccdf5"): ("button_primary_background_fill_hover",),
    ("#ffffff", "#0c1a24"): ("button_primary_text_color", "button_primary_text_color_hover"),
    ("#f0f2f5", "#272d36"): ("button_secondary_background_fill_hover",),
    ("#cfd5dc", "#414954"): ("button_secondary_border_color",),
    ("#b8c0c9", "#57606c"): ("button_secondary_border_color_hover",),
}


def theme() -> gr.themes.Base:
    light = {name: colour for (colour, _), names in _COLOURS.items() for name in names}
    dark = {f"{name}_dark": colour for (_, colour), names in _COLOURS.items() for name in names}
    base = gr.themes.Base(font="sans-serif", font_mono="monospace", text_size="sm", radius_size="sm", spacing_size="sm")
    return base.set(**light, **dark)
