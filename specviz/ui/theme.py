"""The page's colours, which style sheets use by Gradio's variables; fonts are the system's: nothing is fetched."""

import gradio as gr

# name of Gradio's variable -> (light, dark)
_COLOURS = {
    "body_background_fill": ("#ffffff", "#14171c"),
    "body_text_color": ("#1f2328", "#e6e9ed"),
    "body_text_color_subdued": ("#5f6670", "#aab1bc"),
    "background_fill_primary": ("#ffffff", "#1b1f26"),
    "background_fill_secondary": ("#f5f6f8", "#20252d"),
    "border_color_primary": ("#dde1e6", "#363d47"),
    "border_color_accent": ("#0067a3", "#6cc0f2"),
    "color_accent_soft": ("#e4f0f8", "#1d3340"),
    "block_background_fill": ("#ffffff", "#14171c"),
    "block_label_text_color": ("#5f6670", "#aab1bc"),
    "block_title_text_color": ("#5f6670", "#aab1bc"),
    "block_info_text_color": ("#5f6670", "#aab1bc"),
    "input_background_fill": ("#f5f6f8", "#20252d"),
    "input_background_fill_focus": ("#ffffff", "#14171c"),
    "input_border_color": ("#dde1e6", "#363d47"),
    "input_border_color_focus": ("#0067a3", "#6cc0f2"),
    "input_placeholder_color": ("#6b727c", "#9aa1ac"),
    "slider_color": ("#0067a3", "#6cc0f2"),
    "button_primary_background_fill": ("#0067a3", "#6cc0f2"),
    "button_primary_background_fill_hover": ("#00588c", "#8ccdf5"),
    "button_primary_text_color": ("#ffffff", "#0c1a24"),
    "button_primary_text_color_hover": ("#ffffff", "#0c1a24"),
    "button_secondary_background_fill": ("#ffffff", "#1b1f26"),
    "button_secondary_background_fill_hover": ("#f0f2f5", "#272d36"),
    "button_secondary_border_color": ("#cfd5dc", "#414954"),
    "button_secondary_border_color_hover": ("#b8c0c9", "#57606c"),
    "button_secondary_text_color": ("#1f2328", "#e6e9ed"),
    "checkbox_label_background_fill_selected": ("#e4f0f8", "#1d3340"),
}


def theme() -> gr.themes.Base:
    light = {name: colours[0] for name, colours in _COLOURS.items()}
    dark = {f"{name}_dark": colours[1] for name, colours in _COLOURS.items()}
    base = gr.themes.Base(font="sans-serif", font_mono="monospace", text_size="sm", radius_size="sm", spacing_size="sm")
    return base.set(**light, **dark)
