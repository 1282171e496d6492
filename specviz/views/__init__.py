"""Views: a trace (and a selection) in, a figure, props or text out. They load no torch and no gradio."""
