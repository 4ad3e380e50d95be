"""The API process: HTTP in front of the core. Loads tokenizers and jinja2, never torch or transformers."""
